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
    /// The command that starts Python: this one, or a line of the shell script that it names.
    pub invocation: Invocation,
}

/// Finds and reads the script of a command that starts in a folder.
pub fn find(command: &[String], folder: &Path) -> Result<Found, Failure> {
    let no_script = "this command names no script; write it as you would type it: downshift init -- python train.py …";
    let invocation = find_script(command).ok_or_else(|| Failure::new(2, no_script))?;
    let (before, arguments) = command.split_at(invocation.arguments.min(command.len()));
    let words = Words { before: before.to_vec(), fixed: Vec::new(), arguments: arguments.to_vec(), open: true };
    Found::read(invocation, words, folder, SHELLS)
}

impl Found {
    /// Returns the arguments that the source declares.
    pub fn declared(&self) -> Result<Declared, Failure> {
        Ok(self.program.as_ref().map(declared_arguments).transpose()?.unwrap_or_default())
    }

    /// Returns the script's arguments, those of a shell script that starts it first.
    pub fn arguments(&self) -> Vec<String> {
        self.words.fixed.iter().chain(&self.words.arguments).cloned().collect()
    }

    /// Returns the command that prints the script's help.
    pub fn help_command(&self) -> Vec<String> {
        self.words.before.iter().cloned().chain(["--help".to_owned()]).collect()
    }

    fn read(invocation: Invocation, words: Words, folder: &Path, shells: usize) -> Result<Self, Failure> {
        let target = invocation.target.clone();
        let unread = |script: PathBuf| Self { script, program: None, words, invocation };
        match target {
            Target::Script(path) => {
                let script = PathBuf::from(path);
                let program = read_python(&script, folder, &[parent(&script)])?;
                Ok(Self { program: Some(program), ..unread(script) })
            }
            Target::Module(module) => {
                let base = module.split('.').fold(PathBuf::new(), |path, part| path.join(part));
                let candidates = [base.with_extension("py"), base.join("__main__.py")];
                // Of an installed module, only its help lists its arguments.
                let file = candidates.iter().find(|file| folder.join(file).is_file());
                let program = file.map(|file| read_python(file, folder, &[])).transpose()?;
                Ok(Self { program, ..unread(base) })
            }
            Target::Program(program) => unread(PathBuf::from(program)).read_program(folder, shells),
        }
    }

    /// Reads a program by its `#!` line: Python, or a shell script with a line that starts Python.
    fn read_program(self, folder: &Path, shells: usize) -> Result<Self, Failure> {
        let is_path = self.script.to_string_lossy().contains(['/', '.']);
        let content = is_path.then(|| read_text(&folder.join(&self.script), Limit::Handwritten).ok()).flatten();
        let Some(content) = content else { return Ok(self) };
        let first_line = content.lines().next().unwrap_or_default();
        let mut interpreter = first_line.strip_prefix("#!").unwrap_or_default().split(['/', ' ', '\t']);
        if interpreter.any(is_python) {
            let program = read_python(&self.script, folder, &[parent(&self.script)])?;
            return Ok(Self { program: Some(program), ..self });
        }
        let Some(line) = find_python_line(&content).filter(|_| shells > 0) else { return Ok(self) };
        let mut fixed = line.words[line.invocation.arguments..].to_vec();
        fixed.retain(|word| !word.starts_with("$@") && !word.starts_with("$*"));
        // A script that is not found here, because of a variable or a `cd`, can only be asked for its help.
        let program = read_beside(&line.invocation, folder, &parent(&self.script), shells - 1);
        let launcher = self.invocation.launcher.or(line.invocation.launcher);
        // The run is named after what the user started.
        Ok(Self {
            program,
            words: Words { fixed, open: line.passes_arguments, ..self.words },
            invocation: Invocation { launcher, ..line.invocation },
            ..self
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
    let here = Found::read(invocation.clone(), Words::default(), folder, shells).ok().and_then(|found| found.program);
    let Target::Script(script) = &invocation.target else { return here };
    here.or_else(|| {
        let script = beside.join(script);
        read_python(&script, folder, &[parent(&script), beside.to_owned()]).ok()
    })
}
