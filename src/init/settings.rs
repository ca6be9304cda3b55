//! Settings of scripts in nanoGPT's style: plain values at the top level, which `exec(open('configurator.py').read())`
//! lets `--name=value` override.

use super::flag::{Declared, Flag, Library, Takes, ValueKind};
use super::program::Program;
use super::python::{Expr, Literal};

/// Adds every setting that stands before the configurator runs.
pub fn collect(program: &Program, declared: &mut Declared) {
    let is_configurator =
        |file: Option<&Expr>| file.and_then(Expr::text).is_some_and(|file| file.ends_with("configurator.py"));
    let Some((place, _)) = program.calls("open").find(|(_, call)| is_configurator(call.positional.first())) else {
        return;
    };
    for (name, value) in program.settings(place.at).into_iter().filter(|(name, _)| !name.starts_with('_')) {
        let Some((kind, default)) = read_setting(value) else { continue };
        let flag = Flag {
            names: vec![format!("--{name}")],
            key: name.to_owned(),
            takes: Takes::Assignment(kind),
            default,
            choices: Vec::new(),
            subcommand: None,
        };
        declared.add(Library::Configurator, flag);
    }
}

/// Returns the kind of a setting and its value; the value of a condition is unknown.
fn read_setting(value: &Expr) -> Option<(ValueKind, Option<Literal>)> {
    match value {
        Expr::Literal(Literal::None) => None,
        Expr::Literal(literal) => Some((ValueKind::of_default(Some(literal)), Some(literal.clone()))),
        Expr::Choice(either) => {
            let literal = either.iter().find_map(Expr::literal)?;
            Some((ValueKind::of_default(Some(literal)), None))
        }
        _ => None,
    }
}
