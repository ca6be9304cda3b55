//! Settings of scripts in nanoGPT's style: plain values at the top level, which `exec(open('configurator.py').read())`
//! lets a file of such values override, and `--name=value`.

use super::flag::{Declared, Flag, Library, Takes, ValueKind};
use super::program::Program;
use super::python::{Expr, Literal};
use std::collections::BTreeSet;
use std::path::Path;

/// Adds every setting that stands before the configurator runs.
pub fn collect(program: &Program, declared: &mut Declared) {
    let is_configurator =
        |file: Option<&Expr>| file.and_then(Expr::text).is_some_and(|file| file.ends_with("configurator.py"));
    let Some((place, _)) = program.calls("open").find(|(_, call)| is_configurator(call.positional.first())) else {
        return;
    };
    for (name, value) in program.settings(place.at).into_iter().filter(|(name, _)| !name.starts_with('_')) {
        let Some((kind, default)) = value.and_then(read_setting) else { continue };
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

/// Takes over the values of the settings files among the arguments: configurator.py executes each word without dashes. Returns
/// the indices of these words.
pub fn read_files(declared: &mut Declared, arguments: &[String], folder: &Path) -> BTreeSet<usize> {
    let mut read = BTreeSet::new();
    if !declared.libraries.contains(&Library::Configurator) {
        return read;
    }
    for (word, argument) in arguments.iter().enumerate().filter(|(_, argument)| !argument.starts_with('-')) {
        let Ok(file) = Program::read(&folder.join(argument), &[]) else { continue };
        for (name, value) in file.settings(usize::MAX) {
            for flag in declared.flags.iter_mut().filter(|flag| flag.key == name) {
                flag.default = value.and_then(read_setting).and_then(|(_, value)| value);
            }
        }
        read.insert(word);
    }
    read
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
