//! Reads the arguments that `--help` lists, as argparse, click and tyro print them.

use super::flag::{Declared, Flag, Library, Takes, ValueKind};
use super::python::Literal;

/// Maximum lines read.
const LINES: usize = 20_000;

/// Reads a help text.
pub fn read_help(text: &str) -> Declared {
    let mut declared = Declared::default();
    let mut entry: Option<(String, String)> = None;
    for line in text.lines().take(LINES) {
        let line = line.trim_end().trim_matches(['│', '┃', '|']);
        let words = line.trim_start();
        if line.starts_with(' ') && words.starts_with('-') && words.len() > 1 {
            add_entry(&mut declared, entry.take());
            let (spec, help) = words.split_once("  ").unwrap_or((words, ""));
            entry = Some((spec.to_owned(), help.to_owned()));
        } else if let Some((_, help)) = &mut entry {
            if words.is_empty() || !line.starts_with("    ") {
                add_entry(&mut declared, entry.take());
            } else {
                help.push(' ');
                help.push_str(words);
            }
        }
    }
    add_entry(&mut declared, entry);
    declared
}

fn add_entry(declared: &mut Declared, entry: Option<(String, String)>) {
    let Some((spec, help)) = entry else { return };
    if let Some(flag) = read_entry(&spec, &help) {
        declared.add(Library::Help, flag);
    }
}

/// Reads `-b N, --batch-size N` and its help.
fn read_entry(spec: &str, help: &str) -> Option<Flag> {
    let (choices, spec) = take_choices(spec);
    let mut names = Vec::new();
    let mut metavar = String::new();
    for word in spec.split([' ', ',', '=']).filter(|word| !word.is_empty()) {
        if word.starts_with('-') {
            names.extend(word.split('/').map(str::to_owned));
        } else if !metavar.is_empty() {
            metavar.push(' ');
            metavar.push_str(word);
        } else {
            word.clone_into(&mut metavar);
        }
    }
    names.retain(|name| name.starts_with('-'));
    let long = names.iter().find(|name| name.starts_with("--")).or(names.first())?.clone();
    if ["--help", "-h", "--version"].contains(&long.as_str()) {
        return None;
    }
    let key = long.trim_start_matches('-').replace('-', "_");
    let default = default_in(help);
    let off = names.iter().position(|name| *name == format!("--no-{}", long.trim_start_matches('-')));
    let takes = match off {
        Some(off) => Takes::Pair { off: names.remove(off) },
        None if !choices.is_empty() => Takes::Value(ValueKind::Text),
        None if metavar.is_empty() => Takes::Presence(true),
        None if metavar.contains("...") => Takes::Values,
        None if metavar.starts_with('[') => Takes::OptionalBoolean,
        None => Takes::Value(value_kind(&metavar, default.as_ref())),
    };
    let is_switch = matches!(takes, Takes::Presence(_) | Takes::Pair { .. });
    let default = if is_switch && default.is_none() { Some(Literal::Bool(false)) } else { default };
    Some(Flag { names, key, takes, default, choices, subcommand: None })
}

/// Takes `{a,b}` or click's `[a|b]` out of a specification.
fn take_choices(spec: &str) -> (Vec<String>, String) {
    for (open, close, between) in [('{', '}', ','), ('[', ']', '|')] {
        if let Some((before, rest)) = spec.split_once(open)
            && let Some((inside, after)) = rest.split_once(close)
            && inside.contains(between)
        {
            let choices = inside.split(between).map(|choice| choice.trim().to_owned()).collect();
            // argparse repeats the choices for each spelling.
            let rest = after.rsplit_once(close).map_or(after, |(_, after)| after);
            let names = after.split([' ', ',']).filter(|word| word.starts_with('-')).collect::<Vec<_>>().join(" ");
            return (choices, format!("{before} {names} {}", if names.is_empty() { rest } else { "" }));
        }
    }
    (Vec::new(), spec.to_owned())
}

fn value_kind(metavar: &str, default: Option<&Literal>) -> ValueKind {
    match metavar {
        "INTEGER" | "INT" => ValueKind::Integer,
        "FLOAT" => ValueKind::Number,
        "BOOLEAN" | "{True,False}" => ValueKind::Boolean,
        _ => ValueKind::of_default(default),
    }
}

/// Reads `(default: 0.1)` and `[default: 0.1; required]`.
fn default_in(help: &str) -> Option<Literal> {
    let (_, rest) = help.rsplit_once("default: ")?;
    let text = rest.split([')', ']', ';']).next()?.trim().trim_matches(['\'', '"']);
    let number = || text.parse().ok().filter(|number: &f64| number.is_finite()).map(Literal::Float);
    Some(match text {
        "None" => Literal::None,
        "True" => Literal::Bool(true),
        "False" => Literal::Bool(false),
        _ => text.parse().ok().map(Literal::Int).or_else(number).unwrap_or_else(|| Literal::Text(text.to_owned())),
    })
}

#[cfg(test)]
mod tests {
    use super::read_help;
    use crate::init::flag::{Takes, ValueKind};
    use crate::init::python::Literal;
    use proptest::prelude::*;

    #[test]
    fn usage_of_argparse_click_and_hugging_face_is_read() {
        let text = "usage: train.py [-h] [--lr LR]\n\nTrains.\n\noptions:\n  -h, --help            show this\n  \
                    -b N, --batch-size N  samples per step (default: 32)\n  --opt {sgd,adam}      the optimizer\n                        \
                    (default: adam)\n  --compile, --no-compile\n  --fp16 [FP16]         half (default: False)\n  \
                    --lr FLOAT            Rate.  [default: 0.001]\n  --files F [F ...]\n  --quiet               less\n";
        let declared = read_help(text);
        let read: Vec<_> =
            declared.flags.iter().map(|flag| (flag.spelling(), flag.takes.clone(), flag.default.clone())).collect();
        let int = Takes::Value(ValueKind::Integer);
        let wanted = [
            ("--batch-size", int, Some(Literal::Int(32))),
            ("--opt", Takes::Value(ValueKind::Text), Some(Literal::Text("adam".to_owned()))),
            ("--compile", Takes::Pair { off: "--no-compile".to_owned() }, Some(Literal::Bool(false))),
            ("--fp16", Takes::OptionalBoolean, Some(Literal::Bool(false))),
            ("--lr", Takes::Value(ValueKind::Number), Some(Literal::Float(0.001))),
            ("--files", Takes::Values, None),
            ("--quiet", Takes::Presence(true), Some(Literal::Bool(false))),
        ];
        assert_eq!(read, wanted);
        assert_eq!(declared.flags[1].choices, ["sgd", "adam"]);
    }

    proptest! {
        #[test]
        fn no_text_brings_it_down(text in "(?s)[ \\-a-z{}\\[\\],|=/.\n│]{0,300}") {
            read_help(&text);
        }
    }
}
