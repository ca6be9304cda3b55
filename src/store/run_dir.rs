//! Where a run lives, and how one is found.

use crate::config::run::{AsWritten, Run, Source};
use rustix::fs::OFlags;
use rustix::process::getuid;
use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The directory of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunDir {
    path: PathBuf,
}

/// Why a run was not found, opened or made.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// There are no runs at all.
    #[error("no run in {0} yet; start one with `downshift run`, or name another place with --runs-dir")]
    None(String),
    /// There is none of this name.
    #[error("no run called `{name}` in {place}; `downshift runs` lists them")]
    Unknown {
        /// What was asked for.
        name: String,
        /// Where it was looked for.
        place: String,
    },
    /// What was typed fits several.
    #[error("`{name}` could be any of {count} runs, {examples}; write more of the name")]
    Several {
        /// What was asked for.
        name: String,
        /// How many it fits.
        count: usize,
        /// Some of them.
        examples: String,
    },
    /// A file of it cannot be used.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// The system's words.
        source: io::Error,
    },
    /// Its run.yaml cannot be used.
    #[error("{0}")]
    Config(String),
}

impl RunDir {
    /// Makes a directory `<name>-<date>-<time>` with its run.yaml in it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn create(runs: &Path, run: &Run) -> Result<Self, RunDirError> {
        let wrong = |path: &Path, source| RunDirError::Io { path: path.display().to_string(), source };
        fs::create_dir_all(runs).map_err(|error| wrong(runs, error))?;
        let runs = runs.canonicalize().map_err(|error| wrong(runs, error))?;
        let stamp = format!("{}-{}", run.name, jiff::Zoned::now().strftime("%Y%m%d-%H%M%S"));
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
        Err(wrong(&runs, io::Error::other("a hundred runs of this name began in this very second")))
    }

    /// The run at a path that is known to hold one.
    ///
    /// # Errors
    /// When there is no run.yaml in it.
    pub fn open(path: &Path) -> Result<Self, RunDirError> {
        let absolute = path.canonicalize().ok().filter(|path| path.join("run.yaml").is_file());
        absolute.map(|path| Self { path }).ok_or_else(|| RunDirError::Unknown {
            name: path.display().to_string(),
            place: "this file system".to_owned(),
        })
    }

    /// The run called `name` (or at that path), the newest one of that name without its time, or the
    /// only one whose name begins so; without a name the newest of all.
    ///
    /// # Errors
    /// When there is none, or several are meant.
    pub fn find(runs: &Path, name: Option<&str>) -> Result<Self, RunDirError> {
        let Some(name) = name else {
            return Self::all(runs).into_iter().next().ok_or_else(|| RunDirError::None(runs.display().to_string()));
        };
        if let Ok(found) = Self::open(&runs.join(name)).or_else(|_| Self::open(Path::new(name))) {
            return Ok(found);
        }
        let unknown = || RunDirError::Unknown { name: name.to_owned(), place: runs.display().to_string() };
        if name.is_empty() {
            return Err(unknown());
        }
        let mut starting: Vec<Self> = Self::all(runs).into_iter().filter(|run| run.name().starts_with(name)).collect();
        if let Some(newest) = starting.iter().find(|run| is_stamp(&run.name()[name.len()..])) {
            return Ok(newest.clone());
        }
        if starting.len() > 1 {
            let examples: Vec<String> = starting.iter().take(3).map(Self::name).collect();
            let (name, count) = (name.to_owned(), starting.len());
            return Err(RunDirError::Several { name, count, examples: examples.join(", ") });
        }
        starting.pop().ok_or_else(unknown)
    }

    /// All runs, newest first.
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

    /// Its path, absolute.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file in it.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Its name: the last part of its path.
    #[must_use]
    pub fn name(&self) -> String {
        self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// The command line `downshift VERB` for this run, as it works where this process works: with the
    /// folder of runs where that is not the default, quoted for a shell where that is needed.
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

    /// The run as it was resolved when it began.
    ///
    /// # Errors
    /// When run.yaml is missing or was edited into something that is no run.
    pub fn run(&self) -> Result<Run, RunDirError> {
        let path = self.file("run.yaml");
        let file = path.display().to_string();
        let text = fs::read_to_string(&path).map_err(|source| RunDirError::Io { path: file.clone(), source })?;
        let source = Source { file: &file, text: &text, base: &self.path, overrides: &[] };
        Run::read(&source, &AsWritten).map_err(|refusal| RunDirError::Config(refusal.to_string()))
    }

    /// The control socket. Its name is a hash of the run's path, since socket paths are limited to
    /// 107 bytes; it lies in a folder of the user's own.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        let hash = blake3::hash(self.path.as_os_str().as_encoded_bytes());
        socket_folder().join(format!("{}.sock", &hash.to_hex()[..16]))
    }

    /// Opens a log of this run for appending. A directory from elsewhere may hold a link in its place.
    ///
    /// # Errors
    /// When it is a link, or cannot be written.
    pub fn append(&self, name: &str) -> io::Result<fs::File> {
        let path = self.file(name);
        let mut options = fs::File::options();
        options.append(true).create(true).custom_flags(own_file());
        options.open(&path).map_err(|error| match error.raw_os_error() {
            Some(code) if code == rustix::io::Errno::LOOP.raw_os_error() => {
                io::Error::other(format!("{} is a symbolic link; remove it", path.display()))
            }
            _ => error,
        })
    }

    /// Writes a file whole or not at all.
    ///
    /// # Errors
    /// The system's words.
    pub fn write_atomically(&self, name: &str, content: &[u8]) -> io::Result<()> {
        write_whole(&self.path.join(name), content)
    }
}

