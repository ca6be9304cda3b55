//! Errors of metric files.

use crate::untrusted::file::ReadError;
use std::path::PathBuf;

/// Reason why a metric file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Opening or reading failed.
    #[error("{}: {source}", crate::untrusted::text::path(.path))]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        source: ReadError,
    },
    /// Neither the name nor the first bytes are those of a known format.
    #[error(
        "{}: not a known metric file: TensorBoard events, W&B offline (.wandb), trackio (.db), .csv or .jsonl",
        crate::untrusted::text::path(.path)
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// A record is damaged, or not yet written completely; the next poll tries it again.
    #[error("{}: the record at byte {at} is damaged or incomplete", crate::untrusted::text::path(.path))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the record begins.
        at: u64,
    },
    /// SQLite cannot read the file.
    #[error("{}: {}", crate::untrusted::text::path(.path), crate::untrusted::text::escape_line(&.source.to_string()))]
    Database {
        /// The file.
        path: PathBuf,
        /// The error.
        source: Box<rusqlite::Error>,
    },
}
