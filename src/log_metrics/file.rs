//! Reads metric files while a training writes them.

use super::Reading;
use super::csv::Csv;
use super::error::FileError;
use super::joiner::Joiner;
use super::jsonl;
use super::shares::Shares;
use super::tail::{Chunk, Tail};
use super::tensorboard::{self, Events};
use super::trackio::{self, Trackio};
use super::wandb::{self, Wandb};
use std::path::{Path, PathBuf};

/// Chunks read in one poll, 16 MiB: a large file that existed before takes several polls.
const MAX_CHUNKS: usize = 256;
/// Maximum length of a line in a text file.
const MAX_LINE: usize = 256 << 10;

/// Follows one metric file. The format is recognised by its name and first bytes.
#[derive(Debug)]
pub struct FileReader {
    source: Source,
    joiner: Joiner,
    shares: Shares,
    replay: Replay,
    /// The last poll found readings.
    has_news: bool,
}

#[derive(Debug)]
enum Source {
    Tailed(Box<Tailed>),
    Trackio(Trackio),
}

impl FileReader {
    /// Opens a file.
    ///
    /// # Errors
    /// Returns an error when the file cannot be opened or its format is unknown.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let tail = Tail::open(path)?;
        let unknown = || FileError::UnknownFormat { path: path.to_owned() };
        let source = match recognise(path, &tail.peek()?).ok_or_else(unknown)? {
            Format::Trackio => Source::Trackio(Trackio::new(path)),
            Format::Growing(format) => Source::Tailed(Box::new(Tailed {
                path: path.to_owned(),
                tail,
                format,
                parser: Parser::new(format),
                pending: Vec::new(),
            })),
        };
        Ok(Self {
            source,
            joiner: Joiner::default(),
            replay: Replay::default(),
            shares: Shares::default(),
            has_news: false,
        })
    }

    /// Adds what was written since the last poll. The newest step is held back until another step or a poll without
    /// news shows that it is complete.
    ///
    /// # Errors
    /// Returns an error when the file cannot be read or is damaged; the next poll tries again from the same place.
    pub fn poll(&mut self, readings: &mut Vec<Reading>) -> Result<(), FileError> {
        let count = readings.len();
        // A rewritten file is read again from its start.
        let outcome = match self.poll_source(readings) {
            Ok(true) => {
                self.replay.restart();
                self.poll_source(readings).map(drop)
            }
            outcome => outcome.map(drop),
        };
        if readings.len() == count && !self.has_news {
            self.joiner.flush(readings);
        }
        outcome
    }

    /// Reads what the file holds already, without reporting it: it belongs to an earlier training.
    ///
    /// # Errors
    /// Returns the same errors as [`Self::poll`].
    pub fn skip_existing(&mut self) -> Result<(), FileError> {
        let mut old = Vec::new();
        loop {
            let before = self.position();
            self.poll_source(&mut old)?;
            self.joiner.discard();
            old.clear();
            if self.position() == before {
                return Ok(());
            }
        }
    }

    fn position(&self) -> u64 {
        match &self.source {
            Source::Tailed(tailed) => tailed.tail.offset(),
            Source::Trackio(trackio) => trackio.position(),
        }
    }

    /// Reads the source once. Returns whether it was rewritten.
    fn poll_source(&mut self, readings: &mut Vec<Reading>) -> Result<bool, FileError> {
        let Self { source, joiner, replay, shares, has_news } = self;
        *has_news = false;
        let mut take = |mut reading: Reading| {
            if replay.admit(&reading) {
                shares.normalise(&mut reading.values);
                *has_news = true;
                joiner.push(reading, readings);
            }
        };
        match source {
            Source::Tailed(tailed) => tailed.poll(&mut take),
            Source::Trackio(trackio) => trackio.poll(&mut take).map(|()| false),
        }
    }
}

/// The bytes that a parser used.
#[derive(Debug, Clone, Copy)]
pub struct Taken {
    pub consumed: usize,
    /// The next record is damaged, or incomplete in a way that more bytes do not explain.
    pub is_damaged: bool,
}

impl Taken {
    pub fn good(consumed: usize) -> Self {
        Self { consumed, is_damaged: false }
    }

