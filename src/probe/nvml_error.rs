//! NVML errors for users: a short reason for one metric, an error with its fix when NVML fails entirely.

use crate::protocol::gpu_error::{GpuError, GpuProblem};
use crate::protocol::probe::{GPU_LOST, GPU_NEEDS_RESET};
use crate::wsl;
use nvml_wrapper::error::NvmlError;
use std::path::{Path, PathBuf};

/// Environment variable with the path of the NVML library; no other path is tried then.
pub const NVML_PATH_VARIABLE: &str = "DOWNSHIFT_NVML_PATH";
const WSL_LIBRARY: &str = "/usr/lib/wsl/lib/libnvidia-ml.so.1";
const LIBRARY: &str = "libnvidia-ml.so.1";

/// Reasons that usually pass within seconds.
pub const TRANSIENT: [&str; 4] = [TIMED_OUT, UNKNOWN, NO_DATA, LIST_CHANGED];
const TIMED_OUT: &str = "timed out";
const UNKNOWN: &str = "unknown driver error";
const NO_DATA: &str = "no data";
const LIST_CHANGED: &str = "list changed while reading";

/// The parts of the environment that matter for NVML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Environment {
    /// Whether this is WSL.
    pub is_wsl: bool,
    /// Whether WSL's GPU device exists.
    pub has_dxg: bool,
    /// Whether the user named the library.
    pub is_named: bool,
}

impl Environment {
    /// Detects WSL and its GPU device.
    pub fn detect(is_named: bool) -> Self {
        Self { is_wsl: wsl::is_wsl(), has_dxg: wsl::has_dxg(), is_named }
    }

    /// Reports whether the wrong library was loaded: under WSL only the Windows driver's library sees the GPU.
    fn is_shadowed(self, library: &str) -> bool {
        self.is_wsl && library != WSL_LIBRARY
    }
}

/// Returns the libraries to try, best first. Under WSL the Windows driver's library comes first.
pub fn library_candidates(named: Option<&Path>, environment: Environment) -> Vec<PathBuf> {
    match named {
        Some(path) => vec![path.to_owned()],
        None if environment.has_dxg => vec![WSL_LIBRARY.into(), LIBRARY.into()],
        None => vec![LIBRARY.into()],
    }
}

/// Returns the reason why a metric is unknown, in two or three words.
pub fn metric_reason(error: &NvmlError) -> String {
    let words = match error {
        NvmlError::NotSupported => "not supported",
        NvmlError::GpuLost | NvmlError::UnexpectedVariant(28) => GPU_LOST,
        NvmlError::ResetRequired => GPU_NEEDS_RESET,
        NvmlError::OperatingSystem => "blocked by the operating system",
        NvmlError::NoPermission => "no permission",
        NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => "not in this driver",
        NvmlError::UnexpectedVariant(25) => "driver expects another version",
        NvmlError::DriverNotLoaded => "driver is not loaded",
        NvmlError::LibRmVersionMismatch => "driver versions differ",
        NvmlError::Uninitialized => "NVML is shut down",
        NvmlError::InsufficientSize(_) => LIST_CHANGED,
        NvmlError::Timeout => TIMED_OUT,
        NvmlError::NoData => NO_DATA,
        NvmlError::Unknown => UNKNOWN,
        NvmlError::UnexpectedVariant(code) => return format!("NVML code {code}"),
        other => return other.to_string(),
    };
    words.to_owned()
}

