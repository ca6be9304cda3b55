use super::{Format, PatchError, SettingsFile, SyntaxError};
use proptest::prelude::*;
use serde_json::{Value, json};

const TOML: &str = "# kohya\ntrain_batch_size = 4 # small\nlearning_rate = 1e-4\nmixed_precision = \"fp16\"\n\n[network]\ndim = 16\n\
    name = 'a'\nlist = [1, 2]\n\n[[subsets]]\nrepeats = 10\n";
const YAML: &str = "# ai-toolkit\nconfig:\n  name: \"run\"  # named\n  process:\n    - type: sd\n      train:\n        batch_size: 4\n        \
    lr: 1e-4\n        decay: 0.01\n        flags: {on: yes, word: bf16}\n        sizes: [1, 2]\n        quoted: '1e-3'\nlast: null\n";
const JSON: &str = "{\n  \"per_device_train_batch_size\": 8,\n  \"learning_rate\": 5e-05,\n  \"fp16\": true,\n  \"smile\": \"\\ud83d\\ude00\",\n  \"list\": [1, {\"deep\": 2.5}]\n}\n";

fn file(text: &str, format: Format) -> SettingsFile {
    SettingsFile::parse(text.to_owned(), format).unwrap()
}

fn patch(text: &str, format: Format, set: &[(&str, Value)]) -> Result<String, PatchError> {
    let set: Vec<(String, Value)> = set.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    file(text, format).patch(&set).map(|patched| patched.text)
}

#[test]
fn only_the_bytes_of_a_value_change_and_its_type_and_form_stay() {
    let cases: [(&str, Format, &str, Value, &str, &str); 20] = [
        (TOML, Format::Toml, "train_batch_size", json!(2), "= 4 # small", "= 2 # small"),
        (TOML, Format::Toml, "learning_rate", json!(5e-5), "1e-4", "5e-5"),
        (TOML, Format::Toml, "learning_rate", json!(1), "1e-4", "1.0"),
        (TOML, Format::Toml, "mixed_precision", json!("no"), "\"fp16\"", "\"no\""),
        (TOML, Format::Toml, "network.dim", json!(8.0), "dim = 16", "dim = 8"),
        (TOML, Format::Toml, "network.name", json!("b\\c"), "'a'", "'b\\c'"),
        (TOML, Format::Toml, "network.list", json!([3, 4.5]), "[1, 2]", "[3, 4.5]"),
        (TOML, Format::Toml, "subsets[0].repeats", json!(5), "repeats = 10", "repeats = 5"),
        (YAML, Format::Yaml, "config.name", json!("it's"), "\"run\"  # named", "\"it's\"  # named"),
        (YAML, Format::Yaml, "config.process[0].train.batch_size", json!(2), "batch_size: 4", "batch_size: 2"),
        (YAML, Format::Yaml, "config.process[0].train.lr", json!(5e-5), "lr: 1e-4", "lr: 5e-5"),
        (YAML, Format::Yaml, "config.process[0].train.decay", json!(5e-5), "decay: 0.01", "decay: 5.0e-5"),
        (YAML, Format::Yaml, "config.process[0].train.flags.on", json!(false), "on: yes,", "on: no,"),
        (YAML, Format::Yaml, "config.process[0].train.flags.word", json!("no"), "word: bf16}", "word: \"no\"}"),
        (YAML, Format::Yaml, "config.process[0].train.sizes", json!([0.5]), "[1, 2]", "[0.5]"),
        (YAML, Format::Yaml, "config.process[0].train.quoted", json!(5e-4), "'1e-3'", "'5e-4'"),
        (YAML, Format::Yaml, "last", json!(3), "last: null", "last: 3"),
        (JSON, Format::Json, "per_device_train_batch_size", json!(4), ": 8", ": 4"),
        (JSON, Format::Json, "learning_rate", json!(2.5e-5), "5e-05", "2.5e-5"),
        (JSON, Format::Json, "list[1].deep", json!(3), "2.5", "3.0"),
    ];
    for (text, format, key, value, old, new) in cases {
        let patched = patch(text, format, &[(key, value.clone())]).unwrap_or_else(|error| panic!("{key}: {error}"));
        assert_eq!(patched, text.replacen(old, new, 1), "{key} = {value}");
    }
}

