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
    /// What starts Python: the command, or a line of the shell script that it names.
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

/// Finds and reads the script of a command that starts in a folder.
pub fn find(command: &[String], folder: &Path) -> Result<Found, Failure> {
    let no_script = "this command names no script; write it as you would type it: downshift init -- python train.py …";
    let invocation = find_script(command).ok_or_else(|| Failure::new(2, no_script))?;
    let (before, arguments) = command.split_at(invocation.arguments.min(command.len()));
    let words = Words { before: before.to_vec(), fixed: Vec::new(), arguments: arguments.to_vec(), open: true };
    let first = before.len();
    let source = Source::read(&invocation, words, folder, SHELLS)?;
    Ok(Found {
        script: source.script,
        program: source.program,
        words: source.words,
        invocation: source.invocation,
        first,
    })
}

/// The source of a script, and what starts it.
struct Source {
    script: PathBuf,
    program: Option<Program>,
    words: Words,
    invocation: Invocation,
}

impl Source {
    fn read(invocation: &Invocation, words: Words, folder: &Path, shells: usize) -> Result<Self, Failure> {
        let found = |script: PathBuf, program: Option<Program>| Self {
            script,
            program,
            words: words.clone(),
            invocation: invocation.clone(),
        };
        match &invocation.target {
            Target::Script(path) => {
                let script = PathBuf::from(path);
                let program = read_python(&script, folder, &[parent(&script)])?;
                Ok(found(script, Some(program)))
            }
            Target::Module(module) => {
                let base = module.split('.').fold(PathBuf::new(), |path, part| path.join(part));
                let candidates = [base.with_extension("py"), base.join("__main__.py")];
                // Of an installed module, only its help lists its arguments.
                let file = candidates.iter().find(|file| folder.join(file).is_file());
                let program = file.map(|file| read_python(file, folder, &[])).transpose()?;
                Ok(found(base, program))
            }
            Target::Program(program) => Self::read_program(program, invocation, words, folder, shells),
        }
    }

    /// Reads a program by its `#!` line: Python, or a shell script with a line that starts Python.
    fn read_program(
        program: &str,
        invocation: &Invocation,
        words: Words,
        folder: &Path,
        shells: usize,
    ) -> Result<Self, Failure> {
        let script = PathBuf::from(program);
        let unread = Self { script, program: None, words, invocation: invocation.clone() };
        let file = folder.join(program);
        let Some(content) = program.contains(['/', '.']).then(|| read_text(&file, Limit::Handwritten).ok()).flatten()
        else {
            return Ok(unread);
        };
        let first_line = content.lines().next().unwrap_or_default();
        let mut interpreter = first_line.strip_prefix("#!").unwrap_or_default().split(['/', ' ', '\t']);
        if interpreter.any(is_python) {
            let program = read_python(&unread.script, folder, &[parent(&unread.script)])?;
            return Ok(Self { program: Some(program), ..unread });
        }
        let Some(line) = find_python_line(&content).filter(|_| shells > 0) else { return Ok(unread) };
        let mut fixed = line.words[line.invocation.arguments..].to_vec();
        fixed.retain(|word| !word.starts_with("$@") && !word.starts_with("$*"));
        // A script that is not found here, because of a variable or a `cd`, can only be asked for its help.
        let program = read_beside(&line.invocation, folder, &parent(&unread.script), shells - 1);
        let launcher = invocation.launcher.or(line.invocation.launcher);
        // The run is named after what the user started.
        Ok(Self {
            program,
            words: Words { fixed, open: line.passes_arguments, ..unread.words },
            invocation: Invocation { launcher, ..line.invocation },
            ..unread
        })
    }
}

fn parent(script: &Path) -> PathBuf {
    script.parent().map(Path::to_owned).unwrap_or_default()
}

/// Reads a Python file of a folder, with its own modules in these folders below it and in the folder itself.
fn read_python(script: &Path, folder: &Path, roots: &[PathBuf]) -> Result<Program, Failure> {
    let here = env::current_dir()?.join(folder);
    let roots: Vec<PathBuf> = roots.iter().map(|root| here.join(root)).chain([here.clone()]).collect();
    let read = Program::read(&folder.join(script), &roots);
    read.map_err(|error| Failure::new(1, format!("{}: {error}", text::path(script))))
}

/// Reads the script of a shell script's line: from the folder of the command, or from that of the shell script.
fn read_beside(invocation: &Invocation, folder: &Path, beside: &Path, shells: usize) -> Option<Program> {
    let here = Source::read(invocation, Words::default(), folder, shells).ok().and_then(|source| source.program);
    let Target::Script(script) = &invocation.target else { return here };
    here.or_else(|| {
        let script = beside.join(script);
        read_python(&script, folder, &[parent(&script), beside.to_owned()]).ok()
    })
}
