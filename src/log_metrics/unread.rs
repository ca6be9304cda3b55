//! Output that names no step, and a pattern that would read it. Names and numbers of the newest line become its groups:
//! `it=5 L=0.3` is read by `it=(?P<step>\d+) L=(?P<loss>\S+)`.

use super::names;
use super::pattern::Pattern;
use regex::Regex;

/// Longest line that is kept, in bytes.
const LONGEST: usize = 200;
/// Most groups of a pattern.
const GROUPS: usize = 6;
/// Longest text between two groups that the pattern repeats.
const BETWEEN: usize = 24;
/// A name, its sign and a number.
const PAIR: &str = r"(?P<key>[A-Za-z_][\w/@-]*)(?P<sign>\s*[=:]\s*|\s+|\s*[\[(]\s*)(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf)";
/// Names of a step, those that say most first.
const STEPS: [&str; 13] =
    ["step", "steps", "global_step", "iteration", "iter", "it", "update", "batch", "i", "n", "t", "k", "epoch"];
/// Names of a loss.
const LOSSES: [&str; 11] = ["loss", "l", "cost", "err", "error", "objective", "obj", "nll", "ce", "mse", "j"];

/// The lines of an output in which no step was found.
#[derive(Debug, Default)]
pub struct UnreadLines {
    count: u64,
    newest: String,
    /// The letters of the newest line, folded.
    shape: u64,
    /// Its shape is that of the line before.
    repeats: bool,
}

impl UnreadLines {
    /// Takes a line.
    pub(super) fn take(&mut self, text: &str) {
        self.count += 1;
        let mut end = text.len().min(LONGEST);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text[..end].clone_into(&mut self.newest);
        let letters = self.newest.bytes().filter(u8::is_ascii_alphabetic);
        let shape = letters.fold(0_u64, |shape, byte| shape.rotate_left(5) ^ u64::from(byte));
        self.repeats = std::mem::replace(&mut self.shape, shape) == shape;
    }

    /// Returns the number of lines.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the newest line.
    #[must_use]
    pub fn newest(&self) -> &str {
        &self.newest
    }

    /// Reports whether the newest line has the form of the one before it, as those of a training do.
    #[must_use]
    pub fn repeats(&self) -> bool {
        self.repeats
    }

    /// Returns a pattern that reads the step in the newest line; none if the line has no number that could be one.
    #[must_use]
    pub fn pattern(&self) -> Option<String> {
        propose(&self.newest)
    }
}

/// A number and the name before it.
struct Pair<'a> {
    begin: usize,
    end: usize,
    key: &'a str,
    sign: &'a str,
    is_whole: bool,
}

fn propose(line: &str) -> Option<String> {
    let regex = Regex::new(PAIR).ok()?;
    let pairs: Vec<Pair<'_>> = regex.captures_iter(line).filter_map(|found| pair(line, &found)).collect();
    let lower = |pair: &Pair<'_>| pair.key.to_ascii_lowercase();
    let named = |names: &[&str], pair: &Pair<'_>| names.iter().position(|name| lower(pair) == *name);
    let whole = || pairs.iter().enumerate().filter(|(_, pair)| pair.is_whole);
    let by_name = whole().filter_map(|(at, pair)| Some((named(&STEPS, pair)?, at))).min();
    let is_metric = |key: &str| names::is_loss(key) || names::has_score(key);
    let unnamed = || whole().find(|(_, pair)| !is_metric(&pair.key.to_ascii_lowercase())).map(|(at, _)| at);
    let step = by_name.map(|(_, at)| at).or_else(unnamed)?;
    let loss =
        pairs.iter().enumerate().find(|(at, pair)| *at != step && named(&LOSSES, pair).is_some()).map(|(at, _)| at);
    // A count alone is that of something else, such as files.
    pairs.iter().enumerate().find(|(at, pair)| *at != step && (Some(*at) == loss || !pair.is_whole))?;
    let mut taken = Vec::new();
    let (mut pattern, mut end) = (String::new(), None);
    for (at, pair) in pairs.iter().enumerate() {
        let name = match at {
            _ if at == step => "step".to_owned(),
            _ if Some(at) == loss => "loss".to_owned(),
            _ => group_name(pair.key),
        };
        let is_needed = at == step || Some(at) == loss;
        if taken.contains(&name) || (!is_needed && (taken.len() + 2 > GROUPS || ["step", "loss"].contains(&&*name))) {
            continue;
        }
        if let Some(end) = end {
            pattern.push_str(&between(&line[end..pair.begin]));
        }
        pattern += &regex::escape(pair.key);
        pattern += &sign(pair.sign);
        pattern.extend(["(?P<", &name, ">", number(&line[pair.end..], at == step), ")"]);
        end = Some(pair.end);
        taken.push(name);
    }
    let reads_step = Pattern::new(&pattern).ok()?.read(line)?.step.is_some();
    reads_step.then_some(pattern)
}

