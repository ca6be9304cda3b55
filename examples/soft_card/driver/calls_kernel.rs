//! Calls about modules, functions and launches.

use super::abi::{Code, Handle, INVALID_VALUE, NOT_SUPPORTED, SUCCESS, code_of, write_out};
use super::calls_stream::stream_of;
use super::device::Device;
use super::launch::Launch;
use super::module::{FUNCTIONS, MODULES, Module};
use super::stream::Work;
use crate::settings;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadData(out: *mut Handle, image: *const c_void) -> Code {
    let load = |_| {
        if image.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the image is what our NVRTC returned, NUL-terminated text; `out` is the caller's own handle.
        unsafe { write_out(out, MODULES.insert(Module::load(CStr::from_ptr(image.cast()))?)) }
    };
    code_of(Device::current().and_then(load))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(module: Handle) -> Code {
    code_of(MODULES.remove(module).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(out: *mut Handle, module: Handle, name: *const c_char) -> Code {
    let find = |_| {
        // SAFETY: the caller passes NUL-terminated text.
        let function = MODULES.get(module)?.function(unsafe { CStr::from_ptr(name) })?;
        settings::log(&format!("loads {}", function.name));
        // SAFETY: the caller passes a pointer to one handle that it owns.
        unsafe { write_out(out, FUNCTIONS.insert(function)) }
    };
    code_of(Device::current().and_then(find))
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetAttribute(function: Handle, _attribute: c_int, _value: c_int) -> Code {
    code_of(Device::current().and_then(|_| FUNCTIONS.get(function)).map(drop))
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncGetAttribute(out: *mut c_int, _attribute: c_int, function: Handle) -> Code {
    // SAFETY: the caller passes a pointer to one number that it owns.
    code_of(FUNCTIONS.get(function).and_then(|_| unsafe { write_out(out, 0) }))
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernel(
    function: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: Handle,
    arguments: *const *const c_void,
    _extra: *const *const c_void,
) -> Code {
    let launch = || {
        let (stream, function) = (stream_of(stream)?, FUNCTIONS.get(function)?);
        let faults = super::faults::play_launch(stream.device);
        stream.device.check()?;
        if let Some(code) = faults.refused {
            return Err(code);
        }
        let sizes = [[grid_x, grid_y, grid_z], [block_x, block_y, block_z]];
        // SAFETY: the caller passes a pointer for each parameter.
        let launch = unsafe { Launch::new(function, sizes, shared_bytes as usize, arguments, faults) }?;
        stream.submit(Work::Launch(launch));
        Ok(())
    };
    code_of(launch())
}

/// Tensor maps are of capability 9.0 and later, but a tuner asks for one before it finds that out. cudarc panics if a
/// symbol is missing; a code tells it that this kernel is not for this card. A kernel that is skipped needs no map.
fn encode_tensor_map() -> Code {
    if settings::skips_kernels() { SUCCESS } else { NOT_SUPPORTED }
}

#[unsafe(no_mangle)]
extern "C" fn cuTensorMapEncodeTiled() -> Code {
    encode_tensor_map()
}

#[unsafe(no_mangle)]
extern "C" fn cuTensorMapEncodeIm2col() -> Code {
    encode_tensor_map()
}

#[unsafe(no_mangle)]
extern "C" fn cuTensorMapEncodeIm2colWide() -> Code {
    encode_tensor_map()
}
