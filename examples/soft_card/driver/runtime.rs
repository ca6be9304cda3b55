//! The runtime of kernels whose threads wait for each other: `runtime/fibers.cpp`, compiled and loaded once.

use super::abi::{Code, INVALID_PTX, NOT_FOUND, Place, Run, Services};
use crate::build::compile_cached;
use crate::settings;
use std::ffi::{CStr, CString, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::LazyLock;

const SOURCE: &str = include_str!("../runtime/fibers.cpp");

static RUNTIME: LazyLock<Result<Runtime, Code>> = LazyLock::new(Runtime::load);

type RunWaitingBlock = unsafe extern "C" fn(Run, *const Place, *const *mut c_void) -> c_int;

#[derive(Clone, Copy)]
pub struct Runtime {
    pub services: &'static Services,
    run_waiting_block: RunWaitingBlock,
}

pub struct Stuck;

impl Runtime {
    pub fn get() -> Result<Runtime, Code> {
        *RUNTIME
    }

    fn load() -> Result<Runtime, Code> {
        let path = compile_cached(SOURCE).map_err(|error| {
            settings::log(&error.to_string());
            INVALID_PTX
        })?;
        let library = load_library(&path)?;
        // SAFETY: the library exports both under these names, with these types, and stays loaded.
        unsafe {
            let services = find_symbol(library, c"soft_card_services")?.cast::<Services>();
            let run = find_symbol(library, c"soft_card_run_waiting_block")?;
            let run_waiting_block = std::mem::transmute::<*mut c_void, RunWaitingBlock>(run);
            Ok(Runtime { services: &*services, run_waiting_block })
        }
    }

    /// Runs one block, with `place` but for the thread in it.
    pub fn run_block(self, run: Run, place: &Place, arguments: *const *mut c_void) -> Result<(), Stuck> {
        // SAFETY: the kernel gets a place and the arguments of its own launch.
        let code = unsafe { (self.run_waiting_block)(run, place, arguments) };
        if code == 0 { Ok(()) } else { Err(Stuck) }
    }
}

/// Loads a library that `build.rs` compiled, for the rest of the process: a launch may still be in a queue when its
/// module is unloaded.
pub fn load_library(path: &Path) -> Result<usize, Code> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| INVALID_PTX)?;
    // SAFETY: these libraries have no initializers.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        settings::log(&format!("cannot load {}", path.to_string_lossy()));
        return Err(INVALID_PTX);
    }
    Ok(library.expose_provenance())
}

pub fn find_symbol(library: usize, name: &CStr) -> Result<*mut c_void, Code> {
    // SAFETY: the library is loaded and the name NUL-terminated.
    let found = unsafe { libc::dlsym(library as *mut c_void, name.as_ptr()) };
    if found.is_null() { Err(NOT_FOUND) } else { Ok(found) }
}