#[test]
fn the_value_that_the_file_has_keeps_its_bytes() {
    for (text, format) in [(TOML, Format::Toml), (YAML, Format::Yaml), (JSON, Format::Json)] {
        let leaves = file(text, format).leaves();
        assert!(leaves.len() >= 6, "{leaves:?}");
        let patched = file(text, format).patch(&leaves).unwrap();
        assert_eq!((patched.text.as_str(), patched.replaced.len()), (text, 0));
    }
    assert_eq!(patch(YAML, Format::Yaml, &[("config.process[0].train.lr", json!(0.0001))]).unwrap(), YAML);
}

#[test]
fn a_wrong_type_is_refused_with_its_place_and_a_wrong_path_with_the_nearest() {
    let places = [
        (TOML, Format::Toml, "train_batch_size", json!("x"), (2, 20)),
        (TOML, Format::Toml, "train_batch_size", json!(2.5), (2, 20)),
        (YAML, Format::Yaml, "config.process[0].train.batch_size", json!(true), (7, 21)),
        (JSON, Format::Json, "fp16", json!("no"), (4, 11)),
    ];
    for (text, format, key, value, at) in places {
        let error = patch(text, format, &[(key, value)]).unwrap_err();
        assert!(matches!(&error, PatchError::Type { place, .. } if *place == at), "{error:?}");
    }
    let error = patch(TOML, Format::Toml, &[("network.dimm", json!(1))]).unwrap_err().to_string();
    assert_eq!(error, "it has no key `network.dimm`; did you mean `network.dim`?");
    let error = patch(YAML, Format::Yaml, &[("train.batch_size", json!(1))]).unwrap_err().to_string();
    assert!(error.ends_with("did you mean `config.process[0].train.batch_size`?"), "{error}");
    let error = patch(TOML, Format::Toml, &[("network", json!(1))]).unwrap_err().to_string();
    assert_eq!(error, "`network` is a section, which cannot be set");
}

#[test]
fn what_cannot_be_replaced_is_refused() {
    let text = "base: &b 3\nsame: *b\nempty:\nlong: |\n  a\n  b\nday: !!str 3\nrows:\n- 1\n- 2\n";
    for key in ["same", "empty", "long", "day", "rows"] {
        let value = if key == "rows" { json!([3]) } else { json!(4) };
        assert!(patch(text, Format::Yaml, &[(key, value)]).is_err(), "{key}");
    }
    assert_eq!(patch(text, Format::Yaml, &[("rows[1]", json!(5))]).unwrap(), text.replace("- 2", "- 5"));
    assert_eq!(patch(text, Format::Yaml, &[("base", json!(4))]).unwrap(), text.replace("&b 3", "&b 4"));
    let broken = |text: &str, format| SettingsFile::parse(text.to_owned(), format).unwrap_err();
    for (text, format, at) in [
        ("a = 1\nb = = 2\n", Format::Toml, 2),
        ("a: 1\nb: [1\n", Format::Yaml, 3),
        ("{\n\"a\": 1,,\n}", Format::Json, 2),
    ] {
        let SyntaxError { place, message, .. } = broken(text, format);
        assert!((1..=at).contains(&place.0) && !message.is_empty(), "{format}: {place:?} {message}");
    }
}

proptest! {
    /// Whatever the text holds around a value, only the value changes.
    #[test]
    fn a_text_in_yaml_keeps_everything_else(word in "[a-zä-ü ]{0,8}", number in -1000i64..1000, new in -1000i64..1000) {
        let text = format!("# {word}\nä: '{word}'   # {word}\nlist: [{{x: {number}, y: \"{word}\"}}] # é\r\nz: {number}\n");
        let patched = patch(&text, Format::Yaml, &[("list[0].x", json!(new)), ("z", json!(new))]).unwrap();
        prop_assert_eq!(patched, text.replace(&format!("x: {number},"), &format!("x: {new},"))
            .replace(&format!("\nz: {number}\n"), &format!("\nz: {new}\n")));
    }
}
