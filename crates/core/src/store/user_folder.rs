//! The user's own folders.

use std::env;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Returns `$NAME/downshift`, or `~/REST/downshift`.
#[must_use]
pub fn user_folder(name: &str, rest: &str) -> Option<PathBuf> {
    let set = env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = set.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(rest)))?;
    Some(base.join("downshift"))
}

/// Creates a folder below one of the user's own, with those above it, closed to others: whoever can write to `~/.cache` can
/// exchange what programs find there.
///
/// # Errors
/// Returns the system's error.
pub fn create(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}
