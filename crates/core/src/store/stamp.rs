//! The file system's record of a file. Any change of its content through the file system changes it.

use serde::{Deserialize, Serialize};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// Length, number and times of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stamp {
    /// Its length in bytes.
    pub bytes: u64,
    /// Its inode number.
    pub inode: u64,
    /// When its content last changed, in Unix nanoseconds.
    pub modified_ns: i64,
    /// When the file last changed in any way, which no program can set.
    pub changed_ns: i64,
}

impl Stamp {
    /// Reads the stamp from a file's metadata.
    #[must_use]
    pub fn of(file: &Metadata) -> Self {
        let ns = |seconds: i64, rest: i64| seconds.saturating_mul(1_000_000_000).saturating_add(rest);
        Self {
            bytes: file.len(),
            inode: file.ino(),
            modified_ns: ns(file.mtime(), file.mtime_nsec()),
            changed_ns: ns(file.ctime(), file.ctime_nsec()),
        }
    }

    /// Reports whether the content is that of another stamp, as far as a program does not reset times: links that are made
    /// or removed, and permissions, change the rest.
    #[must_use]
    pub fn has_content_of(&self, other: &Self) -> bool {
        (self.bytes, self.inode, self.modified_ns) == (other.bytes, other.inode, other.modified_ns)
    }
}
