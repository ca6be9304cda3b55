//! Reading data files so that whatever is wrong names the file and the byte.

use crate::train::task::DataError;
use crate::untrusted::file::{self, Limit};
use flate2::read::GzDecoder;
use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

/// The first two bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Something wrong with a file or folder as a whole.
pub(crate) fn wrong(file: &Path, message: impl Into<String>) -> DataError {
    DataError { file: file.display().to_string(), offset: None, message: message.into() }
}

/// Something wrong at a byte of a file.
pub(crate) fn wrong_at(file: &Path, offset: usize, message: impl Into<String>) -> DataError {
    DataError { offset: Some(offset as u64), ..wrong(file, message) }
}

/// A whole file, unpacked if it is gzip. Offsets of later errors count unpacked bytes.
pub(crate) fn read(file: &Path) -> Result<Vec<u8>, DataError> {
    read_within(file, Limit::Memory)
}

/// A regular file, open for reading.
pub(crate) fn open(file: &Path) -> Result<File, DataError> {
    file::open(file).map_err(|error| wrong(file, format!("cannot be read ({error})")))
}

/// A whole file of at most so many bytes, unpacked if it is gzip.
pub(crate) fn read_within(file: &Path, limit: Limit) -> Result<Vec<u8>, DataError> {
    let bytes = file::read(file, limit).map_err(|error| wrong(file, format!("cannot be read ({error})")))?;
    if bytes.is_empty() {
        return Err(wrong_at(file, 0, "the file is empty; fetch it again"));
    }
    if bytes.starts_with(&GZIP) { unpack(file, &bytes) } else { Ok(bytes) }
}

/// Unpacks gzip bytes that came from `file`.
pub(crate) fn unpack(file: &Path, bytes: &[u8]) -> Result<Vec<u8>, DataError> {
    let mut unpacked = Vec::new();
    let most = Limit::Memory.bytes();
    match GzDecoder::new(bytes).take(most).read_to_end(&mut unpacked) {
        Ok(read) if read as u64 == most => {
            Err(wrong(file, "unpacks to more than the memory of this machine; split it into several files"))
        }
        Ok(_) => Ok(unpacked),
        Err(error) => Err(wrong_at(
            file,
            unpacked.len(),
            format!("the gzip data break off or are damaged after this many unpacked bytes ({error}); fetch it again"),
        )),
    }
}

/// What a folder holds, sorted by name, hidden entries left out.
pub(crate) fn list(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let unreadable = |error: std::io::Error| wrong(folder, format!("cannot be listed ({error})"));
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if !name(&path).starts_with('.') {
            entries.push(path);
        }
    }
    entries.sort();
    Ok(entries)
}

/// The last part of a path, for comparing and for messages.
pub(crate) fn name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// The first few names, for a message about a folder that holds something unexpected.
pub(crate) fn found(entries: &[PathBuf]) -> String {
    const SHOWN: usize = 5;
    if entries.is_empty() {
        return "the folder is empty".to_owned();
    }
    let names: Vec<_> = entries.iter().take(SHOWN).map(|path| name(path)).collect();
    let more = if entries.len() > SHOWN { format!(" and {} more", entries.len() - SHOWN) } else { String::new() };
    format!("found {}{more}", names.join(", "))
}
