//! Finds the program of a command before anything is started.

use crate::config::command::invocation::is_script;
use crate::config::command::template::{Template, escape};
use crate::config::run::Run;
use crate::untrusted::text;
use rustix::fs::{Access, access};
use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Why a command cannot be started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// Its working directory does not exist.
    #[error("the command's directory {0} does not exist; fix `directory`")]
    NoDirectory(String),
    /// The path names no file.
    #[error("the program {0} does not exist; fix the path in `command`, it is relative to {1}")]
    NoFile(String, String),
    /// No folder of PATH has it.
    #[error("no program called `{0}` is on the PATH; activate its environment first, or write its path in `command`")]
    NotOnPath(String),
    /// No folder of PATH has it, but the command's directory.
    #[error("no program called `{0}` is on the PATH, but a file of that name is here; write ./{0}")]
    Here(String),
    /// The file cannot be executed.
    #[error("{0} is not executable; `chmod +x` it, or write the program that runs it first: [bash, {0}]")]
    NotExecutable(String),
    /// The file is a script that needs an interpreter.
    #[error("{0} is a Python script, which cannot be started by itself; write its interpreter before it: python {0}")]
    Script(String),
    /// It is the program that measures quality.
    #[error("in section `quality`: {0}")]
    OfQuality(Box<ProgramError>),
}

/// Looks up the programs of a run's command and of the one that measures its quality, and writes their absolute paths
/// into the run, so that a later resume, even after a reboot, starts the same ones. A run without either stays as it is.
///
/// # Errors
/// Returns an error when a directory or a program does not exist.
pub fn settle_program(mut run: Run) -> Result<Run, ProgramError> {
    let path = run.rungs[0].preset.environment.get("PATH").map(OsString::from);
    let path = path.or_else(|| env::var_os("PATH")).unwrap_or_default();
    if let Some(spec) = &mut run.command {
        settle_first_word(&mut spec.command, &spec.directory, &path)?;
    }
    if let Some(quality) = &mut run.quality
        && let Some(directory) = quality.directory.clone()
    {
        let settled = settle_first_word(&mut quality.command, &directory, &path);
        settled.map_err(|error| ProgramError::OfQuality(Box::new(error)))?;
    }
    Ok(run)
}

/// Replaces the program that a command starts with by its absolute path.
fn settle_first_word(words: &mut [String], directory: &Path, path: &OsStr) -> Result<(), ProgramError> {
    if !directory.is_dir() {
        return Err(ProgramError::NoDirectory(text::path(directory)));
    }
    let Some(first) = words.first_mut() else { return Ok(()) };
    // A program named by a knob is looked up at each start.
    let fixed = Template::parse(first).ok().filter(|template| template.placeholders().next().is_none());
    let Some(program) = fixed.map(|template| template.render(|_| String::new())) else { return Ok(()) };
    let found = find_program(&program, directory, path)?;
    if let Some(found) = found.to_str() {
        *first = escape(found);
    }
    Ok(())
}

/// Returns the file that a program's name stands for.
fn find_program(program: &str, directory: &Path, path: &OsStr) -> Result<PathBuf, ProgramError> {
    if program.contains('/') {
        let file: PathBuf = directory.join(program).components().collect();
        return match (file.is_file(), is_executable(&file)) {
            (false, _) => Err(ProgramError::NoFile(text::path(&file), text::path(directory))),
            (true, false) if is_script(&file) => Err(ProgramError::Script(text::escape_line(program).into_owned())),
            (true, false) => Err(ProgramError::NotExecutable(text::path(&file))),
            (true, true) => Ok(file),
        };
    }
    let found = env::split_paths(path).map(|folder| directory.join(folder).join(program));
    let found = found.filter(|file| file.is_file()).find(|file| is_executable(file));
    let missing = || {
        let here = directory.join(program);
        let error = match (here.is_file(), is_executable(&here)) {
            (true, true) => ProgramError::Here,
            (true, false) if is_script(program) => ProgramError::Script,
            _ => ProgramError::NotOnPath,
        };
        error(text::escape_line(program).into_owned())
    };
    found.ok_or_else(missing)
}

/// Refuses a command that begins with a script which cannot be started by itself. Another program may appear later.
///
/// # Errors
/// Returns an error that names the script.
pub fn refuse_lone_script(command: &[String], directory: &Path) -> Result<(), ProgramError> {
    let path = env::var_os("PATH").unwrap_or_default();
    match command.first().map(|first| find_program(first, directory, &path)) {
        Some(Err(error @ (ProgramError::Script(_) | ProgramError::Here(_)))) => Err(error),
        _ => Ok(()),
    }
}

fn is_executable(file: &Path) -> bool {
    access(file, Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::{ProgramError, find_program};
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_program_is_found_by_name_or_path_or_it_is_said_what_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str, mode: u32| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            path
        };
        let (script, plain) = (place("bin/train", 0o755), place("data", 0o644));
        place("train.py", 0o644);
        place("tune.py", 0o755);
        let path = dir.path().join("bin").into_os_string();
        let find = |program: &str| find_program(program, dir.path(), &path);
        assert_eq!(find("train"), Ok(script.clone()));
        assert_eq!(find("./bin/train"), Ok(script.clone()));
        assert_eq!(find(&script.display().to_string()), Ok(script));
        assert_eq!(find("trian"), Err(ProgramError::NotOnPath("trian".to_owned())));
        for script in ["./train.py", "train.py"] {
            assert_eq!(find(script), Err(ProgramError::Script(script.to_owned())));
        }
        assert_eq!(find("tune.py"), Err(ProgramError::Here("tune.py".to_owned())));
        assert_eq!(find("./data"), Err(ProgramError::NotExecutable(plain.display().to_string())));
        assert_eq!(find("other.py"), Err(ProgramError::NotOnPath("other.py".to_owned())));
        assert!(matches!(find("./no.py"), Err(ProgramError::NoFile(..))));
        assert!(matches!(find("./bin"), Err(ProgramError::NoFile(..))), "a folder is not a program");
    }
}
