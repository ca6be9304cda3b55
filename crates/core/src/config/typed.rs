//! Converts a tree to a typed value and finds **every** mistake, not only the first: cuts the offending
//! part out of the tree and parses the rest again until no errors remain.

use super::problem::Problem;
use super::yaml::MAX_DEPTH;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

/// Maximum passes; each handles one mistake, or all unknown keys of one section.
const MAX_ROUNDS: usize = 64;
/// Maximum unknown keys per section that get a suggestion.
const MAX_SUGGESTIONS: usize = 50;
/// The largest number that a message repeats as the one to write.
const MAX_WRITTEN: f64 = 1e15;
/// Keys that are written in one section, or in none, and belong into another.
const MISPLACED: [(&str, &[&str], &str); 5] = [
    ("checkpoint", &["match", "complete", "copy"], "checkpoints"),
    ("checkpoints", &["every", "keep_best", "best", "proven_after"], "checkpoint"),
    (
        "",
        &[
            "epochs",
            "steps",
            "max_steps",
            "micro_batch",
            "batch_size",
            "accumulation",
            "grad_accum",
            "precision",
            "seed",
        ],
        "training",
    ),
    ("", &["lr", "learning_rate", "weight_decay", "max_norm", "max_grad_norm", "schedule"], "optimizer"),
    ("", &["autopilot", "patience", "hang_min"], "watch"),
];
/// Names that other programs give to keys, and other words for tasks.
const ELSEWHERE: [(&[&str], &str); 8] = [
    (&["batch_size", "batch", "per_device_train_batch_size"], "micro_batch"),
    (&["learning_rate", "rate"], "lr"),
    (&["gradient_accumulation_steps", "grad_accum", "accumulation_steps"], "accumulation"),
    (&["max_steps", "iterations"], "steps"),
    (&["max_grad_norm", "grad_clip", "clip"], "max_norm"),
    (&["script", "program", "args", "cmd"], "command"),
    (&["pictures", "images", "image", "digits"], "vision"),
    (&["text", "language", "gpt", "lora"], "lm"),
];
/// Longest key that is compared with known keys.
const MAX_COMPARED: usize = 64;

/// Returns the typed value, if the tree yields one, and every error.
#[must_use]
pub fn read_tree<T: DeserializeOwned>(tree: &Value) -> (Option<T>, Vec<Problem>) {
    let mut renamed = Vec::new();
    let (value, mut problems) = read_renaming(tree.clone(), &mut renamed);
    // The file has no such key: what is wrong with its value shows once the name is right. A placeholder took its place.
    let found = problems.len();
    problems.retain(|problem| !renamed.iter().any(|key| is_within(&problem.path, key)));
    (value.filter(|_| problems.len() == found), problems)
}

/// Reads the tree. Values of misspelt keys are read under the keys that were meant, which are added to `renamed`.
fn read_renaming<T: DeserializeOwned>(mut tree: Value, renamed: &mut Vec<String>) -> (Option<T>, Vec<Problem>) {
    let mut problems: Vec<Problem> = Vec::new();
    for _ in 0..MAX_ROUNDS {
        let error = match serde_path_to_error::deserialize::<_, T>(&tree) {
            Ok(value) => return (Some(value), problems),
            Err(error) => error,
        };
        let path = error.path().to_string();
        let path = if path == "." { String::new() } else { path };
        let message = error.inner().to_string();
        if let Some(field) = message.strip_prefix("missing field `").and_then(|rest| rest.split('`').next()) {
            let missing = join_path(&path, field);
            if !problems.iter().any(|problem| problem.path == missing) {
                problems.push(Problem::at(&missing, "this key is missing", "add it"));
            }
            if !fill_missing::<T>(&mut tree, &missing) {
                return (None, problems);
            }
        } else {
            let unknown = remove_unknown_keys(&mut tree, &path, &message, renamed);
            if unknown.is_empty() {
                problems.push(explain_error(&path, &message));
                if !remove_key(&mut tree, &path) {
                    return (None, problems);
                }
            }
            problems.extend(unknown);
        }
    }
    (None, problems)
}

