//! Follows a file that another program appends to, replaces or truncates.

use super::error::FileError;
use crate::untrusted::file::{self, ReadError};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Bytes read at once.
const CHUNK: usize = 64 << 10;
/// Bytes at the beginning that distinguish a rewritten file from one that grew.
const HEAD: usize = 256;

/// The outcome of one read.
#[derive(Debug, PartialEq, Eq)]
pub enum Chunk {
    /// Bytes were appended.
    Bytes(Vec<u8>),
    /// The file was replaced, truncated or rewritten: reading begins again at its start.
    Restarted,
    /// Nothing new.
    Nothing,
}

/// A file and the place up to which it was read.
#[derive(Debug)]
pub struct Tail {
    path: PathBuf,
    file: File,
    offset: u64,
    head: Vec<u8>,
}

impl Tail {
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let failed = |source| FileError::Read { path: path.to_owned(), source };
        let file = file::open(path).map_err(failed)?;
        Ok(Self { path: path.to_owned(), file, offset: 0, head: Vec::new() })
    }

    /// Returns the place of the next byte.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Goes back, so that these last bytes are read again.
    pub fn unread(&mut self, bytes: usize) {
        self.offset = self.offset.saturating_sub(bytes as u64);
    }

    /// Reads the first bytes of the file.
    pub fn peek(&self) -> Result<Vec<u8>, FileError> {
        self.read_at(0, HEAD)
    }

    /// Reads the next bytes.
    pub fn read_next(&mut self) -> Result<Chunk, FileError> {
        let start = self.read_at(0, self.head.len())?;
        let length = self.file.metadata().map_err(|error| self.failed(error.into()))?.len();
        if start != self.head || length < self.offset {
            self.restart();
            return Ok(Chunk::Restarted);
        }
        let bytes = self.read_at(self.offset, CHUNK)?;
        if bytes.is_empty() {
            return self.follow_path();
        }
        let missing = HEAD.saturating_sub(self.head.len());
        if self.offset == self.head.len() as u64 {
            self.head.extend(bytes.iter().take(missing));
        }
        self.offset += bytes.len() as u64;
        Ok(Chunk::Bytes(bytes))
    }

    /// Opens the file that the path names by now, if it is another one.
    fn follow_path(&mut self) -> Result<Chunk, FileError> {
        let now = match file::open(&self.path) {
            Ok(now) => now,
            Err(error) if error.is_missing() => return Ok(Chunk::Nothing),
            Err(error) => return Err(self.failed(error)),
        };
        let identity = |file: &File| file.metadata().map(|about| (about.dev(), about.ino()));
        let same = identity(&now).and_then(|now| Ok(now == identity(&self.file)?));
        if same.map_err(|error| self.failed(error.into()))? {
            return Ok(Chunk::Nothing);
        }
        self.file = now;
        self.restart();
        Ok(Chunk::Restarted)
    }

    fn restart(&mut self) {
        self.offset = 0;
        self.head.clear();
    }

    fn read_at(&self, offset: u64, most: usize) -> Result<Vec<u8>, FileError> {
        let mut bytes = vec![0; most];
        let mut filled = 0;
        while filled < most {
            match self.file.read_at(&mut bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error.into())),
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    fn failed(&self, source: ReadError) -> FileError {
        FileError::Read { path: self.path.clone(), source }
    }
}
