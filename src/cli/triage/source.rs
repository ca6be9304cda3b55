//! The logs that `triage` reads: files, pipes, stdin and those of runs.

use super::{Failure, say};
use crate::store::run_dir::{RunDir, RunDirError};
use crate::store::worker_log::LogFiles;
use crate::untrusted::file::{FileKind, await_writer, open_stream};
use crate::untrusted::text;
use rustix::fs::{FileType, fstat};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of a log that are looked at before it is read.
const START: usize = 1 << 18;
/// A file with more than one control character in this many is not text.
const CONTROLS: usize = 50;
/// How long a pipe may have no writer before that is said.
const SOON: Duration = Duration::from_secs(1);
/// How long to wait for a writer from then on.
const LONG: Duration = Duration::from_mins(1);

/// A log that is diagnosed.
pub enum Source {
    /// Stdin.
    Stdin,
    /// A file, a pipe or a device.
    File(PathBuf),
    /// The log of the run's scripts.
    Run(RunDir),
}

impl Source {
    /// Finds the log or the run of this name; without one, the newest run.
    pub fn find(named: Option<&Path>, runs: &Path) -> Result<Self, Failure> {
        let Some(named) = named else {
            if has_input() {
                let fix = "`downshift triage -` reads it, `downshift triage RUN` the log of a run";
                return Err(Failure::new(2, format!("stdin is a file or a pipe; {fix}")));
            }
            return Ok(Self::Run(RunDir::find(runs, None)?));
        };
        if named.as_os_str() == "-" {
            return Ok(Self::Stdin);
        }
        let run = named.to_str().filter(|_| !named.is_file()).map(|name| RunDir::find(runs, Some(name)));
        match run {
            Some(Ok(run)) => Ok(Self::Run(run)),
            Some(Err(error @ (RunDirError::Unknown { .. } | RunDirError::Misspelt { .. } | RunDirError::None(_))))
                if !named.exists() =>
            {
                let (name, runs, meant) = (text::path(named), text::path(runs), error.suggestion());
                Err(Failure::new(
                    1,
                    format!("{name} is neither a file nor a run in {runs}{meant}; `downshift runs` lists the runs"),
                ))
            }
            Some(Err(error @ RunDirError::Several { .. })) => Err(error.into()),
            _ => Ok(Self::File(named.to_owned())),
        }
    }

    /// Returns the path of the log; `-` for stdin.
    pub fn path(&self) -> PathBuf {
        match self {
            Self::Stdin => PathBuf::from("-"),
            Self::File(path) => path.clone(),
            Self::Run(run) => run.file("worker.log"),
        }
    }

    /// Returns the name of the log, or of the run.
    pub fn name(&self) -> String {
        match self {
            Self::Run(run) => text::escape_line(&run.name()).into_owned(),
            Self::Stdin | Self::File(_) => text::path(&self.path()),
        }
    }

    /// Opens the log, unless it is not text.
    pub fn open(&self) -> Result<Box<dyn BufRead>, Failure> {
        let (mut log, kind): (Box<dyn BufRead>, _) = match self {
            Self::Stdin => (Box::new(io::stdin().lock()), Some(FileKind::Pipe)),
            Self::File(_) | Self::Run(_) => {
                let (file, kind) = open_stream(&self.path()).map_err(|error| self.failure(&error))?;
                if kind == Some(FileKind::Pipe) {
                    self.await_writer(&file)?;
                }
                let log: Box<dyn Read> = match self {
                    Self::Run(_) if kind.is_none() => LogFiles::open(&self.path())
                        .and_then(LogFiles::read_whole)
                        .map_err(|error| self.failure(&error))?,
                    _ => Box::new(file),
                };
                (Box::new(BufReader::with_capacity(START, log)), kind)
            }
        };
        let start = log.fill_buf().map_err(|error| self.failure(&error))?;
        let name = text::path(&self.path());
        if let Some((packer, unpack)) = packed(start) {
            let message = format!("{name} is compressed with {packer}; run `{unpack} LOG | downshift triage -`");
            return Err(Failure::new(1, message));
        }
        if is_binary(start, kind.is_some()) {
            return Err(Failure::new(1, format!("{name} is not text; name the log that the training printed")));
        }
        Ok(log)
    }

    /// Waits until a program has opened the pipe for writing, as `cat` does, but not for ever.
    fn await_writer(&self, pipe: &File) -> Result<(), Failure> {
        let await_writer = |limit| await_writer(pipe, limit).map_err(|error| self.failure(&error));
        if await_writer(SOON)? {
            return Ok(());
        }
        let name = text::path(&self.path());
        say(&format!("{name} is a pipe that no program writes to; waits {} s for one", LONG.as_secs()));
        if await_writer(LONG)? {
            return Ok(());
        }
        let fix = "start the program that writes to it, then `downshift triage` again";
        Err(Failure::new(
            1,
            format!("{name}: nothing has opened this pipe for writing within {} s; {fix}", LONG.as_secs()),
        ))
    }

    /// Returns the failure to read the log.
    pub fn failure(&self, error: &impl fmt::Display) -> Failure {
        Failure::new(1, format!("{}: {error}", text::path(&self.path())))
    }
}

/// Reports whether stdin is a file or a pipe.
fn has_input() -> bool {
    let kind = fstat(io::stdin()).map(|stat| FileType::from_raw_mode(stat.st_mode));
    matches!(kind, Ok(FileType::Fifo | FileType::RegularFile))
}

/// Detects a compressed file by its first bytes; returns the format and the command that unpacks it.
fn packed(start: &[u8]) -> Option<(&'static str, &'static str)> {
    let known: [(&[u8], &str, &str); 5] = [
        (b"\x1f\x8b", "gzip", "zcat"),
        (b"\x28\xb5\x2f\xfd", "zstd", "zstdcat"),
        (b"\xfd7zXZ\0", "xz", "xzcat"),
        (b"BZh", "bzip2", "bzcat"),
        (b"PK\x03\x04", "zip", "unzip -p"),
    ];
    known.iter().find(|(magic, ..)| start.starts_with(magic)).map(|(_, packer, unpack)| (*packer, *unpack))
}

/// Reports whether bytes are not text, in any encoding: few control characters occur in text. Zeros do, in UTF-16 and where
/// a file was emptied while it was written; a stream of nothing else never ends.
fn is_binary(start: &[u8], is_stream: bool) -> bool {
    let shown = start.iter().filter(|byte| **byte != 0).count();
    let is_control = |byte: &&u8| matches!(byte, 1..=6 | 0x0b | 0x0e..=0x1a | 0x1c..=0x1f);
    let controls = start.iter().filter(is_control).count();
    controls * CONTROLS > shown || shown == 0 && is_stream && !start.is_empty()
}

#[cfg(test)]
mod tests {
    use super::is_binary;

    #[test]
    fn text_of_any_encoding_is_text() {
        let utf16: Vec<u8> = "step 1 loss 2.0\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let bar = "\x1b[31m 10%|█\r\x1b[0m\x08\x07\t".as_bytes();
        for start in [b"".as_slice(), b"step 1\n", &utf16, b"caf\xe9 \x83\x65\x83\x58", bar, &[0; 4096]] {
            assert!(!is_binary(start, false), "{start:?}");
        }
        let noise: Vec<u8> = (0..=u8::MAX).cycle().take(4096).collect();
        assert!(is_binary(&noise, false) && is_binary(&[0; 4096], true) && !is_binary(b"", true));
    }
}
