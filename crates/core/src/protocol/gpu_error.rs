//! Why the probe cannot read the GPU, and the fix. On the wire it is one sentence, `PROBLEM: FIX`.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Reason for missing or stale GPU data while a call into the driver hangs.
pub const DRIVER_SILENT: &str = "the NVIDIA driver does not answer";

/// A GPU that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
#[error("{problem}{}", joined(.fix))]
pub struct GpuError {
    /// The problem.
    pub problem: GpuProblem,
    /// The fix, with details; empty if there is nothing to do.
    pub fix: String,
}

/// The kinds of problem. Their texts are constant and contain no colon, so that a sentence can be parsed again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuProblem {
    /// The library is being loaded; on some machines this takes seconds.
    Opening,
    /// A call into the driver hangs.
    Silent,
    /// No NVML library was found.
    LibraryMissing,
    /// The NVML library named by the user cannot be loaded.
    NamedLibraryMissing,
    /// Under WSL: the library that comes with the Windows driver is missing.
    WindowsLibraryMissing,
    /// Under WSL: there is no GPU device.
    NoWslDevice,
    /// The library lacks functions.
    LibraryUnusable,
    /// Under WSL: a Linux driver hides the Windows driver.
    LibraryShadowed,
    /// Under WSL: the Windows driver does not answer.
    WindowsDriverSilent,
    /// The driver is not loaded.
    DriverNotLoaded,
    /// The operating system denies access.
    Blocked,
    /// Driver and library have different versions.
    VersionMismatch,
    /// The user may not access the driver.
    NoPermission,
    /// The driver has lost the GPU.
    Lost,
    /// The driver reports no GPU.
    NoGpu,
    /// The driver reports fewer GPUs than the index asks for.
    NoSuchGpu,
    /// The library fails to start for another reason.
    StartFailed,
    /// A text from another version, or from another source.
    Other(String),
}

impl GpuProblem {
    const KNOWN: [Self; 17] = [
        Self::Opening,
        Self::Silent,
        Self::LibraryMissing,
        Self::NamedLibraryMissing,
        Self::WindowsLibraryMissing,
        Self::NoWslDevice,
        Self::LibraryUnusable,
        Self::LibraryShadowed,
        Self::WindowsDriverSilent,
        Self::DriverNotLoaded,
        Self::Blocked,
        Self::VersionMismatch,
        Self::NoPermission,
        Self::Lost,
        Self::NoGpu,
        Self::NoSuchGpu,
        Self::StartFailed,
    ];

    /// Reports whether the machine may simply have no NVIDIA GPU. Otherwise the driver is broken.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        matches!(
            self,
            Self::LibraryMissing
                | Self::NamedLibraryMissing
                | Self::WindowsLibraryMissing
                | Self::NoWslDevice
                | Self::NoGpu
        )
    }
}

impl fmt::Display for GpuProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Opening => "the NVIDIA driver is being opened",
            Self::Silent => DRIVER_SILENT,
            Self::LibraryMissing => "the NVIDIA library was not found",
            Self::NamedLibraryMissing => "NVML could not be loaded",
            Self::WindowsLibraryMissing => "the NVIDIA library of the Windows driver was not found",
            Self::NoWslDevice => "this WSL has no GPU device (/dev/dxg)",
            Self::LibraryUnusable => "the NVML library is unusable",
            Self::LibraryShadowed => "a Linux NVIDIA driver inside WSL hides the Windows driver",
            Self::WindowsDriverSilent => "the Windows NVIDIA driver does not answer",
            Self::DriverNotLoaded => "the NVIDIA driver is not loaded",
            Self::Blocked => "the operating system blocks access to the GPU (NVML code 17)",
            Self::VersionMismatch => "the NVIDIA driver and its library have different versions",
            Self::NoPermission => "no permission to access the NVIDIA driver",
            Self::Lost => "the NVIDIA driver has lost the GPU",
            Self::NoGpu => "the NVIDIA driver sees no GPU",
            Self::NoSuchGpu => "the GPU index is out of range",
            Self::StartFailed => "NVML failed to start",
            Self::Other(text) => text,
        })
    }
}

impl GpuError {
    /// Creates an error with a fix.
    #[must_use]
    pub fn new(problem: GpuProblem, fix: impl Into<String>) -> Self {
        Self { problem, fix: fix.into() }
    }
}

impl From<String> for GpuError {
    fn from(text: String) -> Self {
        let (problem, fix) = text.split_once(": ").unwrap_or((&text, ""));
        match GpuProblem::KNOWN.into_iter().find(|known| known.to_string() == problem) {
            Some(known) => Self::new(known, fix),
            None => Self::new(GpuProblem::Other(problem.to_owned()), fix),
        }
    }
}

impl From<GpuError> for String {
    fn from(error: GpuError) -> Self {
        error.to_string()
    }
}

fn joined(fix: &str) -> String {
    if fix.is_empty() { String::new() } else { format!(": {fix}") }
}

#[cfg(test)]
mod tests {
    use super::{GpuError, GpuProblem};

    #[test]
    fn every_problem_survives_the_wire() {
        let other = GpuProblem::Other("NVML has not answered for 5 s".to_owned());
        for problem in GpuProblem::KNOWN.into_iter().chain([other]) {
            for fix in ["", "reboot (/x.so: cannot open)"] {
                let error = GpuError::new(problem.clone(), fix);
                let json = serde_json::to_string(&error).unwrap();
                assert_eq!(json, format!("{:?}", error.to_string()));
                assert_eq!(serde_json::from_str::<GpuError>(&json).unwrap(), error);
            }
        }
    }
}