/// Removes all unknown keys of one section at once: one pass per key would take time quadratic in their number. The value
/// of a misspelt key goes to the key that was meant, which would otherwise be reported as missing.
fn remove_unknown_keys(tree: &mut Value, path: &str, message: &str, renamed: &mut Vec<String>) -> Vec<Problem> {
    let Some((unexpected, known)) = parse_unknown(message, "field") else { return Vec::new() };
    // The path ends with the key itself or with the section that contains it.
    let section = match path.rsplit_once('.') {
        Some((above, last)) if last == unexpected => above,
        None if path == unexpected => "",
        _ => path,
    };
    let Some(Value::Object(map)) = value_at(tree, section) else { return Vec::new() };
    let unknown: Vec<String> = map.keys().filter(|key| !known.contains(&key.as_str())).cloned().collect();
    let misspelt = unknown.iter().take(MAX_SUGGESTIONS).filter(|key| home_of(section, key).is_none());
    let moved: Vec<(String, Value)> =
        misspelt.filter_map(|key| Some((meant(key, &known)?.to_owned(), map.get(key)?.clone()))).collect();
    map.retain(|key, _| known.contains(&key.as_str()));
    for (key, value) in moved {
        if !map.contains_key(&key) {
            renamed.push(join_path(section, &key));
            map.insert(key, value);
        }
    }
    let fix = |index: usize, key: &str| match home_of(section, key) {
        Some(home) => {
            let own = ELSEWHERE.iter().find(|(names, _)| names.contains(&key)).map_or(key, |(_, own)| own);
            format!("write it as `{home}.{own}`")
        }
        None if index < MAX_SUGGESTIONS => suggest(key, &known),
        None => "remove it".to_owned(),
    };
    let report =
        |(index, key): (usize, String)| Problem::of_key(join_path(section, &key), "unknown key", fix(index, &key));
    unknown.into_iter().enumerate().map(report).collect()
}

/// Returns the section that a misplaced key belongs into.
fn home_of(section: &str, key: &str) -> Option<&'static str> {
    MISPLACED.iter().find(|(from, keys, _)| *from == section && keys.contains(&key)).map(|(_, _, home)| *home)
}

/// Reports whether a path is that of a key or of something below it.
fn is_within(path: &str, key: &str) -> bool {
    path.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

fn join_path(path: &str, field: &str) -> String {
    if path.is_empty() { field.to_owned() } else { format!("{path}.{field}") }
}

/// Inserts a placeholder for a missing key, so that the rest can be checked.
fn fill_missing<T: DeserializeOwned>(tree: &mut Value, path: &str) -> bool {
    let (parent, field) = path.rsplit_once('.').unwrap_or(("", path));
    let mut candidates = vec![Value::Null, json!([]), json!({}), json!(true), json!("1 epoch"), json!(1)];
    while let Some(candidate) = candidates.pop() {
        let Some(Value::Object(map)) = value_at(tree, parent) else { return false };
        map.insert(field.to_owned(), candidate);
        let Err(error) = serde_path_to_error::deserialize::<_, T>(&*tree) else { return true };
        let message = error.inner().to_string();
        if error.path().to_string() != path || message.starts_with("missing field") {
            return true;
        }
        if let Some(choice) = message.strip_prefix("unknown variant `").and_then(|rest| rest.split('`').nth(2)) {
            candidates.push(json!(choice));
        }
    }
    false
}

/// Removes the innermost key on the way to `path`.
fn remove_key(tree: &mut Value, path: &str) -> bool {
    let path = path.trim_end_matches(|c: char| c == ']' || c == '[' || c.is_ascii_digit() && path.ends_with(']'));
    let (parent, field) = path.rsplit_once('.').unwrap_or(("", path));
    match value_at(tree, parent) {
        Some(Value::Object(map)) => map.shift_remove(field).is_some(),
        _ => false,
    }
}

/// Returns the value at a dotted path with `[index]` parts.
pub fn value_at<'a>(tree: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split(['.', '[']).filter(|part| !part.is_empty()).try_fold(tree, |at, part| match part.strip_suffix(']') {
        Some(index) => at.get_mut(index.parse::<usize>().ok()?),
        None => at.get_mut(part),
    })
}

