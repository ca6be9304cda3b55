//! A script with the files it imports from its own folders, and the part of them that can declare its arguments.

use super::flag::{Declared, Library};
use super::python::{Call, Definition, Expr, Import, Literal, Module, OwnedCall, ParseError, Shape, parse};
use crate::untrusted::file::{Limit, ReadError, read_text};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

/// Maximum number of files read.
const FILES: usize = 64;
/// Maximum bytes read in all.
const BYTES: usize = 4 << 20;

/// Methods of argparse that begin as functions do which add arguments to a parser.
const ADDS_ARGUMENTS: [&str; 3] = ["add_argument", "add_argument_group", "add_mutually_exclusive_group"];
/// Names by which a parser takes arguments that it does not declare.
const TAKES_MORE: [&str; 4] = ["parse_known_args", "parse_known_intermixed_args", "REMAINDER", "parents"];

/// Names in the source of a script that reads arguments.
const READS_ARGUMENTS: [&str; 18] = [
    "argv",
    "ArgumentParser",
    "parse_args",
    "HfArgumentParser",
    "TrlParser",
    "LightningCLI",
    "OmegaConf",
    "absl",
    "click",
    "cyclopts",
    "docopt",
    "fire",
    "getopt",
    "hydra",
    "jsonargparse",
    "simple_parsing",
    "typer",
    "tyro",
];

/// A script and its own modules.
#[derive(Debug, Default)]
pub struct Program {
    files: Vec<Module>,
    /// The definitions that the script can reach: file and index in it.
    included: BTreeSet<(usize, usize)>,
    /// The script imports more files than were read.
    is_cut: bool,
    /// Imported files that were not understood.
    pub skipped: Vec<Skipped>,
}

/// A file of the script that was not understood.
#[derive(Debug)]
pub struct Skipped {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub why: SourceError,
}

/// Why a file was not understood.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It cannot be parsed.
    #[error(transparent)]
    Parse(#[from] ParseError),
}

impl Program {
    /// Reads a script and the modules below `roots` that it imports, directly or not.
    ///
    /// # Errors
    /// Returns an error when the script itself cannot be read. A module that cannot be read is left out.
    pub fn read(script: &Path, roots: &[PathBuf]) -> Result<Self, SourceError> {
        let mut program = Self::default();
        let mut seen = BTreeSet::from([script.canonicalize().unwrap_or_else(|_| script.to_owned())]);
        let mut waiting = VecDeque::from([script.to_owned()]);
        let mut bytes = 0;
        while let Some(path) = waiting.pop_front() {
            if program.files.len() >= FILES || bytes > BYTES {
                program.is_cut = true;
                break;
            }
            let read = read_text(&path, Limit::Handwritten).map_err(SourceError::from);
            bytes += read.as_ref().map_or(0, String::len);
            match read.and_then(|text| Ok(parse(&text)?)) {
                Ok(module) => {
                    for import in &module.imports {
                        let found = locate(import, path.parent().unwrap_or(Path::new("")), roots);
                        waiting.extend(found.into_iter().filter(|file| seen.insert(file.clone())));
                    }
                    program.files.push(module);
                }
                Err(why) if program.files.is_empty() => return Err(why),
                Err(why) => program.skipped.push(Skipped { path, why }),
            }
        }
        program.include_reachable();
        Ok(program)
    }

    /// Builds a program of one file.
    #[cfg(test)]
    pub fn of(text: &str) -> Self {
        let mut program = Self { files: vec![parse(text).unwrap()], ..Self::default() };
        program.include_reachable();
        program
    }

