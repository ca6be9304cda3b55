//! The only module that uses the YAML crate: text → tree, a path → its line and column, tree → text.
//!
//! The tree is JSON's: a run file may hold whatever JSON may hold. The tree does not store positions;
//! when a message needs one, [`locate`] runs the parser again and stops it at the path.

mod locate;

pub use locate::{Place, locate};

use super::problem::{Part, Problem};
use serde::de::{
    self, Deserialize, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor,
};
use serde_json::{Map, Value};
use std::{cell::RefCell, collections::HashMap, fmt};

/// Maximum size of a run file.
const MAX_BYTES: usize = 1 << 20;
/// Maximum number of brackets in a file. The parser's time is quadratic in nesting depth, and only the
/// parser knows which brackets open something, so all of them count.
const MAX_BRACKETS: usize = 8_192;
/// Maximum nesting depth.
pub(super) const MAX_DEPTH: usize = 32;

/// A YAML syntax error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyntaxError {
    /// The position where the parser stopped.
    pub place: Place,
    /// The parser's message.
    pub message: String,
}

/// Parses a document into a tree, and returns what a tree cannot represent: duplicate keys, tags, `.nan`.
///
/// # Errors
/// Returns an error when the text is not YAML, is empty, contains several documents, exceeds a megabyte
/// or is nested too deeply.
pub fn parse(text: &str) -> Result<(Value, Vec<Problem>), SyntaxError> {
    let whole = |message: &str| SyntaxError { place: (1, 1), message: message.to_owned() };
    check_bounds(text).map_err(|error| whole(&error.to_string()))?;
    if text.trim().is_empty() {
        return Err(whole(
            "the file is empty; `downshift init digits` or `downshift init -- python train.py` writes one",
        ));
    }
    let problems = RefCell::new(Vec::new());
    let walk = Walk { path: String::new(), depth: 0, problems: &problems };
    let tree = walk.deserialize(serde_yaml::Deserializer::from_str(text)).map_err(|error| SyntaxError {
        place: error.location().map_or((1, 1), |at| (at.line(), at.column())),
        message: strip_position(&error.to_string()) + suggest_fix(text, &error),
    })?;
    Ok((tree, problems.into_inner()))
}

/// Parses a value as in a file: `2`, `true`, `[1, 2]`, `30 s`.
#[must_use]
pub fn parse_scalar(text: &str) -> Value {
    parse(text).map_or_else(|_| Value::String(text.to_owned()), |(value, _)| value)
}

/// Serializes a tree.
#[must_use]
pub fn write(tree: &Value) -> String {
    serde_yaml::to_string(tree).unwrap_or_default()
}

/// Deserializes a whole typed document at once; for our own data files, such as themes.
///
/// # Errors
/// Returns an error when the document is invalid or too large.
pub fn read<T: de::DeserializeOwned>(text: &str) -> Result<T, ReadError> {
    check_bounds(text)?;
    Ok(serde_yaml::from_str(text)?)
}

/// A document that does not match its type.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It exceeds the limits of [`parse`].
    #[error(transparent)]
    TooLarge(#[from] BoundsError),
    /// The parser rejects it; the message has line and column.
    #[error(transparent)]
    Invalid(#[from] serde_yaml::Error),
}

/// A text that would take the parser minutes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BoundsError {
    /// It has too many bytes.
    #[error("the file is larger than 1 MiB, which no file of this kind needs; is it the right file?")]
    Bytes,
    /// It has too many brackets.
    #[error(
        "the file has more than {MAX_BRACKETS} opening brackets, which no file of this kind needs; is it the right file?"
    )]
    Brackets,
}

/// Rejects a text that would take the parser minutes.
fn check_bounds(text: &str) -> Result<(), BoundsError> {
    if text.len() > MAX_BYTES {
        return Err(BoundsError::Bytes);
    }
    if text.bytes().filter(|byte| matches!(byte, b'[' | b'{')).count() > MAX_BRACKETS {
        return Err(BoundsError::Brackets);
    }
    Ok(())
}

fn strip_position(message: &str) -> String {
    let end = message.find(" at line ").unwrap_or(message.len());
    message[..end].to_owned()
}