/// Returns the reason why NVML cannot be used at all, and the fix.
pub fn unusable(error: &NvmlError, library: &Path, environment: Environment) -> GpuError {
    let library = library.display().to_string();
    let (problem, fix) = match error {
        NvmlError::GpuLost | NvmlError::UnexpectedVariant(28) => {
            (GpuProblem::Lost, "restart the machine; under WSL2 run `wsl --shutdown` in Windows".to_owned())
        }
        NvmlError::LibloadingError(why) if environment.is_named => {
            (GpuProblem::NamedLibraryMissing, format!("correct or unset {NVML_PATH_VARIABLE} ({why})"))
        }
        NvmlError::LibloadingError(_) if environment.has_dxg => (
            GpuProblem::WindowsLibraryMissing,
            format!(
                "install or update the NVIDIA driver in Windows, then run `wsl --shutdown` there (expected \
                 {WSL_LIBRARY})"
            ),
        ),
        NvmlError::LibloadingError(_) if environment.is_wsl => (
            GpuProblem::NoWslDevice,
            "it must be WSL 2; run `wsl --update` in Windows and install the NVIDIA driver there".to_owned(),
        ),
        NvmlError::LibloadingError(why) => (
            GpuProblem::LibraryMissing,
            format!("install the NVIDIA driver, or name the library in {NVML_PATH_VARIABLE} ({why})"),
        ),
        NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => (
            GpuProblem::LibraryUnusable,
            format!("install a current NVIDIA driver, or correct {NVML_PATH_VARIABLE} ({library} lacks functions)"),
        ),
        NvmlError::DriverNotLoaded if environment.is_shadowed(&library) => return shadowed(&library),
        NvmlError::DriverNotLoaded if environment.is_wsl => {
            (GpuProblem::WindowsDriverSilent, "update it in Windows, then run `wsl --shutdown` there".to_owned())
        }
        NvmlError::DriverNotLoaded => {
            (GpuProblem::DriverNotLoaded, "run `sudo modprobe nvidia`, or reboot after an install".to_owned())
        }
        NvmlError::OperatingSystem if environment.is_wsl => (
            GpuProblem::Blocked,
            "run `wsl --shutdown` in Windows and start again; if that does not help, update WSL and the NVIDIA driver"
                .to_owned(),
        ),
        NvmlError::OperatingSystem => {
            (GpuProblem::Blocked, "check `dmesg`; in a container, pass the GPU in (`--gpus all`)".to_owned())
        }
        NvmlError::LibRmVersionMismatch => (GpuProblem::VersionMismatch, "reboot to finish the update".to_owned()),
        NvmlError::NoPermission => (GpuProblem::NoPermission, "give this user access to /dev/nvidia*".to_owned()),
        other => (GpuProblem::StartFailed, format!("check `nvidia-smi` ({library}: {})", metric_reason(other))),
    };
    GpuError::new(problem, fix)
}

/// Returns the error for a driver that has `count` GPUs but not this one.
pub fn no_device(index: u32, count: u32, library: &Path, environment: Environment) -> GpuError {
    let library = library.display().to_string();
    let missing = |found: String| GpuError::new(GpuProblem::NoSuchGpu, format!("there is no GPU {index}; {found}"));
    match count {
        0 if environment.is_shadowed(&library) => shadowed(&library),
        0 => GpuError::new(GpuProblem::NoGpu, "check `nvidia-smi`; in a container, pass the GPU in (`--gpus all`)"),
        1 => missing("the driver sees only GPU 0".to_owned()),
        _ => missing(format!("the driver sees {count}, numbered 0 to {}", count - 1)),
    }
}

