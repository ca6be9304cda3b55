//! The environment variables of the soft card:
//!
//! | variable | default | meaning |
//! |---|---|---|
//! | `SOFT_CARD_CAPABILITY` | `6.1` | compute capability; 8.0 has bf16 and matrix instructions |
//! | `SOFT_CARD_DEVICES` | `1` | number of devices |
//! | `SOFT_CARD_NAME` | `Soft Card 6.1` | name of every device; by default with its capability |
//! | `SOFT_CARD_MEMORY_MIB` | `8192` | memory of each device |
//! | `SOFT_CARD_MULTIPROCESSORS` | `20` | number of multiprocessors of each device |
//! | `SOFT_CARD_DRIVER`, `SOFT_CARD_NVRTC` | `12.9` | CUDA versions of the driver and of the compiler |
//! | `SOFT_CARD_INIT` | `0` | the code that `cuInit` returns |
//! | `SOFT_CARD_FAULTS` | | the script of faults, read again whenever it changes (`driver/faults.rs`) |
//! | `SOFT_CARD_LEDGER` | | the folder in which processes share their use of memory (`driver/ledger.rs`) |
//! | `SOFT_CARD_POISON` | | if set, new memory and each block's shared memory hold NaN |
//! | `SOFT_CARD_SKIP` | | if set, kernels are neither compiled nor run, so memory holds zeros and copies alone |
//! | `SOFT_CARD_TRACE` | | a file that gets a line for each launch, copy, allocation and wait (`trace.rs`) |
//! | `SOFT_CARD_SOURCES` | | a folder that gets each compiled kernel, with NVRTC's options in its first line |
//! | `SOFT_CARD_LOG` | | a file that gets a line for each loaded kernel and each fault |
//! | `SOFT_CARD_CACHE` | `soft_card` in the temporary folder | compiled kernels, by content |
//! | `SOFT_CARD_CXX` | `g++` | the compiler, g++ 12 or later |
//! | `SOFT_CARD_CXXFLAGS` | `-O2` | its flags for optimisation: at `-O1` kernels run half as fast, at `-O3` large ones take five times as long to compile |

use std::io::Write;
use std::path::PathBuf;
use std::str::FromStr;
use std::{env, fs, process};

/// Returns the value of `SOFT_CARD_…`, unless it is unset or empty.
pub fn setting(name: &str) -> Option<String> {
    env::var(format!("SOFT_CARD_{name}")).ok().filter(|value| !value.is_empty())
}

pub fn number<T: FromStr>(name: &str, default: T) -> T {
    setting(name).and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Returns a version as its two numbers.
pub fn version(name: &str, default: (i32, i32)) -> (i32, i32) {
    let parse = |value: String| {
        let (major, minor) = value.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    setting(name).and_then(parse).unwrap_or(default)
}

pub fn capability() -> (i32, i32) {
    version("CAPABILITY", (6, 1))
}

/// Returns the CUDA version of the driver.
pub fn driver() -> (i32, i32) {
    version("DRIVER", (12, 9))
}

/// Reports whether kernels are neither compiled nor run.
pub fn skips_kernels() -> bool {
    setting("SKIP").is_some()
}

pub fn cache() -> PathBuf {
    setting("CACHE").map_or_else(|| env::temp_dir().join("soft_card"), PathBuf::from)
}

/// Adds a line to the log, if there is one.
pub fn log(line: &str) {
    let Some(path) = setting("LOG") else { return };
    if let Ok(mut file) = fs::OpenOptions::new().create(true).append(true).open(path) {
        let _ = file.write_all(format!("{} {line}\n", process::id()).as_bytes());
    }
}
