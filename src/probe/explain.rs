//! NVML errors in words: a short reason for one metric, a sentence with the fix when NVML fails entirely.

use nvml_wrapper::error::NvmlError;
use std::fs;
use std::path::{Path, PathBuf};

/// Environment variable with the path of the NVML library; no other path is tried then.
pub const NVML_PATH_VARIABLE: &str = "DOWNSHIFT_NVML_PATH";
const WSL_LIBRARY: &str = "/usr/lib/wsl/lib/libnvidia-ml.so.1";
const LIBRARY: &str = "libnvidia-ml.so.1";

/// The parts of the environment that matter for NVML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Whether this is WSL.
    pub wsl: bool,
    /// Whether WSL's GPU device exists.
    pub dxg: bool,
    /// Whether the environment named the library.
    pub named: bool,
}

impl Place {
    /// Inspects the environment.
    pub fn look(named: bool) -> Self {
        let dxg = Path::new("/dev/dxg").exists();
        let version = fs::read_to_string("/proc/version").unwrap_or_default();
        Self { wsl: dxg || version.to_lowercase().contains("microsoft"), dxg, named }
    }
}

/// Returns the libraries to try, best first. Under WSL the Windows driver's library comes first.
pub fn candidates(named: Option<&Path>, place: Place) -> Vec<PathBuf> {
    match named {
        Some(path) => vec![path.to_owned()],
        None if place.dxg => vec![WSL_LIBRARY.into(), LIBRARY.into()],
        None => vec![LIBRARY.into()],
    }
}

/// Returns the reason why a metric is unknown, in two or three words.
pub fn reason(error: &NvmlError) -> String {
    let words = match error {
        NvmlError::NotSupported => "not supported",
        NvmlError::GpuLost | NvmlError::UnexpectedVariant(28) => "GPU is lost",
        NvmlError::ResetRequired => "GPU needs a reset",
        NvmlError::OperatingSystem => "blocked by the operating system",
        NvmlError::NoPermission => "no permission",
        NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => "not in this driver",
        NvmlError::UnexpectedVariant(25) => "driver wants another version",
        NvmlError::DriverNotLoaded => "driver is not loaded",
        NvmlError::LibRmVersionMismatch => "driver versions differ",
        NvmlError::Uninitialized => "NVML is shut down",
        NvmlError::InsufficientSize(_) => "list changed while reading",
        NvmlError::Timeout => "timed out",
        NvmlError::NoData => "no data",
        NvmlError::Unknown => "unknown error of the driver",
        NvmlError::UnexpectedVariant(code) => return format!("NVML code {code}"),
        other => return other.to_string(),
    };
    words.to_owned()
}

/// Returns one sentence: the reason why NVML cannot be used at all, and the fix.
pub fn sentence(error: &NvmlError, library: &Path, place: Place) -> String {
    let library = library.display();
    match error {
        NvmlError::LibloadingError(why) if place.named => {
            format!("NVML could not be loaded ({why}): correct or unset {NVML_PATH_VARIABLE}")
        }
        NvmlError::LibloadingError(_) if place.dxg => format!(
            "the NVIDIA library of the Windows driver was not found ({WSL_LIBRARY}): install or update the NVIDIA driver \
             in Windows, then run `wsl --shutdown` there"
        ),
        NvmlError::LibloadingError(_) if place.wsl => "this WSL has no GPU device (/dev/dxg): it must be WSL 2; run \
             `wsl --update` in Windows and install the NVIDIA driver there"
            .to_owned(),
        NvmlError::LibloadingError(why) => format!(
            "the NVIDIA library was not found ({why}): install the NVIDIA driver, or name the library in \
             {NVML_PATH_VARIABLE}"
        ),
        NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => {
            format!(
                "{library} is no usable NVML library: install a current NVIDIA driver, or correct {NVML_PATH_VARIABLE}"
            )
        }
        NvmlError::DriverNotLoaded if place.shadowed(&library.to_string()) => shadow(&library.to_string()),
        NvmlError::DriverNotLoaded if place.wsl => {
            "the NVIDIA driver of Windows does not answer: update it in Windows, \
             then run `wsl --shutdown` there"
                .to_owned()
        }
        NvmlError::DriverNotLoaded => {
            "the NVIDIA driver is not loaded: run `sudo modprobe nvidia`, or reboot after an install".to_owned()
        }
        NvmlError::OperatingSystem if place.wsl => "the operating system blocks access to the GPU (NVML code 17): run \
             `wsl --shutdown` in Windows and start again; if it stays, update WSL and the NVIDIA driver"
            .to_owned(),
        NvmlError::OperatingSystem => "the operating system blocks access to the GPU (NVML code 17): see what `dmesg` \
             says of it; in a container, pass the GPU in"
            .to_owned(),
        NvmlError::LibRmVersionMismatch => {
            "the NVIDIA driver and its library are of different versions: reboot to finish the update".to_owned()
        }
        NvmlError::NoPermission => {
            "no permission to talk to the NVIDIA driver: give this user access to /dev/nvidia*".to_owned()
        }
        other => format!("NVML of {library} does not start ({}): see what `nvidia-smi` says", reason(other)),
    }
}