/// Suggests a fix for a line the parser rejects. It often notices a mistake on the next line.
fn suggest_fix(text: &str, error: &serde_yaml::Error) -> &'static str {
    let message = error.to_string();
    let Some(at) = error.location() else { return "" };
    let line = text.lines().nth(at.line().saturating_sub(1)).unwrap_or_default();
    let indent = line.len() - line.trim_start().len();
    if line[..indent].contains('\t') {
        "; YAML does not allow tabs for indentation: write two spaces for each tab"
    } else if holds_placeholder(line) {
        "; a text with {…} needs quotes, such as \"--out={run_dir}\""
    } else if message.starts_with("did not find expected key") {
        "; give this line and the one before the indentation of their section, and close quotes and brackets above"
    } else if message.starts_with("mapping values are not") {
        "; this line is indented too far, the one before lacks its colon, or a value with `: ` in it needs quotes"
    } else if message.starts_with("could not find expected ':'") {
        "; this line or the one before lacks its colon, as in `epochs: 60`"
    } else if message.contains("end of stream") {
        "; a quote or a bracket above is not closed"
    } else {
        ""
    }
}

/// Reports whether a line holds a name in braces outside quotes, such as `{run_dir}`.
fn holds_placeholder(line: &str) -> bool {
    let is_name = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '.'));
    let mut quote = None;
    line.char_indices().any(|(at, letter)| {
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (None, '"' | '\'') => quote = Some(letter),
            (None, '{') => return line[at + 1..].split_once('}').is_some_and(|(name, _)| is_name(name)),
            _ => {}
        }
        false
    })
}

/// Builds the tree and records what does not fit into it.
struct Walk<'a> {
    path: String,
    depth: usize,
    problems: &'a RefCell<Vec<Problem>>,
}

impl Walk<'_> {
    fn child<E: de::Error>(&self, path: String) -> Result<Self, E> {
        if self.depth >= MAX_DEPTH {
            return Err(E::custom(format!("nested more than {MAX_DEPTH} levels deep, which no run file needs")));
        }
        Ok(Self { path, depth: self.depth + 1, problems: self.problems })
    }

    fn report(&self, wrong: &str, fix: &str) {
        self.problems.borrow_mut().push(Problem::at(&self.path, wrong, fix));
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("YAML")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        if !value.is_finite() {
            self.report("not a finite number", "write a number");
        }
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = items.next_element_seed(self.child(format!("{}[{}]", self.path, values.len()))?)? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        let mut seen: HashMap<String, usize> = HashMap::new();
        while let Some(Key(key)) = entries.next_key()? {
            let path = if self.path.is_empty() { key.clone() } else { format!("{}.{key}", self.path) };
            let value = entries.next_value_seed(self.child(path.clone())?)?;
            let times = seen.entry(key.clone()).and_modify(|times| *times += 1).or_insert(0);
            if *times > 0 {
                let twice = Problem::at(path, "duplicate key", "keep one of the two");
                self.problems.borrow_mut().push(Problem { part: Part::Key(*times), ..twice });
            } else {
                map.insert(key, value);
            }
        }
        Ok(map.into())
    }

    fn visit_enum<A: EnumAccess<'de>>(self, tagged: A) -> Result<Value, A::Error> {
        self.report("YAML tags (`!…`) are not supported", "remove the tag");
        let path = self.path.clone();
        let (_, content) = tagged.variant::<String>()?;
        content.newtype_variant_seed(Self { path, depth: self.depth, problems: self.problems })
    }
}

/// A key of any type, as text.
struct Key(String);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(KeyText).map(Self)
    }
}

struct KeyText;

