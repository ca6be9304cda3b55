//! The journal's sentences about the environment of a start.

use crate::format::counted;
use crate::protocol::environment::{Difference, EnvironmentNews, Unusable, Value};
use crate::protocol::worker::Level;
use crate::untrusted::text::escape_line;

/// Most variables in one sentence.
const MOST: usize = 8;

/// Describes how the environment compares with that of the first start.
pub fn describe(news: &EnvironmentNews) -> Vec<(Level, String)> {
    let mut lines = Vec::new();
    if let Some(why) = &news.unknown {
        lines.push((Level::Warn, unknown(why)));
    }
    if !news.restored.is_empty() {
        let (names, verb) = (listed(&news.restored), if news.restored.len() == 1 { "is" } else { "are" });
        lines.push((Level::Info, format!("environment: {names} {verb} as at the start again")));
    }
    if !news.differing.is_empty() {
        let all: Vec<String> = news.differing.iter().map(difference).collect();
        lines.push((Level::Warn, format!("the environment is not that of the start: {}", joined(&all, "; "))));
    }
    if !news.missing_secrets.is_empty() {
        let names = listed(&news.missing_secrets);
        let text = format!("set at the start, and not now: {names}. Secrets are not kept; resume where they are set");
        lines.push((Level::Warn, text));
    }
    lines
}

fn unknown(why: &Unusable) -> String {
    let goes_on = "so this start has the environment of whoever resumed the run";
    format!("the environment of the start is unknown: {why}, {goes_on}")
}

fn difference(Difference { name, was, is }: &Difference) -> String {
    let name = escape_line(name);
    let quoted = |value: &str| if value.is_empty() { "empty".to_owned() } else { escape_line(value).into_owned() };
    match (was, is) {
        (Value::Shown(was), Value::Shown(is)) => format!("{name} is {}, was {}", quoted(is), quoted(was)),
        (Value::Unset, Value::Shown(is)) => format!("{name} is {}, was not set", quoted(is)),
        (Value::Shown(was), Value::Unset) => format!("{name} is not set, was {}", quoted(was)),
        (Value::Unset, _) => format!("{name} was not set"),
        (_, Value::Unset) => format!("{name} is not set"),
        _ => format!("{name} differs"),
    }
}

fn listed(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| escape_line(name).into_owned()).collect();
    joined(&names, ", ")
}

fn joined(parts: &[String], between: &str) -> String {
    let more = parts.len().saturating_sub(MOST) as u64;
    let all = parts[..parts.len().min(MOST)].join(between);
    if more == 0 { all } else { format!("{all}{between}and {}", counted(more, "more variable")) }
}

#[cfg(test)]
mod tests {
    use super::describe;
    use crate::protocol::environment::{Difference, EnvironmentNews, Unusable, Value};

    fn difference(name: &str, was: Value, is: Value) -> Difference {
        Difference { name: name.to_owned(), was, is }
    }

    #[test]
    fn each_kind_of_difference_has_its_sentence() {
        let shown = |value: &str| Value::Shown(value.to_owned());
        let news = EnvironmentNews {
            restored: (0..10).map(|number| format!("V{number}")).collect(),
            differing: vec![
                difference("CUDA_VISIBLE_DEVICES", shown("0"), shown("1")),
                difference("HF_HOME", Value::Unset, shown("")),
                difference("A\u{1b}B", Value::Hidden, Value::Hidden),
                difference("GONE", Value::Hidden, Value::Unset),
            ],
            missing_secrets: vec!["HF_TOKEN".to_owned()],
            unknown: None,
        };
        let lines: Vec<String> = describe(&news).into_iter().map(|(_, text)| text).collect();
        assert_eq!(
            lines,
            [
                "environment: V0, V1, V2, V3, V4, V5, V6, V7, and 2 more variables are as at the start again",
                "the environment is not that of the start: CUDA_VISIBLE_DEVICES is 1, was 0; HF_HOME is empty, was not \
                 set; A\\u001bB differs; GONE is not set",
                "set at the start, and not now: HF_TOKEN. Secrets are not kept; resume where they are set",
            ]
        );
        assert!(describe(&EnvironmentNews::default()).is_empty());
        let unknown = EnvironmentNews { unknown: Some(Unusable::Foreign(7)), ..EnvironmentNews::default() };
        assert!(describe(&unknown)[0].1.contains("unknown: environment.json belongs to user 7, so this start"));
    }
}
