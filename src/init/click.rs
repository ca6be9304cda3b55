//! Options declared with click: `@click.option("--lr", default=1e-3)`.

use super::flag::{Declared, Flag, Library, Takes, ValueKind};
use super::program::{Place, Program};
use super::python::{Call, Expr, Literal};

/// Adds every option.
pub fn collect(program: &Program, declared: &mut Declared) {
    let imported = program.mentions("click") || program.mentions("rich_click");
    for (place, call) in program.calls("option").filter(|_| imported) {
        let texts: Vec<&str> = call.positional.iter().filter_map(Expr::text).collect();
        let Some(flag) = read_option(program, place, call, &texts) else {
            declared.computed += usize::from(texts.is_empty());
            continue;
        };
        declared.add(Library::Click, flag);
    }
}

fn read_option(program: &Program, place: Place, call: &Call, texts: &[&str]) -> Option<Flag> {
    let value = |name: &str| call.keyword(name).and_then(|value| program.value(place, value));
    let is = |name: &str| value(name) == Some(Literal::Bool(true));
    let mut names: Vec<String> = Vec::new();
    let mut off = None;
    for text in texts.iter().filter(|text| text.starts_with('-')) {
        match text.split_once('/') {
            Some((on, other)) => {
                names.push(on.trim().to_owned());
                off = Some(other.trim().to_owned()).filter(|other| other.starts_with("--")).or(off);
            }
            None => names.push((*text).to_owned()),
        }
    }
    let long = names.iter().find(|name| name.starts_with("--")).or(names.first())?;
    let stored = texts.iter().find(|text| !text.starts_with('-')).map(|text| (*text).to_owned());
    let key = stored.unwrap_or_else(|| long.trim_start_matches('-').replace('-', "_"));
    let default = value("default");
    let takes = match off {
        Some(off) => Takes::Pair { off },
        None if is("is_flag") => Takes::Presence(default != Some(Literal::Bool(true))),
        None if is("count") => Takes::Presence(true),
        None if call.keyword("nargs").is_some() || is("multiple") => Takes::Values,
        None => Takes::Value(kind(call, default.as_ref())),
    };
    let is_switch = matches!(takes, Takes::Pair { .. } | Takes::Presence(_));
    let default =
        if is_switch && default.is_none() { Some(Literal::Bool(false)) } else { default.or(Some(Literal::None)) };
    Some(Flag { names, key, default, choices: choices(call), subcommand: None, takes })
}

fn kind(call: &Call, default: Option<&Literal>) -> ValueKind {
    let named = match call.keyword("type") {
        Some(Expr::Name(name)) => ValueKind::of_type(name),
        Some(Expr::Call(made)) => match made.function.as_str() {
            "IntRange" => Some(ValueKind::Integer),
            "FloatRange" => Some(ValueKind::Number),
            _ => Some(ValueKind::Text),
        },
        _ => None,
    };
    named.unwrap_or_else(|| ValueKind::of_default(default))
}

fn choices(call: &Call) -> Vec<String> {
    let Some(Expr::Call(made)) = call.keyword("type") else { return Vec::new() };
    match (made.function.as_str(), made.positional.first()) {
        ("Choice", Some(Expr::List(choices))) => choices.iter().filter_map(Expr::text).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}
