//! Arguments declared with argparse: `parser.add_argument(…)`, on parsers, groups and subparsers, wherever the
//! parser comes from.

use super::flag::{Declared, Flag, Library, Takes, ValueKind};
use super::program::{Place, Program};
use super::python::{Call, Expr, Literal};

/// Steps from a group back to its parser.
const CHAIN: usize = 8;

/// Adds every argument.
pub fn collect(program: &Program, declared: &mut Declared) {
    for (place, call) in program.calls("add_argument") {
        let names: Vec<String> = call.positional.iter().filter_map(Expr::text).map(str::to_owned).collect();
        let Some(first) = names.first() else {
            declared.computed += 1;
            continue;
        };
        if first.starts_with('-')
            && let Some(takes) = takes(program, place, call)
        {
            let flag = Flag {
                key: key(call, &names),
                default: default(program, place, call, &takes),
                choices: choices(program, place, call),
                subcommand: subcommand(program, place, &call.receiver),
                names,
                takes,
            };
            declared.add(Library::Argparse, flag);
        }
    }
    for (place, call) in program.calls("set_defaults") {
        let subcommand = subcommand(program, place, &call.receiver);
        for (key, value) in &call.keywords {
            let same = |flag: &&mut Flag| flag.key == *key && flag.subcommand == subcommand;
            if let (Some(flag), Some(value)) = (declared.flags.iter_mut().find(same), program.value(place, value)) {
                flag.default = Some(value);
            }
        }
    }
}

/// Returns the attribute that argparse stores the value in.
fn key(call: &Call, names: &[String]) -> String {
    let long = names.iter().find(|name| name.starts_with("--")).or(names.first());
    let from_name = || long.map_or_else(String::new, |name| name.trim_start_matches('-').replace('-', "_"));
    call.keyword("dest").and_then(Expr::text).map_or_else(from_name, str::to_owned)
}

/// Returns how the argument is written; `None` for `--help` and `--version`.
fn takes(program: &Program, place: Place, call: &Call) -> Option<Takes> {
    let action = call.keyword("action");
    let action = action.and_then(|action| action.text().or_else(|| action.name())).unwrap_or("store");
    match action.rsplit('.').next().unwrap_or(action) {
        "store_false" => return Some(Takes::Presence(false)),
        "store_true" | "store_const" | "append_const" | "count" => return Some(Takes::Presence(true)),
        "BooleanOptionalAction" => {
            let mut names = call.positional.iter().filter_map(Expr::text);
            let long = names.find_map(|name| name.strip_prefix("--"))?;
            return Some(Takes::Pair { off: format!("--no-{long}") });
        }
        "help" | "version" => return None,
        _ => {}
    }
    let named = call.keyword("type").and_then(Expr::name);
    // `type=bool` takes any text but the empty one for true, so nothing can switch it off.
    if named == Some("bool") {
        return Some(Takes::Values);
    }
    let kind = named.and_then(ValueKind::of_type);
    let kind = kind.unwrap_or_else(|| {
        let default = call.keyword("default").and_then(|value| program.value(place, value));
        // Without `type`, argparse stores text, whatever the default is.
        if call.keyword("type").is_none() { ValueKind::Text } else { ValueKind::of_default(default.as_ref()) }
    });
    match call.keyword("nargs") {
        None => Some(Takes::Value(kind)),
        Some(nargs) if nargs.text() == Some("?") && kind == ValueKind::Boolean => Some(Takes::OptionalBoolean),
        Some(_) => Some(Takes::Values),
    }
}

fn default(program: &Program, place: Place, call: &Call, takes: &Takes) -> Option<Literal> {
    match (call.keyword("default"), takes) {
        (Some(value), _) => program.value(place, value),
        (None, Takes::Presence(sets)) => Some(Literal::Bool(!sets)),
        (None, _) => Some(Literal::None),
    }
}

fn choices(program: &Program, place: Place, call: &Call) -> Vec<String> {
    let choices = match call.keyword("choices") {
        Some(Expr::Name(name)) => program.assigned(place, name),
        other => other,
    };
    let Some(Expr::List(choices)) = choices else { return Vec::new() };
    choices.iter().filter_map(|choice| choice.literal().and_then(written)).collect()
}

/// Formats a value the way it is written on a command line.
pub fn written(literal: &Literal) -> Option<String> {
    match literal {
        Literal::None => None,
        Literal::Bool(value) => Some(if *value { "True" } else { "False" }.to_owned()),
        Literal::Int(number) => Some(number.to_string()),
        Literal::Float(number) => Some(format_number(*number)),
        Literal::Text(text) => Some(text.clone()),
    }
}

/// Formats a number so that YAML, Python and a reader see the same one: `0.05`, `5.0e-5`.
pub fn format_number(number: f64) -> String {
    let magnitude = number.abs();
    if number == 0.0 || (1e-3..1e7).contains(&magnitude) {
        return format!("{number:?}");
    }
    let text = format!("{number:e}");
    match text.split_once('e') {
        Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0e{exponent}"),
        _ => text,
    }
}

/// Follows groups back to the parser, and returns its name if it is a subcommand's.
fn subcommand(program: &Program, place: Place, receiver: &str) -> Option<String> {
    let mut receiver = receiver.to_owned();
    for _ in 0..CHAIN {
        let Expr::Call(made) = program.assigned(place, &receiver)? else { return None };
        match made.function.as_str() {
            "add_parser" => return made.positional.first()?.text().map(str::to_owned),
            "add_argument_group" | "add_mutually_exclusive_group" => receiver.clone_from(&made.receiver),
            _ => return None,
        }
    }
    None
}
