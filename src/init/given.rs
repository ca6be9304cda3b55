//! The arguments of a command, matched with those that its script accepts.

use super::flag::{Flag, Takes, ValueKind};
use super::python::Literal;
use std::collections::HashMap;

/// An argument on the command line.
#[derive(Debug, Clone, PartialEq)]
pub struct Given {
    /// Its value.
    pub value: Literal,
    /// Where it is.
    pub place: Place,
}

/// Where an argument's value is, as indexes into the script's arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// `--lr=1e-3`.
    Joined(usize),
    /// `1e-3`, after `--lr`.
    After(usize),
    /// `--fp16`.
    Alone(usize),
}

/// Matches arguments with flags: the last one of each flag, by the flag's index.
pub fn match_arguments(arguments: &[String], flags: &[Flag]) -> HashMap<usize, Given> {
    let spellings = spellings(arguments, flags);
    let mut given = HashMap::new();
    let mut at = 0;
    while let Some(argument) = arguments.get(at).filter(|argument| *argument != "--") {
        at += 1;
        if !argument.starts_with('-') {
            given.extend(
                match_pair(argument, &spellings, flags)
                    .map(|(index, value)| (index, Given { value, place: Place::Joined(at - 1) })),
            );
            continue;
        }
        let (name, joined) =
            argument.split_once('=').map_or((argument.as_str(), None), |(name, value)| (name, Some(value)));
        let Some((index, is_off)) = find(&spellings, name) else { continue };
        let next = arguments.get(at).filter(|next| is_value(next)).map(String::as_str);
        let here = at - 1;
        let read = |kind, text: &str| read_value(kind, text);
        let (value, place) = match (&flags[index].takes, joined, next) {
            (Takes::Presence(sets), ..) => (Literal::Bool(*sets), Place::Alone(here)),
            (Takes::Value(kind) | Takes::Assignment(kind), Some(text), _) => (read(*kind, text), Place::Joined(here)),
            (Takes::OptionalBoolean, Some(text), _) => (read(ValueKind::Boolean, text), Place::Joined(here)),
            (Takes::OptionalBoolean, None, Some(text)) if is_boolean(text) => {
                (read(ValueKind::Boolean, text), Place::After(at))
            }
            (Takes::Pair { .. }, ..) | (Takes::OptionalBoolean, None, _) => {
                (Literal::Bool(!is_off), Place::Alone(here))
            }
            (Takes::Value(kind), None, Some(text)) => (read(*kind, text), Place::After(at)),
            (
                Takes::Value(_)
                | Takes::Values
                | Takes::Assignment(_)
                | Takes::KeyValue { .. }
                | Takes::Setting { .. }
                | Takes::Constant { .. },
                ..,
            ) => {
                continue;
            }
        };
        if matches!(place, Place::After(_)) {
            at += 1;
        }
        given.insert(index, Given { value, place });
    }
    given
}

/// Reads a word `key=value`.
fn match_pair(word: &str, spellings: &HashMap<&str, (usize, bool)>, flags: &[Flag]) -> Option<(usize, Literal)> {
    let (key, value) = word.trim_start_matches('+').split_once('=')?;
    let (index, _) = spellings.get(key)?;
    let Takes::KeyValue { kind, .. } = &flags[*index].takes else { return None };
    Some((*index, read_value(*kind, value)))
}

/// Returns the long options that no flag has, as they are given.
pub fn undeclared_options<'a>(arguments: &'a [String], flags: &[Flag]) -> Vec<&'a str> {
    let spellings = spellings(arguments, flags);
    let known = |name: &str| name == "--help" || spellings.keys().any(|spelling| spelling.starts_with(name));
    let options = arguments.iter().take_while(|argument| *argument != "--").filter(|word| word.starts_with("--"));
    let names = options.map(|word| word.split_once('=').map_or(word.as_str(), |(name, _)| name));
    // The name of a placeholder is not known yet.
    names.filter(|name| !name.contains('{') && !known(name)).collect()
}

/// Returns every spelling with its flag, and whether it turns the flag off. Flags of a subcommand that the command does
/// not name are left out.
fn spellings<'a>(arguments: &[String], flags: &'a [Flag]) -> HashMap<&'a str, (usize, bool)> {
    let mut spellings = HashMap::new();
    for (index, flag) in flags.iter().enumerate().filter(|(_, flag)| is_selected(flag, arguments)) {
        spellings.extend(flag.names.iter().map(|name| (name.as_str(), (index, false))));
        if let Takes::Pair { off } = &flag.takes {
            spellings.insert(off.as_str(), (index, true));
        }
    }
    spellings
}

/// Reports whether a flag belongs to no subcommand, or to one that the command names.
pub fn is_selected(flag: &Flag, arguments: &[String]) -> bool {
    flag.subcommand.as_ref().is_none_or(|name| arguments.contains(name))
}

/// Finds a spelling, or the only one that begins with `name`, as argparse does.
fn find(spellings: &HashMap<&str, (usize, bool)>, name: &str) -> Option<(usize, bool)> {
    if let Some(found) = spellings.get(name) {
        return Some(*found);
    }
    let mut longer =
        spellings.iter().filter(|(spelling, _)| name.len() > 3 && spelling.starts_with(name)).map(|(_, found)| *found);
    let first = longer.next()?;
    longer.all(|other| other == first).then_some(first)
}

/// Reports whether an argument is a value: a negative number is one, an option is not.
fn is_value(argument: &str) -> bool {
    !argument.starts_with('-') || argument.parse::<f64>().is_ok()
}

fn is_boolean(text: &str) -> bool {
    ["true", "false", "yes", "no", "1", "0", "t", "f", "y", "n"].contains(&text.to_ascii_lowercase().as_str())
}

fn read_value(kind: ValueKind, text: &str) -> Literal {
    let number = || text.parse().ok().filter(|number: &f64| number.is_finite()).map(Literal::Float);
    let value = match kind {
        ValueKind::Integer => text.parse().ok().map(Literal::Int),
        ValueKind::Number => number(),
        ValueKind::Boolean if is_boolean(text) => {
            Some(Literal::Bool(["true", "yes", "1", "t", "y"].contains(&text.to_ascii_lowercase().as_str())))
        }
        ValueKind::Boolean | ValueKind::Text => None,
    };
    value.unwrap_or_else(|| Literal::Text(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::undeclared_options;
    use crate::init::declared_arguments;
    use crate::init::program::Program;

    #[test]
    fn options_that_the_source_does_not_declare_are_found() {
        let program = Program::of(
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('--resume-from')\n\
             p.add_argument('--amp', action=argparse.BooleanOptionalAction)\nargs = p.parse_args()\n",
        );
        let flags = declared_arguments(&program).unwrap().flags;
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let given = words("--resume={checkpoint} --no-amp --lr 1e-3 --resum=x data --help -- --more");
        assert_eq!(undeclared_options(&given, &flags), ["--lr"], "argparse completes --resume and --resum");
        assert_eq!(undeclared_options(&words("--resume_from=x"), &flags), ["--resume_from"]);
    }
}