fn pair<'a>(line: &'a str, found: &regex::Captures<'a>) -> Option<Pair<'a>> {
    let (whole, number) = (found.get(0)?, found.name("number")?);
    let follows = line[number.end()..].bytes().next();
    let ends = follows.is_none_or(|byte| !byte.is_ascii_alphanumeric() && !b"_:".contains(&byte));
    let is_whole = number.as_str().bytes().all(|byte| byte.is_ascii_digit());
    let (key, sign) = (found.name("key")?.as_str(), found.name("sign")?.as_str());
    ends.then_some(Pair { begin: whole.start(), end: whole.end(), key, sign, is_whole })
}

fn group_name(key: &str) -> String {
    let name = key.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '_' });
    name.collect::<String>().trim_matches('_').to_owned()
}

/// Returns the pattern of a number, given the text behind it.
fn number(behind: &str, is_step: bool) -> &'static str {
    match behind.chars().next() {
        _ if is_step => r"\d+",
        None => r"\S+",
        Some(next) if next.is_whitespace() => r"\S+",
        Some(_) => r"[-+.\w]+",
    }
}

/// Returns the pattern of the sign between a name and its number, which may be padded.
fn sign(text: &str) -> String {
    match text.trim() {
        "" => r"\s+".to_owned(),
        mark if text.len() > mark.len() => format!(r"{}\s*", regex::escape(text.trim_end())),
        mark => regex::escape(mark),
    }
}

/// Returns the pattern of the text between two numbers.
fn between(text: &str) -> String {
    if text.len() > BETWEEN || text.bytes().any(|byte| byte.is_ascii_digit()) {
        return ".*?".to_owned();
    }
    let words: Vec<String> = text.split("  ").map(regex::escape).collect();
    match words.len() {
        1 => words.concat(),
        _ => text.split_whitespace().map(regex::escape).fold(String::new(), |all, word| all + r"\s+" + &word) + r"\s+",
    }
}

#[cfg(test)]
mod tests {
    use super::{UnreadLines, propose};

    #[test]
    fn a_pattern_is_made_of_the_line() {
        for (line, pattern) in [
            ("it=5 L=0.3", r"it=(?P<step>\d+) L=(?P<loss>\S+)"),
            ("2026-11-22 10:00:00 it=5 L=nan", r"it=(?P<step>\d+) L=(?P<loss>\S+)"),
            ("n: 12, cost: 1e-3, gain: 4", r"n:\s*(?P<step>\d+), cost:\s*(?P<loss>[-+.\w]+), gain:\s*(?P<gain>\S+)"),
            ("gen   40   best fitness 0.25", r"gen\s+(?P<step>\d+)\s+best\s+fitness\s+(?P<fitness>\S+)"),
            ("x=1.5 took 3s at k 7 err 0.5", r"x=(?P<x>\S+).*?k\s+(?P<step>\d+) err\s+(?P<loss>\S+)"),
            ("k 7 (of 90) err 0.5", r"k\s+(?P<step>\d+) \(of\s+(?P<of>[-+.\w]+)\) err\s+(?P<loss>\S+)"),
        ] {
            assert_eq!(propose(line).as_deref(), Some(pattern), "{line}");
        }
    }

    #[test]
    fn a_line_without_a_count_gets_none() {
        for line in [
            "Test set: Average loss: 0.5, Accuracy: 900/1000 (90%)",
            "mse 0.5 map 3",
            "loading the model",
            "took 3.5 s",
            "10:00:00 done",
            "",
            "loss=0.5",
            "\u{fc}=5",
            "shard 3 of 30",
        ] {
            assert_eq!(propose(line), None, "{line}");
        }
    }

    #[test]
    fn lines_of_one_form_repeat() {
        let mut lines = UnreadLines::default();
        let repeats = ["loading", "it=1 L=0.5", "it=2 L=-0.25", "saved"].map(|line| {
            lines.take(line);
            lines.repeats()
        });
        assert_eq!((repeats, lines.count(), lines.newest()), ([false, false, true, false], 4, "saved"));
    }
}
