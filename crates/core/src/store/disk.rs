//! Checks disk space before a run starts and before each save, so that a full disk is reported early and clearly.

use crate::format::bytes;
use crate::untrusted::text;
use rustix::fs::{Access, access, statvfs};
use std::{
    io,
    path::{Path, PathBuf},
};

/// Space a run needs besides its checkpoints: run.db, logs, and a margin.
const MARGIN: u64 = 16 << 20;
/// Space needed besides one checkpoint being written: names, partial blocks, the store.
const SLACK: u64 = 1 << 20;

/// A shortage of disk space.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} has {} free, and {} are needed", text::path(.path), bytes(*.free), bytes(*.needed))]
pub struct Shortage {
    /// The path.
    pub path: PathBuf,
    /// Bytes needed.
    pub needed: u64,
    /// Bytes free.
    pub free: u64,
}

/// Returns the checkpoint size of a model with this many parameters: the weights and two moments each, in 32 bits.
#[must_use]
pub fn checkpoint_bytes(parameters: u64) -> u64 {
    parameters.saturating_mul(3 * 4)
}

/// Returns the bytes that `count` checkpoints of a run take, with everything besides them.
#[must_use]
pub fn planned(checkpoint_bytes: u64, count: u64) -> u64 {
    checkpoint_bytes.saturating_mul(count).saturating_add(MARGIN)
}

/// Returns the bytes that this process may still write where `path` lies, or will lie.
///
/// # Errors
/// Returns the system's error.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let disk = statvfs(existing(path))?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Checks that a folder lets files be made in it, or in the one in which it will be made.
///
/// # Errors
/// Returns the system's error, such as that of a read-only file system.
pub fn check_writable(path: &Path) -> io::Result<()> {
    Ok(access(existing(path), Access::WRITE_OK | Access::EXEC_OK)?)
}

/// Returns the innermost folder of a path that exists.
fn existing(path: &Path) -> &Path {
    let there = path.ancestors().find(|part| part.exists()).unwrap_or(Path::new("."));
    if there.as_os_str().is_empty() { Path::new(".") } else { there }
}

/// Checks that `needed` bytes are free at `path`. If free space is unknown, the check passes.
///
/// # Errors
/// Returns the shortage.
pub fn has_room(path: &Path, needed: u64) -> Result<(), Shortage> {
    match free_bytes(path) {
        Ok(free) if free < needed => Err(Shortage { path: path.to_owned(), needed, free }),
        _ => Ok(()),
    }
}

/// Checks that a checkpoint of `bytes` bytes can be written at `path`.
///
/// # Errors
/// Returns the shortage.
pub fn has_room_to_save(path: &Path, bytes: u64) -> Result<(), Shortage> {
    has_room(path, bytes.saturating_add(SLACK))
}

#[cfg(test)]
mod tests {
    use super::{checkpoint_bytes, free_bytes, has_room, has_room_to_save, planned};
    use tempfile::TempDir;

    #[test]
    fn the_planned_space_covers_all_checkpoints_and_a_margin() {
        let one = checkpoint_bytes(1_000_000);
        assert_eq!(one, 12_000_000);
        assert_eq!(planned(one, 7), 84_000_000 + (16 << 20));
        assert_eq!(planned(u64::MAX, 3), u64::MAX);
    }

    #[test]
    fn too_little_room_is_named_with_place_and_numbers() {
        let dir = TempDir::new().unwrap();
        let later = dir.path().join("runs/not/yet");
        assert!(free_bytes(&later).unwrap() > 0);
        assert_eq!(has_room(&later, 1), Ok(()));
        let refusal = has_room_to_save(&later, 1 << 60).unwrap_err();
        assert!(refusal.needed > 1 << 60 && refusal.free < refusal.needed);
        let text = refusal.to_string();
        assert!(text.contains("runs/not/yet has") && text.contains("TiB are needed"), "{text}");
    }
}
