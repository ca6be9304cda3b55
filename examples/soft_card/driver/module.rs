//! Modules and functions: compiled kernels, loaded.

use super::abi::{Code, INVALID_PTX, Kernel, NO_BINARY, NOT_FOUND, Run, UNSUPPORTED_PTX};
use super::handles::Handles;
use super::runtime::{Runtime, find_symbol, load_library};
use super::signature::Signature;
use crate::build::{compile_cached, kernel_text};
use crate::ptx::Ptx;
use crate::settings;
use std::ffi::{CStr, CString};
use std::slice;
use std::sync::Arc;

pub static MODULES: Handles<Module> = Handles::new();
pub static FUNCTIONS: Handles<Function> = Handles::new();

pub struct Module {
    source: String,
    /// Absent if kernels are skipped.
    library: Option<usize>,
}

pub struct Function {
    pub name: String,
    /// Absent if launches do not tell the sizes of their buffers.
    pub signature: Option<Signature>,
    /// Absent if kernels are skipped.
    pub code: Option<MachineCode>,
}

pub struct MachineCode {
    pub parameter_sizes: Vec<usize>,
    /// Set if threads wait for each other.
    pub runtime: Option<Runtime>,
    pub run_thread: Run,
    pub run_block: Run,
}

impl Module {
    /// Loads the kernels of this PTX, unless it is that of a later compiler or card.
    pub fn load(text: &CStr) -> Result<Arc<Module>, Code> {
        let text = text.to_string_lossy();
        let ptx = Ptx::parse(&text).ok_or(INVALID_PTX)?;
        if ptx.version > settings::driver() {
            return Err(UNSUPPORTED_PTX);
        }
        if ptx.target > settings::capability() {
            return Err(NO_BINARY);
        }
        let source = ptx.source.to_owned();
        if settings::skips_kernels() {
            return Ok(Arc::new(Module { source, library: None }));
        }
        let path = compile_cached(&kernel_text(&source, ptx.target)).map_err(|error| {
            settings::log(&error.to_string());
            INVALID_PTX
        })?;
        Ok(Arc::new(Module { source, library: Some(load_library(&path)?) }))
    }

    pub fn function(&self, name: &CStr) -> Result<Arc<Function>, Code> {
        let code = self.library.map(|library| MachineCode::find(library, name)).transpose()?;
        let name = name.to_string_lossy().into_owned();
        let signature = Signature::parse(&self.source, &name);
        Ok(Arc::new(Function { name, signature, code }))
    }
}

impl MachineCode {
    fn find(library: usize, name: &CStr) -> Result<Self, Code> {
        let symbol = [c"soft_card_kernel_".to_bytes(), name.to_bytes()].concat();
        let symbol = CString::new(symbol).map_err(|_| NOT_FOUND)?;
        let kernel = find_symbol(library, &symbol)?.cast::<Kernel>();
        // SAFETY: a kernel's library exports a `Kernel` under this name, and it stays loaded.
        let kernel = unsafe { &*kernel };
        let runtime = if kernel.has_waits == 0 { None } else { Some(Runtime::get()?) };
        if let Some(runtime) = runtime {
            // SAFETY: a variable of the library, which always gets the same value.
            unsafe { kernel.services.write(runtime.services) };
        }
        // SAFETY: the library's table has as many sizes as it says.
        let sizes = unsafe { slice::from_raw_parts(kernel.parameter_sizes, kernel.parameter_count as usize) };
        Ok(Self {
            parameter_sizes: sizes.iter().map(|size| *size as usize).collect(),
            runtime,
            run_thread: kernel.run_thread,
            run_block: kernel.run_block,
        })
    }
}
