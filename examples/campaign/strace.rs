//! Saver processes under strace: their calls recorded, or one of them struck.

use crate::{Failing, saver};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// One system call of a record.
#[derive(Debug)]
pub struct Call {
    /// Its name.
    pub name: String,
    /// Its arguments, as strace writes them with `-y -xx`.
    pub arguments: Vec<String>,
    /// What it returned, as strace writes it.
    pub result: String,
}

impl Call {
    /// What the saver says by this call, if it is that.
    pub fn said(&self) -> Option<String> {
        let to_stdout = self.name == "write" && self.arguments.first()?.starts_with("1<");
        to_stdout.then(|| self.bytes(1)).flatten().map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// A quoted argument.
    pub fn bytes(&self, at: usize) -> Option<Vec<u8>> {
        unescape(self.arguments.get(at)?.strip_prefix('"')?.strip_suffix('"')?)
    }

    /// The path of an open file among the arguments: what stands in angle brackets.
    pub fn path_of_fd(&self, at: usize) -> Option<PathBuf> {
        let text = self.arguments.get(at)?.split_once('<')?.1.strip_suffix('>')?;
        Some(PathBuf::from(String::from_utf8(unescape(text)?).ok()?))
    }

    /// The path that a name means beside the open folder before it.
    pub fn path(&self, at: usize) -> Option<PathBuf> {
        let name = PathBuf::from(String::from_utf8(self.bytes(at)?).ok()?);
        match at.checked_sub(1).and_then(|folder| self.path_of_fd(folder)) {
            Some(folder) => Some(folder.join(name)),
            None => Some(name),
        }
    }
}

/// `\x68\x69`.
fn unescape(text: &str) -> Option<Vec<u8>> {
    let digits = text.split("\\x").skip(1);
    digits.map(|digits| u8::from_str_radix(digits, 16).ok()).collect()
}

/// How a saver under strace ended.
pub struct Ended {
    /// What it said.
    pub said: Vec<String>,
    /// Whether it was killed.
    pub killed: bool,
    /// Its exit code otherwise.
    pub code: Option<i32>,
    /// Whether the fault struck at all.
    pub struck: bool,
}

/// A folder in which a saver works, and what it finds there.
pub struct Stage {
    folder: TempDir,
    template: PathBuf,
    count: u64,
}

impl Stage {
    /// A stage where these versions of these steps have been saved before.
    pub fn new(parent: &Path, prepared: &[(u64, u64)]) -> Failing<Self> {
        let folder = tempfile::Builder::new().prefix("campaign-").tempdir_in(parent)?;
        let template = folder.path().join("template");
        fs::create_dir(&template)?;
        for (step, version) in prepared {
            saver::save(&template, *step, *version)?;
        }
        Ok(Self { folder, template, count: 0 })
    }

    /// A fresh copy of what was prepared.
    pub fn fresh(&mut self) -> Failing<PathBuf> {
        self.count += 1;
        let copy = self.folder.path().join(self.count.to_string());
        copy_folder(&self.template, &copy)?;
        Ok(copy)
    }

    /// All calls of a saver in a folder of [`Stage::fresh`], to which only these things happen.
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

    /// A saver in `dir` to which these things happen, in the words of `strace -e inject=`.
    pub fn inject(&self, dir: &Path, actions: &[&str], injections: &[String]) -> Failing<Ended> {
        let options: Vec<String> = injections.iter().flat_map(|what| ["-e".into(), format!("inject={what}")]).collect();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let (mut ended, text) = self.strace(dir, actions, &options)?;
        // The last one is what is tried; the others may strike time and again.
        let error = injections.last().and_then(|what| what.split(':').find_map(|part| part.strip_prefix("error=")));
        let struck = |line: &str| error.is_some_and(|error| line.contains(error) && line.ends_with("(INJECTED)"));
        ended.struck = ended.killed || text.lines().any(struck);
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
        Ok((Ended { said, killed, code: output.status.code(), struck: false }, text))
    }
}

/// Which calls of a saver belong to what it does between two things it says: by name, the first
/// and the last one of all its calls of this name, counted from 1.
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

/// `4242 openat(AT_FDCWD</x>, "y", O_RDONLY) = 3</y>`; none for calls that failed and other lines.
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

/// Copies a folder of folders and files.
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
