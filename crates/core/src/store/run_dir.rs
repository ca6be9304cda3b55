//! Run directories: where a run lives, and how to find one.

mod error;
pub mod name;

pub use error::RunDirError;

use super::claims::Registry;
use super::lock::{no_link, open_log};
use crate::config::run::{Run, Source};
use crate::config::typed::nearest;
use crate::format::quoted;
use crate::untrusted::file::{self, Limit};
use crate::untrusted::text;
use name::{is_stamp, without_stamp};
use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The directory of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDir {
    path: PathBuf,
}

/// Names a run that lives elsewhere, if there is one: the folder may be the wrong one.
fn none_in(runs: &Path) -> RunDirError {
    let place = text::path(runs);
    let living = Registry::of_user().map(|registry| registry.living()).unwrap_or_default();
    let living = living.iter().find_map(|claim| RunDir::open(&claim.run_dir).ok());
    match living.as_ref().and_then(|run| Some((run.name(), run.path().parent()?))) {
        Some((run, folder)) => RunDirError::Elsewhere { place, run, elsewhere: text::path(folder) },
        None => RunDirError::None(place),
    }
}

/// Longest path of a run: SQLite opens no file beyond 511 bytes, and checkpoints are two directories deeper.
const LONGEST: usize = 400;
/// The mode of a file that others may read, regardless of the umask, but not write.
const READABLE: u32 = 0o644;
/// The most runs that an error suggests.
const MOST_CANDIDATES: usize = 5;
/// Files of a run that are opened for writing by name.
const WRITTEN: [&str; 5] = ["run.db", "run.db-wal", "run.db-shm", "run.db-journal", "run.db.reserve"];