/// Returns one sentence for a driver without such a GPU.
pub fn no_device(index: u32, count: u32, library: &Path, place: Place) -> String {
    let library = library.display().to_string();
    match count {
        0 if place.shadowed(&library) => shadow(&library),
        0 => "the NVIDIA driver sees no GPU: check `nvidia-smi`; in a container, pass the GPU in".to_owned(),
        1 => format!("there is no GPU {index}: the driver sees one, number 0"),
        _ => format!("there is no GPU {index}: the driver sees {count}, 0 to {}", count - 1),
    }
}

fn shadow(library: &str) -> String {
    format!(
        "a Linux NVIDIA driver inside WSL hides the one of Windows ({library} was loaded): remove it \
         (`sudo apt purge 'libnvidia-*' 'nvidia-driver-*'`) and keep only the driver in Windows"
    )
}

impl Place {
    /// Reports whether the wrong library was loaded: under WSL only the Windows driver's library sees the GPU.
    fn shadowed(self, library: &str) -> bool {
        self.wsl && library != WSL_LIBRARY
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvml_wrapper::Nvml;

    const NATIVE: Place = Place { wsl: false, dxg: false, named: false };
    const WSL: Place = Place { wsl: true, dxg: true, named: false };

    #[test]
    fn the_windows_library_comes_first_under_wsl_and_a_named_one_stands_alone() {
        let named = Path::new("/opt/nvml.so");
        assert_eq!(candidates(Some(named), WSL), [named]);
        assert_eq!(candidates(None, WSL), [Path::new(WSL_LIBRARY), Path::new(LIBRARY)]);
        assert_eq!(candidates(None, NATIVE), [Path::new(LIBRARY)]);
    }

    #[test]
    fn every_cause_has_its_own_way_out() {
        let missing = || match Nvml::builder().lib_path("/nonexistent/nvml.so".as_ref()).init() {
            Err(error) => error,
            Ok(_) => panic!("there is no such library"),
        };
        let cases = [
            (missing(), NATIVE, "install the NVIDIA driver, or name"),
            (missing(), Place { named: true, ..NATIVE }, "correct or unset DOWNSHIFT_NVML_PATH"),
            (missing(), WSL, "of the Windows driver was not found"),
            (missing(), Place { dxg: false, ..WSL }, "it must be WSL 2"),
            (NvmlError::DriverNotLoaded, NATIVE, "modprobe nvidia"),
            (NvmlError::DriverNotLoaded, WSL, "hides the one of Windows (libnvidia-ml.so.1 was loaded)"),
            (NvmlError::OperatingSystem, NATIVE, "pass the GPU in"),
            (NvmlError::OperatingSystem, WSL, "wsl --shutdown"),
            (NvmlError::LibRmVersionMismatch, NATIVE, "reboot"),
            (NvmlError::FailedToLoadSymbol("x".into()), NATIVE, "no usable NVML"),
            (NvmlError::Unknown, NATIVE, "unknown error of the driver"),
        ];
        for (error, place, expected) in cases {
            let said = sentence(&error, Path::new(LIBRARY), place);
            assert!(said.contains(expected), "{error:?} in {place:?}: {said}");
            assert!(!said.contains('\n') && !said.contains("  "), "one tidy sentence: {said:?}");
        }
        let by_windows = sentence(&NvmlError::DriverNotLoaded, Path::new(WSL_LIBRARY), WSL);
        assert!(by_windows.contains("update it in Windows"), "{by_windows}");
    }

    #[test]
    fn a_missing_gpu_says_how_many_there_are() {
        let library = Path::new(LIBRARY);
        assert!(no_device(0, 0, library, NATIVE).contains("sees no GPU"));
        assert!(no_device(0, 0, library, WSL).contains("hides the one of Windows"));
        assert!(no_device(0, 0, Path::new(WSL_LIBRARY), WSL).contains("sees no GPU"));
        assert!(no_device(1, 1, library, NATIVE).contains("sees one, number 0"));
        assert!(no_device(7, 4, library, NATIVE).contains("sees 4, 0 to 3"));
    }

    #[test]
    fn reasons_are_short() {
        assert_eq!(reason(&NvmlError::NotSupported), "not supported");
        assert_eq!(reason(&NvmlError::GpuLost), "GPU is lost");
        assert_eq!(reason(&NvmlError::UnexpectedVariant(29)), "NVML code 29");
        assert_eq!(reason(&NvmlError::FailedToLoadSymbol("long text".into())), "not in this driver");
    }
}