    /// Returns the number of files.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Reports whether the script's arguments are all in `declared`, as far as its source shows: it makes a parser of
    /// argparse itself, and hands it to no function that was not read.
    pub fn declares_all(&self, declared: &Declared) -> bool {
        let Declared { flags, libraries, packages, computed, .. } = declared;
        let own: BTreeSet<&str> = self.files.iter().flat_map(Module::names).collect();
        let adds_elsewhere =
            |name: &str| name.starts_with("add_") && !ADDS_ARGUMENTS.contains(&name) && !own.contains(name);
        let mut mentioned = self.definitions().flat_map(|definition| &definition.mentions);
        libraries.iter().eq(&[Library::Argparse])
            && (packages.is_empty() && *computed == 0 && self.skipped.is_empty() && !self.is_cut)
            && flags.iter().all(|flag| flag.subcommand.is_none())
            // A type annotation makes no parser.
            && self.calls("ArgumentParser").next().is_some()
            && !mentioned.any(|name| adds_elsewhere(name) || TAKES_MORE.contains(&name.as_str()))
    }

    /// Reports whether the script reads no arguments at all, as far as its source shows.
    pub fn reads_no_arguments(&self) -> bool {
        let is_imported = |name: &str| self.imports().any(|import| import.root() == name);
        let reads = |name: &str| self.mentions(name) || is_imported(name);
        self.skipped.is_empty() && !self.is_cut && !READS_ARGUMENTS.iter().any(|name| reads(name))
    }

    /// Finds everything the script reaches by name: all of its own file, the top level of what it imports, and of
    /// that the functions and classes that something reached mentions.
    fn include_reachable(&mut self) {
        let mut by_name: BTreeMap<&str, Vec<(usize, usize)>> = BTreeMap::new();
        let mut waiting = Vec::new();
        for (file, module) in self.files.iter().enumerate() {
            for (index, definition) in module.definitions.iter().enumerate() {
                match definition.shape {
                    _ if file == 0 => waiting.push((file, index)),
                    Shape::TopLevel => waiting.push((file, index)),
                    Shape::MainGuard => {}
                    _ => by_name.entry(&definition.name).or_default().push((file, index)),
                }
            }
        }
        let own: Vec<BTreeSet<&str>> = self.files.iter().map(Module::names).collect();
        let mut included = BTreeSet::new();
        let mut looked_up = BTreeSet::new();
        while let Some((file, index)) = waiting.pop() {
            if !included.insert((file, index)) {
                continue;
            }
            for name in &self.files[file].definitions[index].mentions {
                if looked_up.insert((file, name)) {
                    let places = by_name.get(name.as_str()).into_iter().flatten();
                    // A name the file itself defines means that definition.
                    let here = own[file].contains(name.as_str());
                    waiting.extend(places.filter(|(other, _)| !here || *other == file));
                }
            }
        }
        self.included = included;
    }

    /// Returns the reachable definitions, in file order.
    pub fn definitions(&self) -> impl Iterator<Item = &Definition> {
        self.included.iter().map(|(file, index)| &self.files[*file].definitions[*index])
    }

    /// Returns the imports of all files.
    pub fn imports(&self) -> impl Iterator<Item = &Import> {
        self.files.iter().flat_map(|module| &module.imports)
    }

    /// Returns the reachable calls, with their place.
    pub fn all_calls(&self) -> impl Iterator<Item = (Place, &Call)> {
        self.files.iter().enumerate().flat_map(move |(file, module)| {
            let mine = move |call: &&OwnedCall| self.included.contains(&(file, call.owner));
            let place = move |call: &OwnedCall| Place { file, owner: call.owner, at: call.at };
            module.calls.iter().filter(mine).map(move |call| (place(call), &call.call))
        })
    }

