//! Values as a settings file writes them: a new value keeps the type and the form of the old one.

use super::Format;
use super::yaml::read_plain;
use serde_json::Value;

/// Words for true and false that YAML knows.
const SWITCHES: [(&str, &str); 9] = [
    ("true", "false"),
    ("True", "False"),
    ("TRUE", "FALSE"),
    ("yes", "no"),
    ("Yes", "No"),
    ("YES", "NO"),
    ("on", "off"),
    ("On", "Off"),
    ("ON", "OFF"),
];

/// Reports whether two values mean the same to a script: `4` and `4.0`, `"1e-4"` and `0.0001`.
#[must_use]
pub fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_same(one, other))
        }
        (Value::Number(_), Value::Number(_) | Value::String(_)) | (Value::String(_), Value::Number(_)) => {
            number_of(one).is_some_and(|number| number_of(other) == Some(number))
        }
        _ => one == other,
    }
}

fn number_of(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok().filter(|number: &f64| number.is_finite()),
        _ => None,
    }
}

/// Names the type of a value.
pub(super) fn name_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(number) if number.is_f64() => "a number",
        Value::Number(_) => "a whole number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a section",
    }
}

/// Writes a new value in the form of the old one; `None` if it is of another type.
pub(super) fn convert(old: &Value, written: &str, new: &Value, format: Format) -> Option<String> {
    match (old, new) {
        (_, Value::Null | Value::Object(_)) => None,
        (Value::Null, new) => Some(write(new, format)),
        (Value::Bool(_), Value::Bool(on)) => Some(write_switch(written, *on).to_owned()),
        (Value::Number(old), Value::Number(new)) if old.is_f64() => Some(write_float(new.as_f64()?, written, format)),
        (Value::Number(_), Value::Number(new)) => whole(new).map(|number| number.to_string()),
        (Value::String(old), Value::Number(new)) => {
            let is_whole = old.trim().parse::<i64>().is_ok();
            let number = match (is_whole, whole(new)) {
                (true, Some(number)) => number.to_string(),
                (true, None) => return None,
                (false, _) => write_float(new.as_f64().filter(|_| old.trim().parse::<f64>().is_ok())?, old, format),
            };
            Some(write_text(&number, written, format))
        }
        (Value::String(_), Value::String(new)) => Some(write_text(new, written, format)),
        (Value::Array(_), Value::Array(_)) => Some(write(new, format)),
        _ => None,
    }
}

fn whole(number: &serde_json::Number) -> Option<i64> {
    let rounded = || number.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 1e15).map(|it| it as i64);
    number.as_i64().or_else(rounded)
}

fn write_switch(written: &str, on: bool) -> &'static str {
    let pair = SWITCHES.iter().find(|(yes, no)| [*yes, *no].contains(&written)).unwrap_or(&SWITCHES[0]);
    if on { pair.0 } else { pair.1 }
}

/// Writes a number with a fraction. PyYAML reads one with an exponent as text unless it has a point, so that form is kept.
fn write_float(number: f64, like: &str, format: Format) -> String {
    let has_exponent = number != 0.0 && !(1e-4..1e16).contains(&number.abs());
    if !(has_exponent || like.contains(['e', 'E']) && number.abs() < 1e-3) {
        return format!("{number:?}");
    }
    let short = format!("{number:e}");
    let (digits, exponent) = short.split_once('e').unwrap_or((&short, "0"));
    let keeps_form = format != Format::Yaml || like.contains(['e', 'E']) && !like.contains('.');
    let digits = if keeps_form || digits.contains('.') { digits.to_owned() } else { format!("{digits}.0") };
    let sign = if exponent.starts_with('-') { "" } else { "+" };
    format!("{digits}e{sign}{exponent}")
}

fn write_text(text: &str, written: &str, format: Format) -> String {
    let quoted = || Value::from(text).to_string();
    match (format, written.chars().next()) {
        (Format::Yaml, Some('\'')) if !text.contains('\n') => format!("'{}'", text.replace('\'', "''")),
        (Format::Yaml, Some('"')) | (Format::Json, _) => quoted(),
        (Format::Yaml, _) if is_plain(text) || is_number_in_both(text, written) => text.to_owned(),
        (Format::Toml, Some('\'')) if !text.contains(['\'', '\n', '\r']) && !written.starts_with("'''") => {
            format!("'{text}'")
        }
        _ => quoted(),
    }
}

/// Reports whether a text without quotes is that text in YAML, wherever it stands.
fn is_plain(text: &str) -> bool {
    text.starts_with(|letter: char| letter.is_ascii_alphabetic() || "./_".contains(letter))
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_./+=".contains(letter))
        && read_plain(text).is_string()
        && !["y", "Y", "n", "N"].contains(&text)
}

fn is_number_in_both(text: &str, written: &str) -> bool {
    text.parse::<f64>().is_ok() && written.parse::<f64>().is_ok()
}

/// Writes a value on one line.
pub(super) fn write(value: &Value, format: Format) -> String {
    match value {
        Value::Number(number) if number.is_f64() => {
            number.as_f64().map_or_else(String::new, |number| write_float(number, ".", format))
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| write(item, format)).collect();
            format!("[{}]", items.join(", "))
        }
        other => other.to_string(),
    }
}
