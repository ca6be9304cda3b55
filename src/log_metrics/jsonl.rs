//! JSON objects, one a line; also the JSON that W&B and trackio store. NaN and infinity appear as the bare words
//! that Python writes, or as text.

use super::Reading;
use super::record::Record;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// Reads a line; none if it is not an object with numbers.
pub fn read_line(line: &str) -> Option<Reading> {
    let object = parse_object(line)?;
    let mut record = Record::default();
    add_object(&mut record, "", &object);
    record.finish()
}

/// Parses an object that may contain Python's NaN and Infinity.
pub fn parse_object(text: &str) -> Option<Map<String, Value>> {
    serde_json::from_str(text).or_else(|_| serde_json::from_str(&quote_special(text))).ok()
}

/// Adds the numbers of an object; those of objects within it are named `outer/inner`.
pub fn add_object(record: &mut Record, outer: &str, object: &Map<String, Value>) {
    for (key, value) in object {
        let name = if outer.is_empty() { Cow::Borrowed(key.as_str()) } else { Cow::Owned(format!("{outer}/{key}")) };
        match value {
            Value::Object(inner) if outer.is_empty() => add_object(record, &name, inner),
            value => {
                if let Some(value) = number(value) {
                    record.add(&name, value);
                }
            }
        }
    }
}

/// Returns a number, or the text of one that JSON cannot write.
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => special(text),
        _ => None,
    }
}

/// Reads `NaN`, `Infinity` and `-Infinity`.
pub fn special(text: &str) -> Option<f64> {
    match text.trim().to_ascii_lowercase().as_str() {
        "nan" | "-nan" => Some(f64::NAN),
        "inf" | "infinity" | "+inf" => Some(f64::INFINITY),
        "-inf" | "-infinity" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// Puts bare NaN and Infinity into quotes.
fn quote_special(text: &str) -> String {
    let (mut out, mut rest, mut in_string) = (String::with_capacity(text.len() + 16), text, false);
    while let Some(letter) = rest.chars().next() {
        let word = ["-Infinity", "Infinity", "NaN"].into_iter().find(|word| !in_string && rest.starts_with(word));
        let taken = match word {
            Some(word) => {
                out.extend(["\"", word, "\""]);
                word.len()
            }
            None if in_string && letter == '\\' => {
                let escaped = rest.chars().take(2).map(char::len_utf8).sum();
                out.push_str(&rest[..escaped]);
                escaped
            }
            None => {
                in_string ^= letter == '"';
                out.push(letter);
                letter.len_utf8()
            }
        };
        rest = &rest[taken..];
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{quote_special, read_line};

    #[test]
    fn objects_are_readings() {
        let reading = read_line(
            r#"{"global_step": 20, "_step": 3, "epoch": 0.5, "train": {"loss": NaN, "note": "x"}, "lr": 1e-4}"#,
        )
        .unwrap();
        assert_eq!((reading.step, reading.epoch), (Some(20), Some(0.5)));
        assert!(reading.value("loss").is_some_and(f64::is_nan));
        assert_eq!(reading.value("lr"), Some(1e-4));
        // LLaMA-Factory's trainer_log.jsonl.
        let text = r#"{"current_steps": 5, "total_steps": 90, "loss": 1.5, "lr": 5e-05, "epoch": 0.1, "percentage": 5.56, "elapsed_time": "0:00:04"}"#;
        let reading = read_line(text).unwrap();
        assert_eq!((reading.step, reading.total_steps, reading.value("loss")), (Some(5), Some(90), Some(1.5)));
        let reading = read_line(r#"{"step": 4, "loss": "Infinity", "name": "NaN is fine"}"#).unwrap();
        assert_eq!((reading.step, reading.values), (Some(4), vec![("loss".to_owned(), f64::INFINITY)]));
    }

    #[test]
    fn other_lines_are_none() {
        for text in
            ["", "[1, 2]", "3", "{\"loss\": 2", "{\"a\": {\"b\": {\"loss\": 1}}}", "{\"step\": 4}", &"[".repeat(10_000)]
        {
            assert_eq!(read_line(text), None, "{text}");
        }
    }

    #[test]
    fn only_bare_words_are_quoted() {
        let text = r#"{"NaN": NaN, "a\"NaN": [-Infinity, "Infinity"]}"#;
        assert_eq!(quote_special(text), r#"{"NaN": "NaN", "a\"NaN": ["-Infinity", "Infinity"]}"#);
    }
}
