//! Where kernels are kept: tuning decisions in the run directory, because they are part of a run; what
//! was compiled, and decisions for runs to come, in the user's cache.
//!
//! Both of the cache depend on GPU, driver, compiler and build, so these are in the names of its
//! folders: the `fingerprint` of a device says the first three.

use std::path::{Path, PathBuf};

/// The tuning decisions of a run.
#[must_use]
pub fn decisions_of(run_dir: &Path) -> PathBuf {
    run_dir.join("kernels")
}

/// Kernels that were compiled for a device; none where there is no place for them.
#[must_use]
pub fn compiled(fingerprint: &str) -> Option<PathBuf> {
    in_cache("kernels", fingerprint)
}

/// Tuning decisions for a device that new runs begin with; none where there is no place for them.
#[must_use]
pub fn decisions(fingerprint: &str) -> Option<PathBuf> {
    in_cache("tuning", fingerprint)
}

fn in_cache(kind: &str, fingerprint: &str) -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(cache.join("downshift").join(kind).join(format!("{fingerprint}-{}", env!("CARGO_PKG_VERSION"))))
}