    pub fn damaged(consumed: usize) -> Self {
        Self { consumed, is_damaged: true }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// A file that only grows.
    Growing(Growing),
    Trackio,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Growing {
    TensorBoard,
    Wandb,
    Csv,
    Jsonl,
}

/// Recognises a format; the first bytes count more than the name.
fn recognise(path: &Path, first: &[u8]) -> Option<Format> {
    let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
    let ends = |endings: &[&str]| endings.iter().any(|ending| name.ends_with(ending));
    match first {
        _ if first.starts_with(&wandb::MAGIC) => Some(Format::Growing(Growing::Wandb)),
        _ if first.starts_with(trackio::MAGIC) => Some(Format::Trackio),
        _ if tensorboard::is_event_file(first) => Some(Format::Growing(Growing::TensorBoard)),
        _ if name.contains("tfevents") => Some(Format::Growing(Growing::TensorBoard)),
        _ if ends(&[".wandb"]) => Some(Format::Growing(Growing::Wandb)),
        _ if ends(&[".jsonl", ".ndjson"]) => Some(Format::Growing(Growing::Jsonl)),
        _ if ends(&[".csv", ".tsv"]) => Some(Format::Growing(Growing::Csv)),
        _ if ends(&[".db", ".sqlite", ".sqlite3"]) && first.is_empty() => Some(Format::Trackio),
        _ if first.starts_with(b"{") => Some(Format::Growing(Growing::Jsonl)),
        _ => None,
    }
}

/// A file that only grows, and the parser of its format.
#[derive(Debug)]
struct Tailed {
    path: PathBuf,
    tail: Tail,
    format: Growing,
    parser: Parser,
    /// Bytes of an unfinished record.
    pending: Vec<u8>,
}

impl Tailed {
    /// Reads what was appended. Returns whether the file was rewritten; then none of it has been read yet.
    fn poll(&mut self, out: &mut dyn FnMut(Reading)) -> Result<bool, FileError> {
        for _ in 0..MAX_CHUNKS {
            match self.tail.read_next()? {
                Chunk::Nothing => break,
                Chunk::Restarted => {
                    self.parser = Parser::new(self.format);
                    self.pending.clear();
                    return Ok(true);
                }
                Chunk::Bytes(bytes) => self.take(&bytes, out)?,
            }
        }
        Ok(false)
    }

    fn take(&mut self, bytes: &[u8], out: &mut dyn FnMut(Reading)) -> Result<(), FileError> {
        self.pending.extend_from_slice(bytes);
        let taken = self.parser.take(&self.pending, out);
        self.pending.drain(..taken.consumed);
        if taken.is_damaged {
            self.tail.unread(self.pending.len());
            self.pending.clear();
            return Err(FileError::Damaged { path: self.path.clone(), at: self.tail.offset() });
        }
        Ok(())
    }
}

#[derive(Debug)]
enum Parser {
    Events(Events),
    Wandb(Wandb),
    Csv(Lines, Csv),
    Jsonl(Lines),
}

impl Parser {
    fn new(format: Growing) -> Self {
        match format {
            Growing::TensorBoard => Self::Events(Events::default()),
            Growing::Wandb => Self::Wandb(Wandb::default()),
            Growing::Csv => Self::Csv(Lines::default(), Csv::default()),
            Growing::Jsonl => Self::Jsonl(Lines::default()),
        }
    }

    fn take(&mut self, bytes: &[u8], out: &mut dyn FnMut(Reading)) -> Taken {
        let consumed = match self {
            Self::Events(events) => return events.take(bytes, out),
            Self::Wandb(wandb) => return wandb.take(bytes, out),
            Self::Csv(lines, csv) => lines.take(bytes, |line| csv.read_line(line).into_iter().for_each(&mut *out)),
            Self::Jsonl(lines) => lines.take(bytes, |line| jsonl::read_line(line).into_iter().for_each(&mut *out)),
        };
        Taken::good(consumed)
    }
}

/// Splits a text file into lines.
#[derive(Debug, Default)]
struct Lines {
    /// The current line is too long.
    is_overlong: bool,
}

impl Lines {
    fn take(&mut self, bytes: &[u8], mut each: impl FnMut(&str)) -> usize {
        let mut rest = bytes;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(&rest[..end]);
            let line = line.trim_end_matches('\r').trim_start_matches('\u{feff}');
            if !std::mem::take(&mut self.is_overlong) && end <= MAX_LINE && !line.trim().is_empty() {
                each(line);
            }
            rest = &rest[end + 1..];
        }
        if rest.len() > MAX_LINE {
            self.is_overlong = true;
            rest = &[];
        }
        bytes.len() - rest.len()
    }
}

/// Recognises rows that a writer repeats when it rewrites its file, as Lightning does for a new column.
#[derive(Debug, Default)]
struct Replay {
    first: Option<Reading>,
    /// Rows read of the file.
    rows: u64,
    /// Rows that were read before and come again.
    repeated: u64,
}

impl Replay {
    fn restart(&mut self) {
        self.repeated = std::mem::take(&mut self.rows);
    }

    /// Reports whether a reading is new.
    fn admit(&mut self, reading: &Reading) -> bool {
        if self.rows == 0 && !self.first.as_ref().is_some_and(|first| is_same(first, reading)) {
            self.first = Some(reading.clone());
            self.repeated = 0;
        }
        self.rows += 1;
        self.rows > self.repeated
    }
}

fn is_same(left: &Reading, right: &Reading) -> bool {
    let same =
        |(left, right): (&(String, f64), &(String, f64))| left.0 == right.0 && left.1.to_bits() == right.1.to_bits();
    left.step == right.step
        && left.values.len() == right.values.len()
        && left.values.iter().zip(&right.values).all(same)
}

#[cfg(test)]
mod tests;
