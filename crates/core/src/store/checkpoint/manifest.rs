//! The manifest of a checkpoint, in a form that reveals any change to itself.
//!
//! A manifest has exactly one valid text for its values. Reading checks that writing the values again
//! gives the same bytes, and that the hash over all other values matches the stored hash.

use super::Pieces;
use serde::{Deserialize, Serialize};

/// Version of the container format; any other version is refused.
pub const VERSION: u32 = 1;

/// The content of `manifest.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`VERSION`] of the writer.
    pub version: u32,
    /// The checkpoint's step.
    pub step: u64,
    /// The checkpoint's clock.
    pub samples: u64,
    /// The version of the program that wrote it.
    pub build: String,
    /// All other files of the checkpoint.
    pub files: Vec<FileEntry>,
    /// BLAKE3 hash of this manifest with this field empty, in hexadecimal.
    pub blake3: String,
}

/// One file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Its name.
    pub name: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// BLAKE3 hash of its content, in hexadecimal.
    pub blake3: String,
}

/// Difference between a file of a checkpoint and what was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The length differs.
    #[error("it has {found} bytes, but {written} were written")]
    Length {
        /// The present length.
        found: u64,
        /// The length that was written.
        written: u64,
    },
    /// The hash differs.
    #[error("its content changed since it was written (BLAKE3 differs)")]
    Content,
    /// The manifest cannot be parsed.
    #[error("not a manifest: {0}")]
    NotAManifest(String),
    /// The manifest has another format.
    #[error("it has format version {0}; this build reads version {VERSION}")]
    Version(u32),
    /// The manifest lists a file that is not in its directory.
    #[error("it names a file outside its directory: {0}")]
    Outside(String),
}

impl FileEntry {
    /// Compares a file of this length and hash with the entry; the error describes the difference.
    pub(super) fn compare(&self, bytes: u64, hash: &blake3::Hash) -> Result<(), Damage> {
        if bytes != self.bytes {
            return Err(Damage::Length { found: bytes, written: self.bytes });
        }
        if hash.to_hex().as_str() != self.blake3 {
            return Err(Damage::Content);
        }
        Ok(())
    }
}

impl Manifest {
    /// Creates a manifest with its own hash.
    pub(super) fn new(step: u64, samples: u64, build: &str, files: Vec<FileEntry>) -> Self {
        let (build, blake3) = (build.to_owned(), String::new());
        let mut manifest = Self { version: VERSION, step, samples, build, files, blake3 };
        manifest.blake3 = manifest.own_hash();
        manifest
    }

    pub(super) fn of(contents: &Pieces<'_>) -> Self {
        let entry = |(name, pieces): &(&str, Vec<&[u8]>)| {
            let mut hasher = blake3::Hasher::new();
            for piece in pieces {
                hasher.update(piece);
            }
            let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
            FileEntry { name: (*name).to_owned(), bytes, blake3: hasher.finalize().to_hex().to_string() }
        };
        Self::new(contents.step, contents.samples, contents.build, contents.files.iter().map(entry).collect())
    }

    /// Returns the size of the checkpoint: of all listed files and of the manifest itself.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum::<u64>() + self.to_bytes().len() as u64
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, Damage> {
        let manifest: Self = serde_json::from_slice(bytes).map_err(|error| Damage::NotAManifest(error.to_string()))?;
        if manifest.version != VERSION {
            return Err(Damage::Version(manifest.version));
        }
        if manifest.own_hash() != manifest.blake3 || manifest.to_bytes() != bytes {
            return Err(Damage::Content);
        }
        let plain = |name: &str| !name.is_empty() && !name.contains(['/', '\0']) && name != "." && name != "..";
        match manifest.files.iter().find(|file| !plain(&file.name)) {
            Some(file) => Err(Damage::Outside(file.name.clone())),
            None => Ok(manifest),
        }
    }

    fn own_hash(&self) -> String {
        let body = Self { blake3: String::new(), ..self.clone() };
        blake3::hash(&body.to_bytes()).to_hex().to_string()
    }
}
