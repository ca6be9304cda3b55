//! Looks for a usable NVIDIA GPU through the driver, without Burn: a missing part is an error with its remedy, where
//! Burn would panic.
//!
//! ```text
//! libcuda.so.1 ─▶ cuInit ─▶ cuDeviceGetCount ─▶ libnvrtc.so ─▶ include/cuda_runtime.h, crt/mma.h ─▶ a GPU to use
//! ```
//! Libraries found here stay loaded, so later lookups by bare name find them even outside the loader's path,
//! as under WSL2.

#![expect(unsafe_code, reason = "the driver and NVRTC are C libraries, called through symbols looked up by name")]

mod error;

pub use error::{GpuError, Version};

use downshift_core::wsl::is_wsl;
use error::NO_DEVICE;
use libloading::Library;
use std::{
    ffi::{CStr, c_char, c_int, c_uint},
    fs,
    path::PathBuf,
};

/// A GPU that can train.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// The model's name.
    pub name: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// The CUDA version of the driver's interface, and the driver's own version if it reports one.
    driver: String,
    /// Version of the kernel compiler.
    compiler: String,
}

impl Gpu {
    /// Returns a folder name that identifies everything compiled kernels depend on.
    pub fn fingerprint(&self) -> String {
        let text = format!("{}-driver-{}-nvrtc-{}", self.name, self.driver, self.compiler);
        text.chars().map(|c| if c.is_ascii_alphanumeric() || "-.".contains(c) { c } else { '_' }).collect()
    }
}

const WSL_LIBRARIES: &str = "/usr/lib/wsl/lib";
/// The driver's number for the attribute: the major number of the compute capability.
const CAPABILITY_MAJOR: c_int = 75;
/// The compute capability from which GPUs have tensor cores, and kernels include the headers for them.
const TENSOR_CORES: c_int = 7;

/// Returns the GPU with this index, if everything that training needs is present.
pub fn probe_gpu(index: usize) -> Result<Gpu, GpuError> {
    let driver_names = ["libcuda.so.1", "libcuda.so"];
    let driver = load_library(&driver_names, &[PathBuf::from(WSL_LIBRARIES)]).ok_or_else(missing_driver)?;
    let Properties { name, cuda, capability, memory_bytes } = query_driver(&driver, index)?;
    keep_loaded(driver);
    let compiler_names = ["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11"];
    let compiler = load_library(&compiler_names, &toolkit_folders()).ok_or_else(|| {
        let gpu = name.clone();
        GpuError::NoCompiler { gpu, cuda, wsl: is_wsl() }
    })?;
    let version = compiler_version(&compiler).ok_or(GpuError::CompilerBroken)?;
    keep_loaded(compiler);
    if version > cuda {
        return Err(GpuError::CompilerTooNew { compiler: version, driver: cuda });
    }
    check_headers(capability)?;
    let release = fs::read_to_string("/proc/driver/nvidia/version").ok().and_then(|text| parse_release(&text));
    let driver = release.map_or_else(|| cuda.to_string(), |release| format!("{release}-cuda-{cuda}"));
    Ok(Gpu { name, memory_bytes, driver, compiler: version.to_string() })
}

/// Loads the first library available, by bare name and then from these folders.
fn load_library(names: &[&str], folders: &[PathBuf]) -> Option<Library> {
    let bare = names.iter().map(PathBuf::from);
    let absolute = folders.iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    // SAFETY: these are NVIDIA's libraries, whose initializers only set themselves up; the training backend
    // loads the same libraries right after.
    bare.chain(absolute).find_map(|path| unsafe { Library::new(path) }.ok())
}

/// Keeps a library loaded for the rest of the process.
fn keep_loaded(library: Library) {
    std::mem::forget(library);
}

/// A GPU's properties, as its driver reports them.
struct Properties {
    name: String,
    /// The CUDA version of the driver's interface.
    cuda: Version,
    /// The major number of the compute capability.
    capability: c_int,
    memory_bytes: u64,
}