fn shadowed(library: &str) -> GpuError {
    let fix = format!(
        "remove it (`sudo apt purge 'libnvidia-*' 'nvidia-driver-*'`) and keep only the driver in Windows ({library} \
         was loaded)"
    );
    GpuError::new(GpuProblem::LibraryShadowed, fix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvml_wrapper::Nvml;

    const NATIVE: Environment = Environment { is_wsl: false, has_dxg: false, is_named: false };
    const WSL: Environment = Environment { is_wsl: true, has_dxg: true, is_named: false };

    #[test]
    fn wsl_prefers_the_windows_library_and_a_named_one_is_the_only_candidate() {
        let named = Path::new("/opt/nvml.so");
        assert_eq!(library_candidates(Some(named), WSL), [named]);
        assert_eq!(library_candidates(None, WSL), [Path::new(WSL_LIBRARY), Path::new(LIBRARY)]);
        assert_eq!(library_candidates(None, NATIVE), [Path::new(LIBRARY)]);
    }

    #[test]
    fn every_cause_has_its_own_remedy() {
        let missing = || match Nvml::builder().lib_path("/nonexistent/nvml.so".as_ref()).init() {
            Err(error) => error,
            Ok(_) => panic!("there is no such library"),
        };
        let cases = [
            (missing(), NATIVE, GpuProblem::LibraryMissing, "install the NVIDIA driver, or name"),
            (
                missing(),
                Environment { is_named: true, ..NATIVE },
                GpuProblem::NamedLibraryMissing,
                "correct or unset DOWNSHIFT_NVML_PATH",
            ),
            (missing(), WSL, GpuProblem::WindowsLibraryMissing, "then run `wsl --shutdown` there"),
            (missing(), Environment { has_dxg: false, ..WSL }, GpuProblem::NoWslDevice, "it must be WSL 2"),
            (NvmlError::DriverNotLoaded, NATIVE, GpuProblem::DriverNotLoaded, "modprobe nvidia"),
            (NvmlError::DriverNotLoaded, WSL, GpuProblem::LibraryShadowed, "(libnvidia-ml.so.1 was loaded)"),
            (NvmlError::OperatingSystem, NATIVE, GpuProblem::Blocked, "pass the GPU in"),
            (NvmlError::OperatingSystem, WSL, GpuProblem::Blocked, "wsl --shutdown"),
            (NvmlError::LibRmVersionMismatch, NATIVE, GpuProblem::VersionMismatch, "reboot"),
            (
                NvmlError::FailedToLoadSymbol("x".into()),
                NATIVE,
                GpuProblem::LibraryUnusable,
                "correct DOWNSHIFT_NVML_PATH",
            ),
            (NvmlError::NoPermission, NATIVE, GpuProblem::NoPermission, "/dev/nvidia*"),
            (NvmlError::Unknown, NATIVE, GpuProblem::StartFailed, "unknown driver error"),
        ];
        for (error, environment, problem, fix) in cases {
            let said = unusable(&error, Path::new(LIBRARY), environment);
            assert_eq!(said.problem, problem, "{error:?} in {environment:?}");
            assert!(said.fix.contains(fix), "{error:?} in {environment:?}: {said}");
            let sentence = said.to_string();
            assert!(!sentence.contains('\n') && !sentence.contains("  "), "one tidy sentence: {sentence:?}");
        }
        let by_windows = unusable(&NvmlError::DriverNotLoaded, Path::new(WSL_LIBRARY), WSL);
        assert_eq!(by_windows.problem, GpuProblem::WindowsDriverSilent);
    }

    #[test]
    fn a_missing_gpu_says_how_many_there_are() {
        let library = Path::new(LIBRARY);
        assert_eq!(no_device(0, 0, library, NATIVE).problem, GpuProblem::NoGpu);
        assert_eq!(no_device(0, 0, library, WSL).problem, GpuProblem::LibraryShadowed);
        assert_eq!(no_device(0, 0, Path::new(WSL_LIBRARY), WSL).problem, GpuProblem::NoGpu);
        let one = no_device(1, 1, library, NATIVE);
        assert_eq!(
            (one.problem, one.fix.as_str()),
            (GpuProblem::NoSuchGpu, "there is no GPU 1; the driver sees only GPU 0")
        );
        assert!(no_device(7, 4, library, NATIVE).fix.contains("sees 4, numbered 0 to 3"));
    }

    #[test]
    fn reasons_are_short() {
        assert_eq!(metric_reason(&NvmlError::NotSupported), "not supported");
        assert_eq!(metric_reason(&NvmlError::GpuLost), "GPU is lost");
        assert_eq!(metric_reason(&NvmlError::UnexpectedVariant(29)), "NVML code 29");
        assert_eq!(metric_reason(&NvmlError::FailedToLoadSymbol("long text".into())), "not in this driver");
    }
}
