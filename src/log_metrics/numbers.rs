//! The numbers that a program prints to be measured by: `name value`, `name=value`, `name: value`, or JSON objects.
//! A line of any other form is not one of them.

use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Returns the numbers in a text by name, the last of each name. NaN and infinity stay.
#[must_use]
pub fn read_numbers(text: &str) -> BTreeMap<String, f64> {
    // An object may be written over several lines.
    if let Ok(object) = serde_json::from_str::<Map<String, Value>>(text.trim()) {
        return numbers_of(&object).collect();
    }
    let mut numbers = BTreeMap::new();
    for line in text.lines().map(str::trim) {
        match serde_json::from_str::<Map<String, Value>>(line) {
            Ok(object) => numbers.extend(numbers_of(&object)),
            Err(_) => numbers.extend(read_line(line)),
        }
    }
    numbers
}

fn numbers_of(object: &Map<String, Value>) -> impl Iterator<Item = (String, f64)> {
    object.iter().filter_map(|(name, value)| Some((name.clone(), value.as_f64()?)))
}

/// Returns a name and its value: two words, or two parts around `=` or `:`.
fn read_line(line: &str) -> Option<(String, f64)> {
    let (name, value) = line.split_once('=').or_else(|| line.rsplit_once(": ")).or_else(|| line.split_once(' '))?;
    let (name, value) = (name.trim(), value.trim());
    let is_name = !name.is_empty() && !name.contains(char::is_whitespace);
    value.parse().ok().filter(|_| is_name).map(|value| (name.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::read_numbers;

    fn read(text: &str) -> Vec<(String, f64)> {
        read_numbers(text).into_iter().collect()
    }

    #[test]
    fn each_form_is_read_and_everything_else_is_left() {
        let pairs = |list: &[(&str, f64)]| list.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        let all: [(&str, Vec<(String, f64)>); 10] = [
            ("fid 12.5\n", pairs(&[("fid", 12.5)])),
            ("fid=12.5\nclip = 0.31\n", pairs(&[("clip", 0.31), ("fid", 12.5)])),
            ("val/fid: -1e-3\r\n", pairs(&[("val/fid", -1e-3)])),
            ("fid   3", pairs(&[("fid", 3.0)])),
            (
                "{\"fid\": 3, \"clip\": 0.5, \"model\": \"x\", \"more\": {\"a\": 1}}",
                pairs(&[("clip", 0.5), ("fid", 3.0)]),
            ),
            ("{\n  \"fid\": 3\n}\n", pairs(&[("fid", 3.0)])),
            ("loading the model\n{\"fid\": 3}\ndone in 3 s\n", pairs(&[("fid", 3.0)])),
            ("fid 1\nfid 2\n", pairs(&[("fid", 2.0)])),
            ("100%|####| 3/3 [00:01]\nscore of 3\n= 3\n\u{1b}[2J\n{\"fid\"\n", pairs(&[])),
            ("", pairs(&[])),
        ];
        for (text, expected) in all {
            assert_eq!(read(text), expected, "{text:?}");
        }
        assert!(read("fid nan")[0].1.is_nan() && read("fid=inf")[0].1.is_infinite());
    }
}