impl Visitor<'_> for KeyText {
    type Value = String;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a word as key")
    }

    fn visit_str<E>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::{Part, locate, parse, parse_scalar};
    use serde_json::json;

    const TEXT: &str = "name: x\ntraining:\n  micro_batch: 2.5\n  seed: 1\n  seed: 2\nladder:\n  - { name: a }\n  - name: b\n    set: { training.lr: 3 }\n";

    #[test]
    fn positions_are_those_of_values_and_second_keys() {
        assert_eq!(locate(TEXT, "name", Part::Value), (1, 7));
        assert_eq!(locate(TEXT, "training.micro_batch", Part::Value), (3, 16));
        assert_eq!(locate(TEXT, "training.seed", Part::Key(1)), (5, 3));
        assert_eq!(locate(TEXT, "ladder[1].name", Part::Value), (8, 11));
        assert_eq!(locate(TEXT, "ladder[1].set.training.lr", Part::Value), (9, 25));
        assert_eq!(locate(TEXT, "training.seed", Part::Key(0)), (4, 3));
        assert_eq!(locate(TEXT, "ladder[1].set.training.lr", Part::Key(0)), (9, 12));
    }

    #[test]
    fn a_name_in_braces_without_quotes_is_told_to_need_them() {
        let said = |line: &str| parse(&format!("command: [python, {line}\n")).unwrap_err().message;
        for bare in ["--out={run_dir}]", "'a', --lr={optimizer.lr}]"] {
            assert!(said(bare).contains("needs quotes, such as \"--out={run_dir}\""), "{bare}: {}", said(bare));
        }
        for other in ["\"--out={run_dir}\"", "'{checkpoint}'", "x: {a: 1}", "{"] {
            assert!(!said(other).contains("needs quotes"), "{other}: {}", said(other));
        }
    }

    #[test]
    fn a_missing_path_points_at_the_nearest_key_above() {
        assert_eq!(locate(TEXT, "training.absent", Part::Value), (2, 1));
        assert_eq!(locate(TEXT, "ladder[0].absent", Part::Value), locate(TEXT, "ladder[0]", Part::Value));
        assert_eq!(locate(TEXT, "nowhere.at.all", Part::Value), (1, 1));
    }

    #[test]
    fn duplicates_tags_and_nan_are_found_all_at_once() {
        let (tree, problems) = parse("a: 1\na: 2\nb: !odd 3\nc: .nan\nd: { e: 1, e: 2 }\n").unwrap();
        let paths: Vec<_> = problems.iter().map(|problem| problem.path.as_str()).collect();
        assert_eq!(paths, ["a", "b", "c", "d.e"]);
        assert_eq!(tree["a"], json!(1));
        assert_eq!(tree["b"], json!(3));
    }

    #[test]
    fn invalid_yaml_is_located() {
        assert_eq!(parse("a: [1,\n").unwrap_err().place.0, 2);
        assert!(parse("").unwrap_err().message.contains("empty"));
        let tab = parse("training:\n\tepochs: 2\n").unwrap_err();
        assert!(tab.place.0 == 2 && tab.message.contains("two spaces for each tab"), "{tab:?}");
        for (text, fix) in [
            ("optimizer:\n  lr: 1\n   decay: 2\n  max_norm: 1\n", "is indented too far"),
            ("optimizer:\n   lr: 1\n  decay: 2\n", "the indentation of their section"),
            ("data:\n  size 28\n  source: x\n", "lacks its colon"),
            ("data:\n  source: \"x\n  size: 28\n", "is not closed"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.message.contains(fix), "{error:?}");
        }
        assert!(parse("a: 1\n---\nb: 2\n").is_err());
    }

    #[test]
    fn deep_nesting_is_refused_at_once() {
        let begun = std::time::Instant::now();
        let deep = |opening: &str, times| parse(&format!("a: {}", opening.repeat(times))).unwrap_err();
        assert!(deep("[", 200_000).message.contains("brackets"));
        assert!(deep("{a: ", 200_000).message.contains("brackets"));
        // With fewer brackets, or none, the walk itself stops.
        assert!(deep("[", 8_000).message.contains("nested"));
        let in_words = parse(&(0..100).map(|depth| " ".repeat(depth) + "a:\n").collect::<String>()).unwrap_err();
        assert!(in_words.message.contains("more than 32 levels"), "{in_words:?}");
        for opening in ["- ", "? ", "!a ", "&a "] {
            let _ = parse(&opening.repeat(250_000));
        }
        assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
    }

    #[test]
    fn values_from_the_command_line_are_typed() {
        assert_eq!(parse_scalar("2"), json!(2));
        assert_eq!(parse_scalar("true"), json!(true));
        assert_eq!(parse_scalar("30 s"), json!("30 s"));
        assert_eq!(parse_scalar(""), json!(""));
    }
}