impl RunDir {
    /// Creates a directory `<name>-<date>-<time>` containing a run.yaml.
    ///
    /// # Errors
    /// Returns an error when it cannot be written.
    pub fn create(runs: &Path, run: &Run) -> Result<Self, RunDirError> {
        let wrong = |path: &Path, source| RunDirError::Io { path: text::path(path), source };
        passable(runs, 0)?;
        fs::create_dir_all(runs).map_err(|error| wrong(runs, error))?;
        let runs = runs.canonicalize().map_err(|error| wrong(runs, error))?;
        let stamp = format!("{}-{}", run.name, jiff::Zoned::now().strftime("%Y%m%d-%H%M%S"));
        passable(&runs, runs.join(&stamp).as_os_str().len())?;
        let names = (1..100).map(|count| if count == 1 { stamp.clone() } else { format!("{stamp}-{count}") });
        for name in names {
            let path = runs.join(name);
            match DirBuilder::new().mode(0o755).create(&path) {
                Ok(()) => {
                    let dir = Self { path };
                    dir.write_atomically("run.yaml", run.to_yaml().as_bytes())
                        .map_err(|error| wrong(&dir.path, error))?;
                    return Ok(dir);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(wrong(&path, error)),
            }
        }
        Err(wrong(&runs, io::Error::other("a hundred runs of this name began within this second")))
    }

    /// Creates the directory of a run that has a name of its own. One without a run.yaml was left by a start that was
    /// killed, and is used.
    ///
    /// # Errors
    /// Returns an error when it cannot be written, or holds a run.
    pub fn create_named(runs: &Path, name: &str, run: &Run) -> Result<Self, RunDirError> {
        let wrong = |path: &Path, source| RunDirError::Io { path: text::path(path), source };
        passable(runs, 0)?;
        fs::create_dir_all(runs).map_err(|error| wrong(runs, error))?;
        let runs = runs.canonicalize().map_err(|error| wrong(runs, error))?;
        let dir = Self { path: runs.join(name) };
        passable(&dir.path, dir.path.as_os_str().len())?;
        match DirBuilder::new().mode(0o755).create(&dir.path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !dir.file("run.yaml").exists() => {}
            created => created.map_err(|error| wrong(&dir.path, error))?,
        }
        dir.write_atomically("run.yaml", run.to_yaml().as_bytes()).map_err(|error| wrong(&dir.path, error))?;
        Ok(dir)
    }

    /// Opens the run at a path.
    ///
    /// # Errors
    /// Returns an error when the path has no run.yaml.
    pub fn open(path: &Path) -> Result<Self, RunDirError> {
        passable(path, 0)?;
        let absolute = path.canonicalize().ok().filter(|path| path.join("run.yaml").is_file());
        absolute
            .map(|path| Self { path })
            .ok_or_else(|| RunDirError::Unknown { name: text::path(path), place: "this file system".to_owned() })
    }

    /// Finds the run with this name or path. Otherwise finds the newest run with that name and any time,
    /// or the only run whose name starts with it. Without a name, finds the newest run.
    ///
    /// # Errors
    /// Returns an error when no run matches, or several do.
    pub fn find(runs: &Path, name: Option<&str>) -> Result<Self, RunDirError> {
        let Some(name) = name else {
            return Self::all(runs).into_iter().next().ok_or_else(|| none_in(runs));
        };
        if let Ok(found) = Self::open(&runs.join(name)).or_else(|_| Self::open(Path::new(name))) {
            return Ok(found);
        }
        let (shown, place) = (text::escape_line(name).into_owned(), text::path(runs));
        if name.is_empty() {
            return Err(RunDirError::Unknown { name: shown, place });
        }
        let all = Self::all(runs);
        let mut starting: Vec<Self> = all.iter().filter(|run| run.name().starts_with(name)).cloned().collect();
        if let Some(newest) = starting.iter().find(|run| is_stamp(&run.name()[name.len()..])) {
            return Ok(newest.clone());
        }
        if starting.len() > 1 {
            let examples: Vec<String> = starting.iter().take(3).map(Self::name).collect();
            let (name, count) = (name.to_owned(), starting.len());
            return Err(RunDirError::Several { name, count, examples: examples.join(", ") });
        }
        starting.pop().ok_or_else(|| {
            let known: Vec<String> =
                all.iter().flat_map(|run| [without_stamp(&run.name()).to_owned(), run.name()]).collect();
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            // Of two letters, most names are near.
            match nearest(name, &known).filter(|_| name.len() > 2).map(str::to_owned) {
                Some(meant) => RunDirError::Misspelt { name: shown, place, meant },
                None => RunDirError::Unknown { name: shown, place },
            }
        })
    }

    /// Finds the run with exactly this name or path: a prefix may mean another run than the user has in mind.
    ///
    /// # Errors
    /// Returns an error with the runs whose names start with it.
    pub fn find_exact(runs: &Path, name: &str) -> Result<Self, RunDirError> {
        let last = Path::new(name).file_name();
        let is_named = |run: &Self| last.is_none() || run.path.file_name() == last;
        let places = [runs.join(name), PathBuf::from(name)];
        if let Some(found) = places.iter().filter_map(|place| Self::open(place).ok()).find(is_named) {
            return Ok(found);
        }
        let all: Vec<String> = Self::all(runs).iter().map(Self::name).collect();
        let starting = all.iter().filter(|full| full.starts_with(name)).take(MOST_CANDIDATES);
        let candidates: Vec<String> = starting.cloned().collect();
        let (name, place) = (text::escape_line(name).into_owned(), text::path(runs));
        Err(RunDirError::NotExact { name, place, candidates })
    }

    /// Lists all runs, newest first.
    #[must_use]
    pub fn all(runs: &Path) -> Vec<Self> {
        let entries = fs::read_dir(runs).into_iter().flatten().flatten();
        let mut found: Vec<(i64, i64, Self)> = entries
            .filter_map(|entry| {
                let made = fs::metadata(entry.path().join("run.yaml")).ok()?;
                Some((made.mtime(), made.mtime_nsec(), Self::open(&entry.path()).ok()?))
            })
            .collect();
        found.sort_by_key(|(seconds, nanoseconds, run)| std::cmp::Reverse((*seconds, *nanoseconds, run.name())));
        found.into_iter().map(|(_, _, run)| run).collect()
    }

    /// Returns the absolute path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that files written by name are in this directory and nowhere else.
    ///
    /// # Errors
    /// Returns an error that names the offending file.
    pub fn refuse_links(&self) -> Result<(), RunDirError> {
        for name in WRITTEN {
            let path = self.file(name);
            if fs::symlink_metadata(&path).is_ok_and(|found| !found.is_file()) {
                return Err(RunDirError::Link(text::path(&path)));
            }
        }
        Ok(())
    }

    /// Returns the path of a file in the directory.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Returns the printable name: the last component of the path.
    #[must_use]
    pub fn name(&self) -> String {
        let name = self.path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        text::escape_line(&name).into_owned()
    }

    /// Returns the command line `downshift VERB` for this run, as it works in this process's environment:
    /// with the runs directory if it is not the default, and quoted for a shell if necessary.
    #[must_use]
    pub fn command(&self, verb: &str) -> String {
        let named = std::env::var_os("DOWNSHIFT_RUNS_DIR").filter(|folder| !folder.is_empty());
        let default = named.map_or_else(|| PathBuf::from("runs"), PathBuf::from);
        self.command_beside(verb, &default)
    }

    fn command_beside(&self, verb: &str, default: &Path) -> String {
        let name = quoted(&self.name());
        match self.path.parent() {
            Some(runs) if default.canonicalize().is_ok_and(|default| default == runs) => {
                format!("downshift {verb} {name}")
            }
            Some(runs) => format!("downshift {verb} --runs-dir {} {name}", quoted(&runs.display().to_string())),
            None => format!("downshift {verb} {name}"),
        }
    }

    /// Reads the run as it was resolved at its start.
    ///
    /// # Errors
    /// Returns an error when run.yaml is missing, or an edit made it invalid.
    pub fn run(&self) -> Result<Run, RunDirError> {
        let path = self.file("run.yaml");
        let shown = text::path(&path);
        let text = file::read_text(&path, Limit::Record)
            .map_err(|error| RunDirError::Io { path: shown.clone(), source: error.into() })?;
        let source = Source { file: &shown, text: &text, base: &self.path, overrides: &[] };
        Run::reopen(&source).map_err(|refusal| RunDirError::Config(refusal.to_string()))
    }

    /// Returns the control socket, as far as it is known in this process's environment.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        super::socket_place::socket_of(self)
    }