    /// Returns the reachable calls of one function, with their place.
    pub fn calls<'a>(&'a self, function: &'a str) -> impl Iterator<Item = (Place, &'a Call)> {
        self.all_calls().filter(move |(_, call)| call.function == function)
    }

    /// Returns the class or function of this name that the script reaches.
    pub fn definition(&self, name: &str) -> Option<&Definition> {
        self.definitions().find(|definition| definition.name == name)
    }

    /// Reports whether the script mentions a name in a part that it reaches.
    pub fn mentions(&self, name: &str) -> bool {
        self.definitions().any(|definition| definition.mentions.contains(name))
    }

    /// Returns the value assigned to a name: the last one before this place, or else at a top level.
    pub fn assigned(&self, place: Place, name: &str) -> Option<&Expr> {
        self.assignment(place, name).map(|(_, value)| value)
    }

    /// Returns the assignment to a name that counts at this place, with its own place.
    pub fn assignment(&self, place: Place, name: &str) -> Option<(Place, &Expr)> {
        let within = |file: usize, owner: usize, before: usize| {
            let values = self.files.get(file)?.assignments.get(&(owner, name.to_owned()))?;
            let known = values.partition_point(|(at, _)| *at < before);
            values[..known].last().map(|(at, value)| (Place { file, owner, at: *at }, value))
        };
        let near = within(place.file, place.owner, place.at).or_else(|| within(place.file, 0, usize::MAX));
        near.or_else(|| (0..self.files.len()).find_map(|file| within(file, 0, usize::MAX)))
    }

    /// Returns what the callers of a function pass for its parameter of this name: the first one, with its place.
    pub fn passed(&self, place: Place, parameter: &str) -> Option<(Place, &Expr)> {
        let function = self.files.get(place.file)?.definitions.get(place.owner)?;
        let Shape::Function(parameters) = &function.shape else { return None };
        let index = parameters.iter().position(|field| field.name == parameter)?;
        let mut calls = self.calls(&function.name).filter(|(_, call)| call.receiver.is_empty());
        calls.find_map(|(at, call)| Some((at, call.keyword(parameter).or(call.positional.get(index))?)))
    }

    /// Returns what the script's own top level assigns before this byte: each name with its value, in file order. The value of a
    /// name that is assigned again is unknown.
    pub fn settings(&self, before: usize) -> Vec<(&str, Option<&Expr>)> {
        let assignments = self.files.first().into_iter().flat_map(|module| &module.assignments);
        let top = assignments.filter(|((owner, _), _)| *owner == 0);
        let mut settings: Vec<_> = top
            .filter_map(|((_, name), values)| {
                let (at, value) = values.first()?;
                let is_alone = values.iter().filter(|(at, _)| *at < before).count() == 1;
                Some((*at, name.as_str(), is_alone.then_some(value)))
            })
            .collect();
        settings.retain(|(at, ..)| *at < before);
        settings.sort_by_key(|(at, ..)| *at);
        settings.into_iter().map(|(_, name, value)| (name, value)).collect()
    }

    /// Returns an expression's value, looking up a constant if it names one.
    pub fn value(&self, place: Place, expr: &Expr) -> Option<Literal> {
        match expr {
            Expr::Literal(literal) => Some(literal.clone()),
            Expr::Name(name) => self.assigned(place, name)?.literal().cloned(),
            _ => None,
        }
    }
}

/// Where a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index of the file.
    pub file: usize,
    /// Index of the definition in it.
    pub owner: usize,
    /// The byte where it begins.
    pub at: usize,
}

/// Finds the files of an import below the roots, or beside the importing file if it is relative.
fn locate(import: &Import, folder: &Path, roots: &[PathBuf]) -> Vec<PathBuf> {
    let mut starts: Vec<PathBuf> = roots.to_vec();
    if import.dots > 0 {
        starts = folder.ancestors().nth(import.dots - 1).map(Path::to_owned).into_iter().collect();
    }
    let mut found = Vec::new();
    for start in starts {
        let base = import.parts.iter().fold(start, |path, part| path.join(part));
        let below = import.names.iter().map(|name| base.join(name));
        for module in std::iter::once(base.clone()).chain(below) {
            let candidates = [module.with_extension("py"), module.join("__init__.py")];
            found.extend(candidates.into_iter().find(|file| file.is_file()));
        }
    }
    let below_roots =
        |file: &PathBuf| roots.iter().any(|root| root.canonicalize().is_ok_and(|root| file.starts_with(root)));
    found.into_iter().filter_map(|file| file.canonicalize().ok()).filter(below_roots).collect()
}
