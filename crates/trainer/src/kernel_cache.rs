//! Locations of compiled kernels and tuning decisions.
//!
//! Compiling dominates a cold start, at about a second per kernel, and depends only on GPU, driver and
//! compiler: compiled kernels go to a user-wide cache keyed by these and by the build. Tuning picks kernels
//! by measured speed, so two tunings may pick differently and change the last bits of results; its decisions
//! are part of a run and stay with it.

use super::gpu_runtime;
use super::kernel_start::KernelStart;
use cubecl::config::{
    CubeClRuntimeConfig, RuntimeConfig,
    autotune::{AutotuneConfig, AutotuneLevel},
    cache::CacheConfig,
    compilation::CompilationConfig,
};
use downshift_core::config::knobs::{Autotune, Preset};
use downshift_core::store::kernels::{self, KernelSet, Tuning};
use downshift_core::store::user_folder;
use rustix::fs::{Access, access};
use rustix::io::Errno;
use std::fs;
use std::path::Path;

/// Configures both for this process, ignoring configuration files and `CUBECL_` variables. Call once, before
/// the first use of a device.
pub fn configure_caches(run_dir: &Path, fingerprint: &str, preset: &Preset) -> KernelStart {
    let (set, autotune) = (KernelSet::of(preset), preset.training.autotune);
    let prepared = kernels::decisions(fingerprint);
    let tuning = choose_tuning(&set, autotune, run_dir, prepared.as_deref());
    // Those that could not be taken over now cannot be at a later start either.
    let prepared = prepared.filter(|decisions| tuning != Tuning::Skipped || !set.is_tuned_in(decisions));
    let decisions = if tuning == Tuning::Skipped {
        gpu_runtime::choose_without_tuning();
        kernels::untuned_of(run_dir)
    } else {
        kernels::decisions_of(run_dir)
    };
    // CubeCL panics at a cache of another owner or on a read-only disk, so such a run keeps its kernels to itself.
    let compiled = kernels::compiled(fingerprint).filter(|folder| user_folder::create(folder).is_ok());
    let compiled = compiled.filter(|folder| is_writable(folder)).unwrap_or_else(|| decisions.clone());
    let level = match autotune {
        Autotune::Minimal => AutotuneLevel::Minimal,
        Autotune::Balanced | Autotune::Later => AutotuneLevel::Balanced,
        Autotune::Extensive => AutotuneLevel::Extensive,
        Autotune::Full => AutotuneLevel::Full,
    };
    CubeClRuntimeConfig::set(CubeClRuntimeConfig {
        autotune: AutotuneConfig { level, cache: CacheConfig::File(decisions), ..AutotuneConfig::default() },
        compilation: CompilationConfig { cache: Some(CacheConfig::File(compiled)), ..CompilationConfig::default() },
        ..CubeClRuntimeConfig::default()
    });
    KernelStart {
        set,
        tuning,
        decisions: prepared,
        count: gpu_runtime::count_kernels,
        stop_counting: gpu_runtime::stop_counting,
    }
}

/// Chooses how this start finds its kernels. A rung that tunes later takes over the decisions of `prepare` if there are
/// any by now.
fn choose_tuning(set: &KernelSet, autotune: Autotune, run_dir: &Path, prepared: Option<&Path>) -> Tuning {
    let own = kernels::decisions_of(run_dir);
    let take_over =
        || prepared.is_some_and(|other| set.is_tuned_in(other) && kernels::take_over(other, &own).unwrap_or(false));
    match autotune {
        _ if set.is_tuned_in(&own) => Tuning::Done,
        Autotune::Later if take_over() => Tuning::Done,
        Autotune::Later => Tuning::Skipped,
        _ => Tuning::Due,
    }
}

/// Reports whether this process may write a file or a folder, and everything in it: a run started with sudo leaves files
/// of root.
fn is_writable(path: &Path) -> bool {
    let needed = if path.is_dir() { Access::WRITE_OK | Access::EXEC_OK } else { Access::WRITE_OK };
    let inside = || fs::read_dir(path).into_iter().flatten().flatten();
    // Another process may just have removed its lock.
    matches!(access(path, needed), Ok(()) | Err(Errno::NOENT)) && inside().all(|entry| is_writable(&entry.path()))
}