    /// Opens a log of this run for appending. A directory from elsewhere may contain a link in its place.
    ///
    /// # Errors
    /// Returns an error when the log is a link, or cannot be written.
    pub fn append(&self, name: &str) -> io::Result<fs::File> {
        open_log(&self.file(name))
    }

    /// Writes a file completely or not at all.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn write_atomically(&self, name: &str, content: &[u8]) -> io::Result<()> {
        write_whole(&self.path.join(name), content)
    }
}

/// Refuses a path that is too long, or that other processes would receive in a different spelling.
fn passable(path: &Path, length: usize) -> Result<(), RunDirError> {
    let why = if path.to_str().is_none() {
        "is not UTF-8 text".to_owned()
    } else if length > LONGEST {
        format!("has {length} bytes with the run's name; the limit is {LONGEST}")
    } else {
        return Ok(());
    };
    Err(RunDirError::Unusable { path: text::path(path), why })
}

/// Writes a file completely or not at all: the previous content stays until all of the new content is on disk.
///
/// # Errors
/// Returns the system's error; then nothing has changed.
pub fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    replace_file(path, content, READABLE, fs::File::sync_all)?;
    fs::File::open(folder)?.sync_all()
}

/// Writes a file that other users cannot read, completely or not at all.
///
/// # Errors
/// Returns the system's error; then nothing has changed.
pub fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    replace_file(path, content, 0o600, fs::File::sync_all)
}

/// Writes a file that may be lost in a power failure: readers see the previous content or all of the new one.
///
/// # Errors
/// Returns the system's error; then nothing has changed.
pub fn write_unsynced(path: &Path, content: &[u8]) -> io::Result<()> {
    replace_file(path, content, READABLE, |_| Ok(()))
}

/// Writes a file whose content is on disk before it replaces the previous one. Which of both a power failure leaves is open.
///
/// # Errors
/// Returns the system's error; then nothing has changed.
pub fn write_synced(path: &Path, content: &[u8]) -> io::Result<()> {
    replace_file(path, content, READABLE, fs::File::sync_all)
}

fn replace_file(path: &Path, content: &[u8], mode: u32, sync: impl Fn(&fs::File) -> io::Result<()>) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let draft = folder.join(format!(".{name}.{}", std::process::id()));
    // An existing file of that name is a leftover of a killed process, or a trap.
    fs::remove_file(&draft).ok();
    let mut options = fs::File::options();
    options.write(true).create_new(true).mode(mode).custom_flags(no_link());
    let written = options
        .open(&draft)
        .and_then(|mut file| file.write_all(content).and_then(|()| sync(&file)))
        .and_then(|()| fs::rename(&draft, path));
    if written.is_err() {
        fs::remove_file(&draft).ok();
    }
    written
}

#[cfg(test)]
mod tests;
