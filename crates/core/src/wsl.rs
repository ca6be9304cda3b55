//! Whether this is the Windows Subsystem for Linux, where the GPU's driver runs in Windows.

use std::env;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// `1` or `0`: whether this counts as WSL.
const VARIABLE: &str = "DOWNSHIFT_WSL";

/// Reports whether this is WSL.
#[must_use]
pub fn is_wsl() -> bool {
    if let Some(given) = env::var_os(VARIABLE) {
        return given == "1";
    }
    let names_microsoft = |version: String| version.to_lowercase().contains("microsoft");
    has_dxg() || fs::read_to_string("/proc/version").is_ok_and(names_microsoft)
}

/// Reports whether WSL's GPU device exists.
#[must_use]
pub fn has_dxg() -> bool {
    Path::new("/dev/dxg").exists()
}

/// Returns the time after which the GPU memory of an ended process counts as released, where it cannot be read.
///
/// Linux closes the driver's files before the parent learns of the end, and the driver frees the memory with them.
/// Under WSL2, Windows frees it some time later.
#[must_use]
pub fn gpu_release_time() -> Duration {
    if is_wsl() { Duration::from_secs(2) } else { Duration::ZERO }
}
