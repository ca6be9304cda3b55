//! Finds the script behind a command, and reads it.

use crate::cli::Failure;
use crate::config::command::invocation::{Invocation, Target, find_script, is_python};
use crate::init::flag::Declared;
use crate::init::program::Program;
use crate::init::shell::find_python_line;
use crate::init::{Words, declared_arguments};
use crate::untrusted::file::{Limit, read_text};
use crate::untrusted::text;
use std::env;
use std::path::{Path, PathBuf};

/// Maximum shell scripts that start each other.
const SHELLS: usize = 1;

/// A script and its command.
pub struct Found {
    /// The file.
    pub script: PathBuf,
    /// The source; `None` for a program that is not Python.
    pub program: Option<Program>,
    /// The command, split at the script's arguments.
    pub words: Words,
    /// The command, split at its script.
    pub invocation: Invocation,
    /// The number of words before the script's arguments.
    first: usize,
}

impl Found {
    /// Returns the arguments that the source declares.
    pub fn declared(&self) -> Result<Declared, Failure> {
        Ok(self.program.as_ref().map(declared_arguments).transpose()?.unwrap_or_default())
    }

    /// Returns the command that prints the script's help.
    pub fn help_command(&self, command: &[String]) -> Vec<String> {
        command.iter().take(self.first).cloned().chain(["--help".to_owned()]).collect()
    }
}

/// Finds and reads the script of a command.
pub fn find(command: &[String]) -> Result<Found, Failure> {
    let no_script = "this command names no script; write it as you would type it: downshift init -- python train.py …";
    let invocation = find_script(command).ok_or_else(|| Failure::new(2, no_script))?;
    let (before, arguments) = command.split_at(invocation.arguments.min(command.len()));
    let words = Words { before: before.to_vec(), fixed: Vec::new(), arguments: arguments.to_vec(), open: true };
    let first = before.len();
    let (script, program, words) = read(&invocation, words, SHELLS)?;
    Ok(Found { script, program, words, invocation, first })
}

fn read(invocation: &Invocation, words: Words, shells: usize) -> Result<(PathBuf, Option<Program>, Words), Failure> {
    match &invocation.target {
        Target::Script(path) => {
            let script = PathBuf::from(path);
            let folder = script.parent().map(Path::to_owned).unwrap_or_default();
            let program = read_python(&script, &[folder])?;
            Ok((script, Some(program), words))
        }
        Target::Module(module) => {
            let base = module.split('.').fold(PathBuf::new(), |path, part| path.join(part));
            let candidates = [base.with_extension("py"), base.join("__main__.py")];
            match candidates.iter().find(|file| file.is_file()) {
                Some(file) => Ok((base, Some(read_python(file, &[])?), words)),
                // An installed module: only its help lists its arguments.
                None => Ok((base, None, words)),
            }
        }
        Target::Program(program) => read_program(program, words, shells),
    }
}

/// Reads a Python file, with its own modules in these folders and in the current one.
fn read_python(script: &Path, folders: &[PathBuf]) -> Result<Program, Failure> {
    let here = env::current_dir()?;
    let roots: Vec<PathBuf> = folders.iter().map(|folder| here.join(folder)).chain([here.clone()]).collect();
    Program::read(script, &roots).map_err(|error| Failure::new(1, format!("{}: {error}", text::path(script))))
}

/// Reads a program by its `#!` line: Python, or a shell script with a line that starts Python.
fn read_program(program: &str, words: Words, shells: usize) -> Result<(PathBuf, Option<Program>, Words), Failure> {
    let path = PathBuf::from(program);
    let Some(content) = program.contains(['/', '.']).then(|| read_text(&path, Limit::Handwritten).ok()).flatten()
    else {
        return Ok((path, None, words));
    };
    let first_line = content.lines().next().unwrap_or_default();
    let mut interpreter = first_line.strip_prefix("#!").unwrap_or_default().split(['/', ' ', '\t']);
    if interpreter.any(is_python) {
        let folder = path.parent().map(Path::to_owned).unwrap_or_default();
        let program = read_python(&path, &[folder])?;
        return Ok((path, Some(program), words));
    }
    let Some(line) = find_python_line(&content).filter(|_| shells > 0) else { return Ok((path, None, words)) };
    let mut fixed = line.words[line.invocation.arguments..].to_vec();
    fixed.retain(|word| !word.starts_with("$@") && !word.starts_with("$*"));
    // A script that is not found here, because of a variable or a `cd`, can only be asked for its help.
    let beside = path.parent().unwrap_or(Path::new(""));
    let program = read_beside(&line.invocation, beside, shells - 1);
    // The run is named after what the user started.
    Ok((path, program, Words { fixed, open: line.passes_arguments, ..words }))
}

/// Reads the script of a shell script's line: from the current folder, or from that of the shell script.
fn read_beside(invocation: &Invocation, folder: &Path, shells: usize) -> Option<Program> {
    let here = read(invocation, Words::default(), shells).ok().and_then(|(_, program, _)| program);
    let Target::Script(script) = &invocation.target else { return here };
    here.or_else(|| {
        let script = folder.join(script);
        let own = script.parent().map(Path::to_owned).unwrap_or_default();
        read_python(&script, &[own, folder.to_owned()]).ok()
    })
}
