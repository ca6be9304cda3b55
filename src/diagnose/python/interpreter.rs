//! Finds the Python interpreter that a command starts, without starting anything.

use crate::config::command::invocation::{Invocation, Target, find_script, is_python};
use crate::init::shell::find_python_line;
use crate::untrusted::file::{Limit, read_text};
use crate::untrusted::text;
use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Maximum number of programs followed that start each other.
const DEPTH: usize = 4;

/// Where a command is started.
#[derive(Debug, Clone, Copy)]
pub struct Search<'a> {
    /// Its working directory.
    pub directory: &'a Path,
    /// Variables that the run file sets.
    pub variables: &'a BTreeMap<String, OsString>,
}

/// Why no interpreter was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InterpreterError {
    /// The command starts something else.
    #[error("{} does not start Python, as far as downshift can tell", text::escape_line(.0))]
    NoPython(String),
    /// A path without a file.
    #[error("{} does not exist", text::path(.0))]
    Missing(PathBuf),
    /// A name that is not on the PATH.
    #[error("{} is not on the PATH; activate the environment, or write the program's whole path", text::escape_line(.0))]
    NotOnPath(String),
    /// uv without an environment.
    #[error("uv has not created an environment in {} yet; run `uv sync` there", text::path(.0))]
    NoUvEnvironment(PathBuf),
}

/// Finds the interpreter.
///
/// # Errors
/// Returns an error when the command starts no Python, or its program does not exist.
pub fn find_interpreter(command: &[String], search: &Search<'_>) -> Result<PathBuf, InterpreterError> {
    follow(command, search, DEPTH)
}

fn follow(command: &[String], search: &Search<'_>, depth: usize) -> Result<PathBuf, InterpreterError> {
    let shown = || InterpreterError::NoPython(command.first().cloned().unwrap_or_default());
    let depth = depth.checked_sub(1).ok_or_else(shown)?;
    if command.iter().take(2).map(String::as_str).eq(["uv", "run"]) {
        return search.uv_environment();
    }
    let found = find_script(command);
    let named = match &found {
        Some(invocation) => invocation.interpreter.map(|index| &command[index]),
        // `python -c …`, and the words of a `#!` line.
        None => command.iter().find(|word| is_python(word.rsplit('/').next().unwrap_or(word))),
    };
    if let Some(python) = named {
        return search.program(python).map(|python| search.behind_pyenv(python));
    }
    let program = match found {
        // The launcher comes somewhere before the script, after wrappers such as nohup.
        Some(Invocation { launcher: Some(_), arguments, .. }) => {
            let launchers = ["accelerate", "torchrun", "deepspeed"];
            let is_launcher = |word: &&String| launchers.contains(&word.rsplit('/').next().unwrap_or(word));
            command.iter().take(arguments).find(is_launcher).cloned()
        }
        Some(Invocation { target: Target::Script(script) | Target::Program(script), .. }) => Some(script),
        _ => None,
    };
    let path = search.program(&program.ok_or_else(shown)?)?;
    let content = read_text(&path, Limit::Handwritten).map_err(|_| shown())?;
    let first = content.lines().next().unwrap_or_default();
    let started: Vec<String> =
        first.strip_prefix("#!").unwrap_or_default().split_whitespace().map(str::to_owned).collect();
    if started.iter().any(|word| is_python(word.rsplit('/').next().unwrap_or(word))) {
        return follow(&started, search, depth);
    }
    // pip writes a shell script where the path of the interpreter is too long for a `#!` line.
    let beside = path.with_file_name("python");
    if content.contains("'''exec'") && beside.exists() {
        return Ok(beside);
    }
    let line = find_python_line(&content).ok_or_else(shown)?;
    follow(&line.words, search, depth)
}

impl Search<'_> {
    fn variable(&self, name: &str) -> Option<String> {
        let value = self.variables.get(name).cloned().or_else(|| env::var_os(name))?;
        value.into_string().ok().filter(|value| !value.is_empty())
    }

    /// Finds a program as the system does: a path as it is, a name on the PATH.
    fn program(&self, word: &str) -> Result<PathBuf, InterpreterError> {
        if word.contains('/') || Path::new(word).extension().is_some_and(|end| end == "py") {
            let path = self.directory.join(word);
            return if path.exists() { Ok(path) } else { Err(InterpreterError::Missing(path)) };
        }
        let path = self.variable("PATH").unwrap_or_default();
        let mut places = env::split_paths(&path).map(|folder| self.directory.join(folder).join(word));
        places.find(|place| place.is_file()).ok_or_else(|| InterpreterError::NotOnPath(word.to_owned()))
    }

    /// Returns the environment that `uv run` uses: the project's own.
    fn uv_environment(&self) -> Result<PathBuf, InterpreterError> {
        let named = self.variable("UV_PROJECT_ENVIRONMENT").map(PathBuf::from);
        let folders = self.directory.ancestors().map(|folder| folder.join(".venv"));
        let mut places = named.into_iter().chain(folders).map(|environment| environment.join("bin/python"));
        places
            .find(|python| python.symlink_metadata().is_ok())
            .ok_or_else(|| InterpreterError::NoUvEnvironment(self.directory.to_owned()))
    }

    /// Returns the interpreter behind one of pyenv's shims, which are shell scripts.
    fn behind_pyenv(&self, python: PathBuf) -> PathBuf {
        let (Some(name), Some(shims)) = (python.file_name(), python.parent()) else { return python };
        let Some(root) = shims.parent().filter(|_| shims.ends_with("shims")) else { return python };
        let read = |path: PathBuf| read_text(&path, Limit::Handwritten).ok();
        let version = self.variable("PYENV_VERSION");
        let version =
            version.or_else(|| self.directory.ancestors().find_map(|folder| read(folder.join(".python-version"))));
        let version = version.or_else(|| read(root.join("version"))).unwrap_or_default();
        let version = version.split([':', ' ', '\n']).next().unwrap_or_default().trim();
        let installed = root.join("versions").join(version).join("bin").join(name);
        if version.is_empty() || !installed.exists() { python } else { installed }
    }
}
