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

impl FileEntry {
    /// Compares a file of this length and hash with the entry; the error describes the difference.
    pub(super) fn compare(&self, bytes: u64, hash: &blake3::Hash) -> Result<(), String> {
        if bytes != self.bytes {
            return Err(format!("it has {bytes} bytes and had {} when it was written", self.bytes));
        }
        if hash.to_hex().as_str() != self.blake3 {
            return Err("its content is not what was written (BLAKE3 differs)".to_owned());
        }
        Ok(())
    }
}

impl Manifest {
    pub(super) fn of(contents: &Pieces<'_>) -> Self {
        let entry = |(name, pieces): &(&str, Vec<&[u8]>)| {
            let mut hasher = blake3::Hasher::new();
            for piece in pieces {
                hasher.update(piece);
            }
            let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
            FileEntry { name: (*name).to_owned(), bytes, blake3: hasher.finalize().to_hex().to_string() }
        };
        let mut manifest = Self {
            version: VERSION,
            step: contents.step,
            samples: contents.samples,
            build: contents.build.to_owned(),
            files: contents.files.iter().map(entry).collect(),
            blake3: String::new(),
        };
        manifest.blake3 = manifest.own_hash();
        manifest
    }

    /// Returns the total size of all listed files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).unwrap_or_default();
        bytes.push(b'\n');
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let manifest: Self = serde_json::from_slice(bytes).map_err(|error| format!("it is no manifest: {error}"))?;
        if manifest.version != VERSION {
            let version = manifest.version;
            return Err(format!("it is written in version {version}; this build reads version {VERSION}"));
        }
        if manifest.own_hash() != manifest.blake3 || manifest.to_bytes() != bytes {
            return Err("its content is not what was written (BLAKE3 differs)".to_owned());
        }
        let plain = |name: &str| !name.is_empty() && !name.contains(['/', '\0']) && name != "." && name != "..";
        match manifest.files.iter().find(|file| !plain(&file.name)) {
            Some(file) => Err(format!("it names a file outside of its directory: {}", file.name)),
            None => Ok(manifest),
        }
    }

    fn own_hash(&self) -> String {
        let body = Self { blake3: String::new(), ..self.clone() };
        blake3::hash(&body.to_bytes()).to_hex().to_string()
    }
}
