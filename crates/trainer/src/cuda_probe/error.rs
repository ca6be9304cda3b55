//! The reasons why a GPU cannot train, each with its remedy.

use std::ffi::c_int;
use std::fmt;

/// The driver's code for a machine without a device.
pub const NO_DEVICE: c_int = 100;
/// The driver's codes for a library that does not match the kernel module.
const MISMATCHED: [c_int; 2] = [803, 804];

/// A version of CUDA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub c_int, pub c_int);

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.0, self.1)
    }
}

/// The reason why a GPU cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// The machine has no NVIDIA GPU.
    #[error("this machine has no NVIDIA GPU")]
    NoGpu,
    /// There is a GPU without a driver.
    #[error("there is an NVIDIA GPU, but no driver (libcuda.so.1); install the NVIDIA driver")]
    NoDriver,
    /// Windows has no driver, or WSL2 cannot see it.
    #[error(
        "WSL2 has no CUDA driver; install the NVIDIA driver on Windows (none inside WSL2), then run `wsl --shutdown` and \
         open the terminal again"
    )]
    NoDriverOnWsl,
    /// The driver's library lacks a function.
    #[error("the NVIDIA driver library has no {symbol}; reinstall the driver")]
    DriverBroken {
        /// The name of the function.
        symbol: &'static str,
    },
    /// The driver reports an error.
    #[error("{}", driver_failure(*.code, *.wsl))]
    Driver {
        /// The driver's code.
        code: c_int,
        /// Whether this is WSL2.
        wsl: bool,
    },
    /// No GPU has the requested index.
    #[error("there is no cuda:{index}; this machine has {}", available(*.count))]
    NoSuchGpu {
        /// The requested index.
        index: usize,
        /// The number of GPUs, at least 1.
        count: c_int,
    },
    /// The kernel compiler is missing.
    #[error(
        "NVRTC, the kernel compiler (libnvrtc.so), is missing for the {gpu}; install the CUDA {cuda} toolkit or its \
         package cuda-nvrtc{}", if *.wsl { " inside WSL2 (the Windows driver does not include it)" } else { "" }
    )]
    NoCompiler {
        /// The model of the GPU.
        gpu: String,
        /// The CUDA version of the driver.
        cuda: Version,
        /// Whether this is WSL2.
        wsl: bool,
    },
    /// The kernel compiler does not report its version.
    #[error("NVRTC does not respond; reinstall the CUDA toolkit")]
    CompilerBroken,
    /// The kernel compiler is newer than the driver.
    #[error(
        "NVRTC {compiler} compiles kernels that the driver (CUDA {driver}) cannot load; update the NVIDIA driver, or \
         install the CUDA {driver} toolkit"
    )]
    CompilerTooNew {
        /// The compiler's version.
        compiler: Version,
        /// The newest version that the driver supports.
        driver: Version,
    },
    /// The headers that kernels include are missing.
    #[error(
        "the CUDA headers are missing (include/cuda_runtime.h under CUDA_PATH, /usr/local/cuda or /opt/cuda); install \
         the toolkit or its package cuda-cudart-dev, or export CUDA_PATH={toolkit}"
    )]
    NoHeaders {
        /// The folder to name, if it is known.
        toolkit: String,
    },
    /// The headers are there, but not those for tensor cores.
    #[error(
        "the CUDA headers in {folder} lack crt/mma.h, which the kernels for this GPU include; install the toolkit or its \
         package cuda-crt (from PyPI: nvidia-cuda-nvcc of the same version)"
    )]
    NoTensorCoreHeaders {
        /// The folder of the headers.
        folder: String,
    },
}

fn available(count: c_int) -> String {
    if count == 1 { "only cuda:0".to_owned() } else { format!("cuda:0 to cuda:{}", count - 1) }
}

fn driver_failure(code: c_int, wsl: bool) -> String {
    match code {
        NO_DEVICE if wsl => "the CUDA driver of WSL2 finds no GPU; update the NVIDIA driver on Windows, then run \
                             `wsl --shutdown`"
            .to_owned(),
        NO_DEVICE => {
            "the NVIDIA driver finds no GPU; check `nvidia-smi`, and whether CUDA_VISIBLE_DEVICES hides it".to_owned()
        }
        _ if wsl => format!(
            "the GPU does not respond under WSL2 (CUDA error {code}); run `wsl --shutdown`, and remove any Linux NVIDIA \
             driver installed inside WSL2"
        ),
        _ if MISMATCHED.contains(&code) => format!(
            "the NVIDIA driver's library and its kernel module have different versions (CUDA error {code}); reboot, or \
             reinstall the driver"
        ),
        _ => format!("the NVIDIA driver fails to start (CUDA error {code}); check `nvidia-smi`, or reboot"),
    }
}