/// Sets the value at a dotted path and creates missing sections.
///
/// # Errors
/// Returns an error when a component of the path is not a section.
pub fn set_value(tree: &mut Value, path: &str, value: Value) -> Result<(), Problem> {
    if path.split('.').count() > MAX_DEPTH {
        let wrong = format!("this path has more than {MAX_DEPTH} parts");
        return Err(Problem::at(path, wrong, "write the dotted path of a knob, such as training.micro_batch"));
    }
    let (parents, last) = path.rsplit_once('.').map_or((None, path), |(parents, last)| (Some(parents), last));
    let mut at = tree;
    for part in parents.into_iter().flat_map(|parents| parents.split('.')) {
        let Value::Object(map) = at else { return Err(no_section(path, part)) };
        at = map.entry(part).or_insert_with(|| Value::Object(Map::new()));
    }
    match at {
        Value::Object(map) => {
            map.insert(last.to_owned(), value);
            Ok(())
        }
        _ => Err(no_section(path, last)),
    }
}

fn no_section(path: &str, part: &str) -> Problem {
    Problem::at(
        path,
        format!("there is no section above `{part}`"),
        "write the dotted path of a knob, such as training.micro_batch",
    )
}

/// Parses serde's "unknown field `x`, expected one of `a`, `b`" into the unknown name and the known ones.
fn parse_unknown<'a>(message: &'a str, kind: &str) -> Option<(&'a str, Vec<&'a str>)> {
    let rest = message.strip_prefix("unknown ")?.strip_prefix(kind)?.strip_prefix(" `")?;
    let mut quoted = rest.split('`').step_by(2);
    Some((quoted.next()?, quoted.collect()))
}

/// Rewords a serde error for users.
fn explain_error(path: &str, message: &str) -> Problem {
    if let Some((unknown, known)) = parse_unknown(message, "field") {
        let path = if path.rsplit('.').next() == Some(unknown) { path.to_owned() } else { join_path(path, unknown) };
        return Problem::of_key(path, "unknown key", suggest(unknown, &known));
    }
    if let Some((unknown, known)) = parse_unknown(message, "variant") {
        return Problem::at(path, format!("unknown value `{unknown}`"), suggest(unknown, &known));
    }
    let wrong_type = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
    if let Some((found, wanted)) = wrong_type.and_then(|rest| rest.split_once(", expected ")) {
        return explain_wrong_type(path, found, wanted);
    }
    let (wrong, fix) = message.split_once("; ").unwrap_or((message, "see the shipped run files for an example"));
    Problem::at(path, wrong, fix)
}

