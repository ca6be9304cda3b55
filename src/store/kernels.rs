//! Where kernels are kept. Tuning decisions are in the run directory, because they are part of a run;
//! compiled kernels, and decisions for future runs, are in the user's cache.
//!
//! Both caches depend on GPU, driver, compiler and build, so the directory names contain these: a
//! device's `fingerprint` covers the first three.

use std::path::{Path, PathBuf};

/// Returns the directory of a run's tuning decisions.
#[must_use]
pub fn decisions_of(run_dir: &Path) -> PathBuf {
    run_dir.join("kernels")
}

/// Returns the directory of kernels compiled for a device; none if the user has no cache directory.
#[must_use]
pub fn compiled(fingerprint: &str) -> Option<PathBuf> {
    in_cache("kernels", fingerprint)
}

/// Returns the directory of tuning decisions that new runs on a device start with; none if the user
/// has no cache directory.
#[must_use]
pub fn decisions(fingerprint: &str) -> Option<PathBuf> {
    in_cache("tuning", fingerprint)
}

fn in_cache(kind: &str, fingerprint: &str) -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("downshift").join(kind).join(format!("{fingerprint}-{}", env!("CARGO_PKG_VERSION"))))
}
