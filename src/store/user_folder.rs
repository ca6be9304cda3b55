//! The user's own folders.

use std::env;
use std::path::PathBuf;

/// Returns `$NAME/downshift`, or `~/REST/downshift`.
#[must_use]
pub fn user_folder(name: &str, rest: &str) -> Option<PathBuf> {
    let set = env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = set.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(rest)))?;
    Some(base.join("downshift"))
}
