//! Saver processes under strace: records their calls, or injects a fault into one of them.

use crate::{Failing, saver};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A recorded system call.
#[derive(Debug)]
pub struct Call {
    /// Its name.
    pub name: String,
    /// Its arguments, as strace writes them with `-y -xx`.
    pub arguments: Vec<String>,
    /// Its return value, as strace writes it.
    pub result: String,
}

impl Call {
    /// Returns the saver's message if this call prints one.
    pub fn said(&self) -> Option<String> {
        let to_stdout = self.name == "write" && self.arguments.first()?.starts_with("1<");
        to_stdout.then(|| self.bytes(1)).flatten().map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Returns a quoted argument.
    pub fn bytes(&self, at: usize) -> Option<Vec<u8>> {
        unescape(self.arguments.get(at)?.strip_prefix('"')?.strip_suffix('"')?)
    }

    /// Returns the path of an open file descriptor argument: the text in angle brackets.
    pub fn path_of_fd(&self, at: usize) -> Option<PathBuf> {
        let text = self.arguments.get(at)?.split_once('<')?.1.strip_suffix('>')?;
        Some(PathBuf::from(String::from_utf8(unescape(text)?).ok()?))
    }

    /// Returns the path of a name argument, relative to the directory descriptor before it.
    pub fn path(&self, at: usize) -> Option<PathBuf> {
        let name = PathBuf::from(String::from_utf8(self.bytes(at)?).ok()?);
        match at.checked_sub(1).and_then(|folder| self.path_of_fd(folder)) {
            Some(folder) => Some(folder.join(name)),
            None => Some(name),
        }
    }
}

/// Decodes `\x68\x69`.
fn unescape(text: &str) -> Option<Vec<u8>> {
    let digits = text.split("\\x").skip(1);
    digits.map(|digits| u8::from_str_radix(digits, 16).ok()).collect()
}

/// The outcome of a saver under strace.
pub struct Ended {
    /// The messages it printed.
    pub said: Vec<String>,
    /// Whether it was killed.
    pub killed: bool,
    /// Its exit code if it was not killed.
    pub code: Option<i32>,
    /// Whether the fault was injected at all.
    pub was_hit: bool,
}

/// A folder in which a saver works, with its initial checkpoints.
pub struct Stage {
    folder: TempDir,
    template: PathBuf,
    count: u64,
}

impl Stage {
    /// Creates a stage with these versions of these steps already saved.
    pub fn new(parent: &Path, prepared: &[(u64, u64)]) -> Failing<Self> {
        let folder = tempfile::Builder::new().prefix("campaign-").tempdir_in(parent)?;
        let template = folder.path().join("template");
        fs::create_dir(&template)?;
        for (step, version) in prepared {
            saver::save(&template, *step, *version)?;
        }
        Ok(Self { folder, template, count: 0 })
    }

    /// Returns a fresh copy of the prepared folder.
    pub fn fresh(&mut self) -> Failing<PathBuf> {
        self.count += 1;
        let copy = self.folder.path().join(self.count.to_string());
        copy_folder(&self.template, &copy)?;
        Ok(copy)
    }

    /// Records all calls of a saver in a folder from [`Stage::fresh`], with only these faults injected.
    pub fn record(&self, dir: &Path, actions: &[&str], injections: &[&str]) -> Failing<Vec<Call>> {
        let injections: Vec<String> = injections.iter().map(|what| format!("inject={what}")).collect();
        let mut options = vec!["-y", "-xx", "-s", "1000000"];
        options.extend(injections.iter().flat_map(|what| ["-e", what.as_str()]));
        let (ended, text) = self.strace(dir, actions, &options)?;
        if ended.code != Some(0) || ended.said.is_empty() {
            return Err(format!("a saver under strace ended with {:?}; can it trace here? {text}", ended.code).into());
        }
        Ok(text.lines().filter_map(parse).collect())
    }

    /// Runs a saver in `dir` with these faults injected, in the syntax of `strace -e inject=`.
    pub fn inject(&self, dir: &Path, actions: &[&str], injections: &[String]) -> Failing<Ended> {
        let options: Vec<String> = injections.iter().flat_map(|what| ["-e".into(), format!("inject={what}")]).collect();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let (mut ended, text) = self.strace(dir, actions, &options)?;
        // The last injection is the one under test; the others may fire repeatedly.
        let error = injections.last().and_then(|what| what.split(':').find_map(|part| part.strip_prefix("error=")));
        let was_hit = |line: &str| error.is_some_and(|error| line.contains(error) && line.ends_with("(INJECTED)"));
        ended.was_hit = ended.killed || text.lines().any(was_hit);
        Ok(ended)
    }

    fn strace(&self, dir: &Path, actions: &[&str], options: &[&str]) -> Failing<(Ended, String)> {
        let out = self.folder.path().join("calls");
        let output = Command::new("strace")
            .args(["-f", "-qq", "-o"])
            .arg(&out)
            .args(options)
            .arg(std::env::current_exe()?)
            .arg(saver::COMMAND)
            .arg(dir)
            .args(actions)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("strace: {error}; install strace to try this"))?;
        let text = String::from_utf8_lossy(&fs::read(&out).unwrap_or_default()).into_owned();
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        let refused = words.contains("ptrace") || words.contains("PTRACE") || words.contains("invalid");
        if refused {
            return Err(format!("strace cannot trace here: {}", words.trim()).into());
        }
        let said = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
        let killed = output.status.signal() == Some(9);
        Ok((Ended { said, killed, code: output.status.code(), was_hit: false }, text))
    }
}

/// Returns the calls a saver makes between two of its messages: by name, the first and last index
/// among all its calls of that name, counted from 1.
pub fn spans(calls: &[Call], first: &str, last: &str) -> BTreeMap<String, (usize, usize)> {
    let mut spans = BTreeMap::new();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut inside = false;
    for call in calls {
        let count = counts.entry(&call.name).or_default();
        *count += 1;
        let said = call.said();
        if inside {
            spans.entry(call.name.clone()).or_insert((*count, *count)).1 = *count;
        }
        if said.as_deref().is_some_and(|said| said.starts_with(last)) {
            inside = false;
        } else if said.as_deref().is_some_and(|said| said.starts_with(first)) {
            inside = true;
        }
    }
    spans
}

/// Parses `4242 openat(AT_FDCWD</x>, "y", O_RDONLY) = 3</y>`; None for failed calls and other lines.
fn parse(line: &str) -> Option<Call> {
    let line = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
    let (name, rest) = line.split_once('(')?;
    let (arguments, result) = rest.rsplit_once(" = ")?;
    let arguments = arguments.trim_end().strip_suffix(')')?;
    Some(Call {
        name: name.to_owned(),
        arguments: arguments.split(", ").map(str::to_owned).collect(),
        result: result.to_owned(),
    })
}

/// Copies a folder recursively.
pub fn copy_folder(from: &Path, to: &Path) -> Failing<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
