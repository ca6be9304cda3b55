//! File reading whose errors name the file and the byte.

use crate::task::DataError;
use downshift_core::untrusted::file::{self, Limit};
use flate2::read::GzDecoder;
use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

/// The first two bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Returns an error about a file or folder as a whole.
pub(crate) fn data_error(file: &Path, message: impl Into<String>) -> DataError {
    DataError { file: file.display().to_string(), offset: None, message: message.into() }
}

/// Returns an error at a byte of a file.
pub(crate) fn data_error_at(file: &Path, offset: usize, message: impl Into<String>) -> DataError {
    DataError { offset: Some(offset as u64), ..data_error(file, message) }
}

/// Reads a whole file, decompressing gzip. Offsets of later errors count decompressed bytes.
pub(crate) fn read_file(file: &Path) -> Result<Vec<u8>, DataError> {
    read_file_within(file, Limit::Memory)
}

/// Opens a regular file for reading.
pub(crate) fn open_file(file: &Path) -> Result<File, DataError> {
    file::open(file).map_err(|error| data_error(file, format!("cannot be read ({error})")))
}

/// Reads a whole file of at most `limit` bytes, decompressing gzip.
pub(crate) fn read_file_within(file: &Path, limit: Limit) -> Result<Vec<u8>, DataError> {
    let bytes = file::read(file, limit).map_err(|error| data_error(file, format!("cannot be read ({error})")))?;
    if bytes.is_empty() {
        return Err(data_error_at(file, 0, "the file is empty; download it again"));
    }
    if bytes.starts_with(&GZIP) { decompress(file, &bytes) } else { Ok(bytes) }
}

/// Decompresses gzip bytes that came from `file`.
pub(crate) fn decompress(file: &Path, bytes: &[u8]) -> Result<Vec<u8>, DataError> {
    let mut unpacked = Vec::new();
    let most = Limit::Memory.bytes();
    match GzDecoder::new(bytes).take(most).read_to_end(&mut unpacked) {
        Ok(read) if read as u64 == most => {
            Err(data_error(file, "decompresses to more than this machine's memory; split it into several files"))
        }
        Ok(_) => Ok(unpacked),
        Err(error) => Err(data_error_at(
            file,
            unpacked.len(),
            format!(
                "the gzip data is truncated or damaged after this many decompressed bytes ({error}); download it again"
            ),
        )),
    }
}

/// Returns the entries of a folder, sorted by name, without hidden ones.
pub(crate) fn list_folder(folder: &Path) -> Result<Vec<PathBuf>, DataError> {
    let unreadable = |error: std::io::Error| data_error(folder, format!("cannot be listed ({error})"));
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if !file_name(&path).starts_with('.') {
            entries.push(path);
        }
    }
    entries.sort();
    Ok(entries)
}

/// Returns the last part of a path, for comparisons and messages.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Returns the first few names, for a message about a folder with unexpected content.
pub(crate) fn describe_entries(entries: &[PathBuf]) -> String {
    const SHOWN: usize = 5;
    if entries.is_empty() {
        return "the folder is empty".to_owned();
    }
    let names: Vec<_> = entries.iter().take(SHOWN).map(|path| file_name(path)).collect();
    let more = if entries.len() > SHOWN { format!(" and {} more", entries.len() - SHOWN) } else { String::new() };
    format!("found {}{more}", names.join(", "))
}