fn query_driver(driver: &Library, index: usize) -> Result<Properties, GpuError> {
    let broken = |symbol| GpuError::DriverBroken { symbol };
    let failed = |code| GpuError::Driver { code, wsl: is_wsl() };
    let (mut version, mut count, mut device, mut capability) = (0, 0, 0, 0);
    let (mut name, mut memory) = ([0; 256], 0_usize);
    // SAFETY: the signatures are those of the CUDA driver API, unchanged since CUDA 2; every pointer is to a
    // live local that is large enough, and cuInit comes before all other calls.
    let code = unsafe {
        let init = driver.get::<unsafe extern "C" fn(c_uint) -> c_int>(b"cuInit\0");
        let init = init.map_err(|_| broken("cuInit"))?;
        let get_version = driver.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"cuDriverGetVersion\0");
        let get_version = get_version.map_err(|_| broken("cuDriverGetVersion"))?;
        let get_count = driver.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(b"cuDeviceGetCount\0");
        let get_count = get_count.map_err(|_| broken("cuDeviceGetCount"))?;
        match (init(0), get_version(&raw mut version)) {
            (0, 0) => get_count(&raw mut count),
            (0, code) | (code, _) => code,
        }
    };
    if code != 0 {
        return Err(failed(code));
    }
    let ordinal = c_int::try_from(index).ok().filter(|ordinal| *ordinal < count).ok_or_else(|| match count {
        0 => failed(NO_DEVICE),
        count => GpuError::NoSuchGpu { index, count },
    })?;
    // SAFETY: as above; `name` is longer than the length passed, so it is always NUL-terminated.
    let code = unsafe {
        let get = driver.get::<unsafe extern "C" fn(*mut c_int, c_int) -> c_int>(b"cuDeviceGet\0");
        let get = get.map_err(|_| broken("cuDeviceGet"))?;
        let get_name = driver.get::<unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int>(b"cuDeviceGetName\0");
        let get_name = get_name.map_err(|_| broken("cuDeviceGetName"))?;
        let get_memory = driver.get::<unsafe extern "C" fn(*mut usize, c_int) -> c_int>(b"cuDeviceTotalMem_v2\0");
        let get_memory = get_memory.map_err(|_| broken("cuDeviceTotalMem"))?;
        let get_attribute =
            driver.get::<unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int>(b"cuDeviceGetAttribute\0");
        let get_attribute = get_attribute.map_err(|_| broken("cuDeviceGetAttribute"))?;
        let codes = [
            get(&raw mut device, ordinal),
            get_name(name.as_mut_ptr(), 255, device),
            get_memory(&raw mut memory, device),
            get_attribute(&raw mut capability, CAPABILITY_MAJOR, device),
        ];
        codes.into_iter().find(|code| *code != 0).unwrap_or(0)
    };
    if code != 0 {
        return Err(failed(code));
    }
    // SAFETY: the driver NUL-terminates the name, and the array does in any case.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned();
    let cuda = Version(version / 1000, version % 1000 / 10);
    Ok(Properties { name, cuda, capability, memory_bytes: memory as u64 })
}

fn compiler_version(compiler: &Library) -> Option<Version> {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the signature is that of NVRTC's nvrtcVersion; both pointers are to live locals.
    let code = unsafe {
        let version = compiler.get::<unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int>(b"nvrtcVersion\0").ok()?;
        version(&raw mut major, &raw mut minor)
    };
    (code == 0).then_some(Version(major, minor))
}

fn missing_driver() -> GpuError {
    if is_wsl() {
        GpuError::NoDriverOnWsl
    } else if has_nvidia_gpu() {
        GpuError::NoDriver
    } else {
        GpuError::NoGpu
    }
}

/// Checks that the headers kernels include are where the backend looks for them.
fn check_headers(capability: c_int) -> Result<(), GpuError> {
    let folder = cubecl::cuda::install::cuda_path().map(|path| path.join("include"));
    if let Some(folder) = folder.filter(|folder| folder.join("cuda_runtime.h").exists()) {
        if capability >= TENSOR_CORES && !folder.join("crt/mma.h").exists() {
            return Err(GpuError::NoTensorCoreHeaders { folder: folder.display().to_string() });
        }
        return Ok(());
    }
    let toolkit = std::env::var("CUDA_HOME").unwrap_or_else(|_| "/path/to/cuda".to_owned());
    Err(GpuError::NoHeaders { toolkit })
}

/// Returns the folders of a toolkit's libraries, for when the loader does not know them.
fn toolkit_folders() -> Vec<PathBuf> {
    let named = ["CUDA_PATH", "CUDA_HOME"].into_iter().filter_map(|name| std::env::var_os(name).map(PathBuf::from));
    let usual = ["/usr/local/cuda", "/opt/cuda"].into_iter().map(PathBuf::from);
    let inside = ["lib64", "targets/x86_64-linux/lib", "lib"];
    named.chain(usual).flat_map(|root| inside.map(|folder| root.join(folder))).collect()
}

fn has_nvidia_gpu() -> bool {
    let cards = fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    cards
        .filter_map(|card| {
            let read = |file: &str| fs::read_to_string(card.path().join(file)).ok();
            Some((read("vendor")?, read("class")?))
        })
        .any(|(vendor, class)| vendor.trim() == "0x10de" && class.starts_with("0x03"))
}

/// Returns the driver's own version from the text of `/proc/driver/nvidia/version`.
fn parse_release(text: &str) -> Option<String> {
    let is_release = |word: &&str| {
        word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.') && !word.starts_with('.')
    };
    text.lines().next()?.split_whitespace().find(is_release).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::{Gpu, GpuError, Version, parse_release};

    #[test]
    fn versions_are_read_compared_and_named() {
        assert!(Version(12, 8) < Version(13, 0) && Version(12, 8) > Version(12, 4));
        let text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder)\n";
        assert_eq!(parse_release(text).as_deref(), Some("580.65.06"));
        assert_eq!(parse_release(""), None);
        let gpu = Gpu {
            name: "NVIDIA RTX/4090 (x)".into(),
            memory_bytes: 0,
            driver: "580.65.06-cuda-13.0".into(),
            compiler: "12.8".into(),
        };
        assert_eq!(gpu.fingerprint(), "NVIDIA_RTX_4090__x_-driver-580.65.06-cuda-13.0-nvrtc-12.8");
    }

    #[test]
    fn driver_errors_name_their_remedy() {
        for (code, wsl, remedy) in [
            (100, true, "wsl --shutdown"),
            (100, false, "CUDA_VISIBLE_DEVICES"),
            (803, false, "reboot"),
            (999, true, "wsl --shutdown"),
            (999, false, "nvidia-smi"),
        ] {
            let text = GpuError::Driver { code, wsl }.to_string();
            assert!(text.contains(remedy) && (code == 100 || text.contains(&code.to_string())), "{text}");
        }
    }
}