fn explain_wrong_type(path: &str, found: &str, wanted: &str) -> Problem {
    if path == "resume[0]" {
        let fix = "write `resume: { arguments: [\"--resume={checkpoint}\"] }`";
        return Problem::at("resume", "expected a section of keys, found a list", fix);
    }
    let value = found.split('`').nth(1).or_else(|| found.split('"').nth(1)).unwrap_or(found);
    let value = if value == "map" { "a section" } else { value };
    let number = value.parse::<f64>().ok();
    let (kind, fix) = match wanted {
        "u64" | "u32" | "usize" => match number {
            Some(number) if (0.0..=MAX_WRITTEN).contains(&number) && number.fract() != 0.0 => {
                ("a whole number", format!("write {} or {}", number.floor().max(1.0), number.ceil()))
            }
            Some(number) if number > MAX_WRITTEN => ("a whole number", "write a smaller one, such as 32".to_owned()),
            Some(number) if number >= 0.0 && found.starts_with("string") => {
                ("a whole number", format!("write {number} without quotes"))
            }
            Some(number) if number >= 0.0 => ("a whole number", format!("write {number}")),
            Some(_) => ("a whole number of at least 0", "write a number, such as 1".to_owned()),
            None => ("a whole number", "write a number, such as 32".to_owned()),
        },
        "f64" => ("a number", "write a number, such as 0.001".to_owned()),
        "a boolean" => ("true or false", "write one of the two".to_owned()),
        "a string" if value == "a section" => ("text", "put it in quotes, such as \"{run_dir}\"".to_owned()),
        "a string" => ("text", format!("write it in quotes: \"{value}\"")),
        _ if wanted.starts_with("struct ") => ("a section of keys", "put its keys below it, indented".to_owned()),
        "a sequence" if value.contains(char::is_whitespace) || value == "a section" => {
            ("a list", "write [a, b]".to_owned())
        }
        "a sequence" => ("a list", format!("write [{value}]")),
        other => match other.strip_prefix("a number and a unit: ") {
            Some(examples) => ("a number with a unit", format!("write {examples}")),
            None => (other, "see the shipped run files for an example".to_owned()),
        },
    };
    Problem::at(path, format!("expected {kind}, found {value}"), fix)
}

/// Returns `did you mean …`, or the whole list.
#[must_use]
pub fn suggest(unknown: &str, known: &[&str]) -> String {
    match meant(unknown, known) {
        Some(word) => format!("did you mean `{word}`?"),
        None if known.is_empty() => "remove it".to_owned(),
        None => format!("choose from: {}", known.join(", ")),
    }
}

/// Returns the known word that was meant: another tool's name for it, or one that is spelt alike.
fn meant<'a>(unknown: &str, known: &[&'a str]) -> Option<&'a str> {
    let elsewhere = ELSEWHERE.iter().find(|(names, key)| names.contains(&unknown) && known.contains(key));
    elsewhere.map(|(_, key)| *key).or_else(|| nearest(unknown, known))
}

/// Returns the known word that was probably meant.
#[must_use]
pub fn nearest<'a>(unknown: &str, known: &[&'a str]) -> Option<&'a str> {
    let near = known
        .iter()
        .filter(|_| unknown.len() <= MAX_COMPARED)
        .map(|word| (strsim::damerau_levenshtein(unknown, word), *word))
        .min();
    near.filter(|(distance, word)| *distance <= 2.max(word.len() / 3)).map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::read_tree;
    use crate::config::knobs::Training;
    use serde_json::json;

    fn problems(tree: &serde_json::Value) -> Vec<String> {
        read_tree::<Training>(tree).1.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_mistake_is_found_in_one_pass() {
        let found = problems(&json!({
            "micro_batch": 2.5, "acumulation": 2, "precision": "fp32", "fused_kernels": "no",
            "loader": {"threads": -1, "prefech": 3}, "seed": "x",
        }));
        insta::assert_snapshot!(found.join("\n"));
    }

    #[test]
    fn a_missing_key_does_not_hide_other_mistakes() {
        let found = problems(&json!({"epochs": "many"}));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("epochs:") && found[1].starts_with("micro_batch:"), "{found:?}");
    }

    #[test]
    fn sixty_thousand_unknown_keys_are_all_found() {
        let mut tree = json!({"micro_batch": 4, "precision": "fp32", "loader": {}});
        for index in 0..60_000 {
            tree[format!("key{index}")] = json!(index);
            tree["loader"][format!("key{index}")] = json!(index);
        }
        assert_eq!(problems(&tree).len(), 120_001);
    }

    #[test]
    fn valid_sections_are_read_with_their_defaults() {
        let (value, problems) = read_tree::<Training>(&json!({"micro_batch": 4}));
        assert!(problems.is_empty());
        assert_eq!(value.unwrap().loader.prefetch, 2);
    }
}