/// Flags that keep an open from following a link or waiting at a pipe.
#[must_use]
pub fn own_file() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed()
}

/// A word as a shell takes it.
pub(super) fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_alphanumeric() || "_-./+,:@%=".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Whether this is what [`RunDir::create`] puts behind a name: `-20261121-070000`, maybe with `-2`.
fn is_stamp(text: &str) -> bool {
    let mut parts = text.split('-');
    let digits = |part: Option<&str>, count: usize| {
        part.is_some_and(|part| part.len() == count && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    parts.next() == Some("") && digits(parts.next(), 8) && digits(parts.next(), 6)
}

/// Writes a file whole or not at all: what was there before stays until all of it is on the disk.
///
/// # Errors
/// The system's words; then nothing has changed.
pub fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let draft = folder.join(format!(".{name}.{}", std::process::id()));
    // Others may read it, whatever the umask says, but not write.
    let mut options = fs::File::options();
    options.write(true).create(true).truncate(true).mode(0o644).custom_flags(own_file());
    let written = options
        .open(&draft)
        .and_then(|mut file| file.write_all(content).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&draft, path))
        .and_then(|()| fs::File::open(folder)?.sync_all());
    if written.is_err() {
        fs::remove_file(&draft).ok();
    }
    written
}

/// Makes the folder for sockets where it is missing; mode 0700.
///
/// # Errors
/// When it cannot be made, or belongs to somebody else.
pub fn prepare_socket_folder() -> io::Result<PathBuf> {
    let folder = socket_folder();
    DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    if fs::metadata(&folder)?.uid() != getuid().as_raw() {
        return Err(io::Error::other(format!("{} belongs to another user", folder.display())));
    }
    Ok(folder)
}

fn socket_folder() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_dir());
    match runtime {
        Some(folder) => folder.join("downshift"),
        None => std::env::temp_dir().join(format!("downshift-{}", getuid().as_raw())),
    }
}

#[cfg(test)]
mod tests {
    use super::{RunDir, RunDirError};
    use std::fs;
    use std::process::Command;
    use tempfile::TempDir;

    #[test]
    fn the_command_for_a_run_names_what_a_shell_has_to_know() {
        let dir = tempfile::tempdir().unwrap();
        let runs = dir.path().canonicalize().unwrap().join("my own's");
        let path = runs.join("digits-1");
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("run.yaml"), "").unwrap();
        let run = RunDir::open(&path).unwrap();
        assert_eq!(run.command_beside("resume", &runs), "downshift resume digits-1");
        let line = run.command_beside("resume", dir.path());
        let script = line.replacen("downshift", "printf '%s\\n'", 1);
        let words = Command::new("sh").args(["-c", &script]).output().unwrap().stdout;
        let wanted = format!("resume\n--runs-dir\n{}\ndigits-1\n", runs.display());
        assert_eq!(String::from_utf8(words).unwrap(), wanted);
    }

    #[test]
    fn half_a_name_means_a_run_only_where_it_can_mean_no_other() {
        let runs = TempDir::new().unwrap();
        for name in ["digits-20261121-070000", "digits-20261121-070001", "digits-big-20261121-070002", "text"] {
            fs::create_dir(runs.path().join(name)).unwrap();
            fs::write(runs.path().join(name).join("run.yaml"), "").unwrap();
        }
        let find = |name| RunDir::find(runs.path(), Some(name));
        assert!(find("digits").unwrap().name().starts_with("digits-2026"), "the newest of that name");
        assert_eq!(find("digits-b").unwrap().name(), "digits-big-20261121-070002");
        assert_eq!(find("te").unwrap().name(), "text");
        assert!(matches!(find("dig"), Err(RunDirError::Several { count: 3, .. })));
        assert!(matches!(find("digits-2"), Err(RunDirError::Several { count: 2, .. })));
        assert!(matches!(find(""), Err(RunDirError::Unknown { .. })));
        assert!(matches!(find("nothing"), Err(RunDirError::Unknown { .. })));
    }
}
