//! Locations of compiled kernels and tuning decisions.
//!
//! Compiling dominates a cold start, at about a second per kernel, and depends only on GPU, driver and
//! compiler: compiled kernels go to a user-wide cache keyed by these and by the build. Tuning picks kernels
//! by measured speed, so two tunings may pick differently and change the last bits of results; its decisions
//! are part of a run and stay with it.

use crate::config::knobs::Autotune;
use crate::store::kernels;
use cubecl::config::{
    CubeClRuntimeConfig, RuntimeConfig,
    autotune::{AutotuneConfig, AutotuneLevel},
    cache::CacheConfig,
    compilation::CompilationConfig,
};
use rustix::fs::{Access, access};
use rustix::io::Errno;
use std::fs;
use std::path::Path;

/// Configures both for this process, ignoring configuration files and `CUBECL_` variables. Call once, before
/// the first use of a device.
pub fn configure_caches(run_dir: &Path, fingerprint: &str, autotune: Autotune) {
    let decisions = kernels::decisions_of(run_dir);
    // CubeCL panics at a cache of another owner or on a read-only disk, so such a run keeps its kernels to itself.
    let compiled = kernels::compiled(fingerprint).filter(|folder| fs::create_dir_all(folder).is_ok());
    let compiled = compiled.filter(|folder| is_writable(folder)).unwrap_or_else(|| decisions.clone());
    let level = match autotune {
        Autotune::Minimal => AutotuneLevel::Minimal,
        Autotune::Balanced => AutotuneLevel::Balanced,
        Autotune::Extensive => AutotuneLevel::Extensive,
        Autotune::Full => AutotuneLevel::Full,
    };
    CubeClRuntimeConfig::set(CubeClRuntimeConfig {
        autotune: AutotuneConfig { level, cache: CacheConfig::File(decisions), ..AutotuneConfig::default() },
        compilation: CompilationConfig { cache: Some(CacheConfig::File(compiled)), ..CompilationConfig::default() },
        ..CubeClRuntimeConfig::default()
    });
}

/// Reports whether this process may write a file or a folder, and everything in it: a run started with sudo leaves files
/// of root.
fn is_writable(path: &Path) -> bool {
    let needed = if path.is_dir() { Access::WRITE_OK | Access::EXEC_OK } else { Access::WRITE_OK };
    let inside = || fs::read_dir(path).into_iter().flatten().flatten();
    // Another process may just have removed its lock.
    matches!(access(path, needed), Ok(()) | Err(Errno::NOENT)) && inside().all(|entry| is_writable(&entry.path()))
}
