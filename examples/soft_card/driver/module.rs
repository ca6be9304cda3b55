//! Modules and functions: compiled kernels, loaded.

use super::abi::{Code, INVALID_PTX, Kernel, NOT_FOUND, NOT_SUPPORTED, Run};
use super::fibers::SERVICES;
use super::handles::Handles;
use super::switch;
use crate::build::build_kernel;
use crate::settings;
use std::ffi::{CStr, CString, c_void};
use std::os::unix::ffi::OsStrExt;
use std::slice;
use std::sync::Arc;

pub static MODULES: Handles<Module> = Handles::new();
pub static FUNCTIONS: Handles<Function> = Handles::new();

pub struct Module {
    /// Stays loaded until the process ends: a launch may still be in a queue when the module is unloaded.
    library: usize,
}

pub struct Function {
    pub name: String,
    pub parameter_sizes: Vec<usize>,
    /// Threads wait for each other.
    pub has_waits: bool,
    pub run_thread: Run,
    pub run_block: Run,
}

impl Module {
    /// Loads the kernels of this source, which plays the part of PTX.
    pub fn load(source: &CStr) -> Result<Arc<Module>, Code> {
        let path = build_kernel(&source.to_string_lossy()).map_err(|error| {
            settings::log(&error.to_string());
            INVALID_PTX
        })?;
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| INVALID_PTX)?;
        // SAFETY: the library is one that `build_kernel` compiled; it has no initializers.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            settings::log(&format!("cannot load {}", path.to_string_lossy()));
            return Err(INVALID_PTX);
        }
        Ok(Arc::new(Module { library: library.expose_provenance() }))
    }

    pub fn function(&self, name: &CStr) -> Result<Arc<Function>, Code> {
        let symbol = [c"soft_card_kernel_".to_bytes(), name.to_bytes_with_nul()].concat();
        // SAFETY: the symbol is NUL-terminated; a kernel's library exports a `Kernel` under this name, and it stays
        // loaded.
        let kernel = unsafe {
            let found = libc::dlsym(self.library as *mut c_void, symbol.as_ptr().cast()).cast::<Kernel>();
            let kernel = found.as_ref().ok_or(NOT_FOUND)?;
            kernel.services.write(&raw const SERVICES);
            kernel
        };
        let has_waits = kernel.has_waits != 0;
        if has_waits && !switch::IS_SUPPORTED {
            settings::log("kernels whose threads wait for each other run on x86_64 only");
            return Err(NOT_SUPPORTED);
        }
        // SAFETY: the library's table has as many sizes as it says.
        let sizes = unsafe { slice::from_raw_parts(kernel.parameter_sizes, kernel.parameter_count as usize) };
        Ok(Arc::new(Function {
            name: name.to_string_lossy().into_owned(),
            parameter_sizes: sizes.iter().map(|size| *size as usize).collect(),
            has_waits,
            run_thread: kernel.run_thread,
            run_block: kernel.run_block,
        }))
    }
}
