//! Finds and reads the run file that a command names.

use crate::cli::{Failure, say};
use crate::config::command::invocation::is_script;
use crate::config::run::{Run, Source};
use crate::config::typed::nearest;
use crate::shipped;
use crate::store::run_dir::RunDir;
use crate::trainer::{OnDevice, Trainer};
use crate::untrusted::file::{self, Limit, ReadError};
use crate::untrusted::text;
use std::path::{Path, PathBuf};

const PICTURES: &str = "; to train on a folder of pictures, begin with `downshift init pictures`";

/// Loads a run file, or a shipped one of that name, for training on `device`.
pub fn load_run_file(
    config: Option<&Path>,
    overrides: &[(String, String)],
    device: &str,
    trainer: &dyn Trainer,
) -> Result<Run, Failure> {
    let path = config.unwrap_or(Path::new("digits"));
    if is_script(path) {
        let shown = text::path(path);
        let fix = format!(
            "start it with `downshift run -- python {shown}`, or propose a run file with `downshift init -- python {shown}`"
        );
        return Err(Failure::new(2, format!("`{shown}` is a script, not a run file; {fix}")));
    }
    let (name, text, base) = match file::read_text(path, Limit::Handwritten) {
        Ok(text) => {
            let absolute = path.canonicalize()?;
            (text::path(path), text, absolute.parent().map(Path::to_owned).unwrap_or_default())
        }
        // A folder of pictures may have the name of a shipped run file.
        Err(error @ (ReadError::Kind(_) | ReadError::TooLarge { .. }))
            if !path.is_dir() || shipped::run_file(path).is_none() =>
        {
            return Err(Failure::config(format!("{}: {error}{}", text::path(path), hint_for_folder(path))));
        }
        Err(ReadError::NotText { line }) => return Err(no_text(path, line)),
        Err(error) => {
            let Some((name, text)) = shipped::run_file(path) else {
                let (names, shown) = (shipped::names(), text::path(path));
                let shipped = || nearest(&shown, &names).map(str::to_owned);
                let meant = run_file_of_name(path).or_else(shipped).or_else(|| run_file_beside(path));
                let meant = meant.map(|name| format!("did you mean `{name}`? Otherwise "));
                let fix = if shown.contains('=') {
                    format!("to change a knob of the run file before it, write --set {shown}")
                } else {
                    format!("give the path of a run file, or one that ships inside: {}", names.join(", "))
                };
                return Err(Failure::new(2, format!("{shown}: {error}; {}{fix}", meant.unwrap_or_default())));
            };
            (name.to_owned(), text.to_owned(), std::env::current_dir()?)
        }
    };
    let source = Source { file: &name, text: &text, base: &base, overrides };
    let tasks = OnDevice::new(trainer, device);
    Run::read(&source, &tasks).map_err(|refusal| Failure::config(format!("{}:\n{refusal}", refusal.subject())))
}

/// Refuses the name of a run in place of a run file.
pub(super) fn refuse_run(config: &Path, runs: &Path) -> Result<(), Failure> {
    if config.is_file() || shipped::run_file(config).is_some() {
        return Ok(());
    }
    let found = config.to_str().and_then(|name| RunDir::find(runs, Some(name)).ok());
    // Of a name, a prefix is enough for other commands; here it may be a misspelt run file.
    let Some(run) = found.filter(|run| config.is_dir() || config == Path::new(&run.name())) else { return Ok(()) };
    let (resume, anew) = (run.command("resume"), run.file("run.yaml"));
    let ways = format!("`{resume}` continues it, `downshift run {}` starts another like it", text::path(&anew));
    Err(Failure::new(2, format!("{} is a run, not a run file; {ways}", run.name())))
}

/// Returns the run file with this name and the ending that was left out.
fn run_file_of_name(path: &Path) -> Option<String> {
    let file = path.with_added_extension("yaml");
    file.is_file().then(|| text::path(&file))
}

/// Suggests the run file of that name beside a folder, or how to train on a folder of pictures.
fn hint_for_folder(path: &Path) -> String {
    if let Some(meant) = run_file_of_name(path) {
        return format!("; did you mean `{meant}`?");
    }
    let has_folders = path.read_dir().is_ok_and(|all| all.flatten().any(|entry| entry.path().is_dir()));
    if has_folders { PICTURES.to_owned() } else { String::new() }
}

/// Says that a shipped run file is not the one of that name in this folder.
pub fn note_same_name(config: &Path) {
    if !config.is_file()
        && shipped::run_file(config).is_some()
        && let Some(here) = run_file_of_name(config)
    {
        say(&format!("`{}` is the run file that ships; the one in this folder is `{here}`", text::path(config)));
    }
}

/// Returns the run file in the same folder whose name was probably meant.
fn run_file_beside(missing: &Path) -> Option<String> {
    let folder = missing.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let names = std::fs::read_dir(folder).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let is_run_file = |name: &String| Path::new(name).extension().is_some_and(|end| end == "yaml" || end == "yml");
    let names: Vec<String> = names.filter(is_run_file).collect();
    let known: Vec<&str> = names.iter().map(String::as_str).collect();
    let meant = nearest(missing.file_name()?.to_str()?, &known)?;
    Some(text::path(&missing.with_file_name(meant)))
}

/// Reports a run file that is not UTF-8, with the line of the first bad byte.
fn no_text(path: &Path, line: usize) -> Failure {
    Failure::config(format!("{}:{line}: not UTF-8 text; save the file as UTF-8", text::path(path)))
}

/// Reports whether a path is a folder whose run files are meant: neither a run, nor one with the name of a shipped run file.
pub(super) fn is_folder_of_run_files(path: &Path) -> bool {
    path.is_dir() && shipped::run_file(path).is_none() && !path.join("run.yaml").is_file()
}

/// Lists the run files of a folder, in the order of their names.
///
/// # Errors
/// Returns an error when the folder cannot be read, or has none.
pub(super) fn run_files_in(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let shown = text::path(folder);
    let unreadable = |error: std::io::Error| Failure::config(format!("{shown}: {error}"));
    let entries = folder.read_dir().and_then(Iterator::collect::<Result<Vec<_>, _>>).map_err(unreadable)?;
    let is_run_file =
        |path: &PathBuf| path.is_file() && path.extension().is_some_and(|end| end == "yaml" || end == "yml");
    let mut files: Vec<PathBuf> = entries.iter().map(std::fs::DirEntry::path).filter(is_run_file).collect();
    files.sort();
    if files.is_empty() {
        return Err(Failure::config(format!(
            "{shown}: no run file (*.yaml) in this folder{}",
            hint_for_folder(folder)
        )));
    }
    Ok(files)
}
