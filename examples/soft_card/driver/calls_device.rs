//! Calls about the driver, devices and contexts.

use super::abi::{
    Code, Handle, INVALID_VALUE, LAUNCH_FAILED, NO_DEVICE, OUT_OF_MEMORY, SUCCESS, UNKNOWN, code_of, write_out,
};
use super::device::Device;
use super::recording::record;
use crate::settings;
use crate::trace::Call;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::ptr;

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> Code {
    match settings::number("INIT", SUCCESS) {
        SUCCESS if Device::count() == 0 => NO_DEVICE,
        code => code,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(out: *mut c_int) -> Code {
    let (major, minor) = settings::driver();
    // SAFETY: the caller passes a pointer to one number that it owns; so it is in all calls here.
    code_of(unsafe { write_out(out, major * 1000 + minor * 10) })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(out: *mut c_int) -> Code {
    // SAFETY: as above.
    code_of(unsafe { write_out(out, Device::count() as c_int) })
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(out: *mut c_int, index: c_int) -> Code {
    // SAFETY: as above.
    code_of(Device::by_index(index).and_then(|_| unsafe { write_out(out, index) }))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(out: *mut c_char, length: c_int, device: c_int) -> Code {
    // Programs keep compiled kernels by the name: cards that differ in capability differ in it.
    let (major, minor) = settings::capability();
    let name = settings::setting("NAME").unwrap_or_else(|| format!("Soft Card {major}.{minor}"));
    let kept = &name.as_bytes()[..name.len().min(usize::try_from(length - 1).unwrap_or(0))];
    if length < 1 || out.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's buffer holds `length` bytes: the name's and a NUL.
    code_of(Device::by_index(device).map(|_| unsafe {
        ptr::copy_nonoverlapping(kept.as_ptr().cast(), out, kept.len());
        out.add(kept.len()).write(0);
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid_v2(out: *mut [u8; 16], device: c_int) -> Code {
    let mut uuid = *b"soft card      0";
    uuid[15] += device as u8;
    // SAFETY: as above.
    code_of(Device::by_index(device).and_then(|_| unsafe { write_out(out, uuid) }))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(out: *mut usize, device: c_int) -> Code {
    // SAFETY: as above.
    code_of(Device::by_index(device).and_then(|device| unsafe { write_out(out, device.memory.capacity() as usize) }))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(out: *mut c_int, attribute: c_int, device: c_int) -> Code {
    // SAFETY: as above.
    code_of(Device::by_index(device).and_then(|_| unsafe { write_out(out, attribute_value(attribute)) }))
}

fn attribute_value(attribute: c_int) -> c_int {
    let capability = settings::capability();
    match attribute {
        1..=3 => 1024,   // threads in a block, and along x and y
        4 => 64,         // along z
        5 => c_int::MAX, // blocks along x
        6 | 7 => 65_535, // along y and z
        8 => 49_152,     // shared memory of a block
        10 => 32,        // lanes of a warp
        13 => 1_500_000, // clock, in kHz
        16 => settings::number("MULTIPROCESSORS", 20),
        39 => 2048, // threads on a multiprocessor
        75 => capability.0,
        76 => capability.1,
        97 => shared_memory_limit(capability),
        115 => 1, // memory pools
        _ => 0,
    }
}

/// The most shared memory that a block can ask for.
fn shared_memory_limit(capability: (i32, i32)) -> c_int {
    match capability {
        (..7, _) => 49_152,
        (7, ..5) => 98_304,
        (7, _) => 65_536,
        (8, 0 | 7) => 166_912,
        (8, _) => 101_376,
        _ => 232_448,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(out: *mut Handle, device: c_int) -> Code {
    // SAFETY: as above.
    code_of(Device::by_index(device).and_then(|device| unsafe { write_out(out, device.retain()) }))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) -> Code {
    code_of(Device::by_index(device).and_then(|device| {
        // SAFETY: as above.
        unsafe {
            write_out(flags, 0)?;
            write_out(active, c_int::from(device.is_active()))
        }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> Code {
    code_of(Device::by_index(device).map(|_| ()))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: Handle) -> Code {
    code_of(Device::set_current(context))
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(out: *mut Handle) -> Code {
    // SAFETY: as above.
    code_of(unsafe { write_out(out, Device::current_context()) })
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> Code {
    let wait = |device: &'static Device| {
        record(|| Call::Wait);
        device.synchronize()
    };
    code_of(Device::current().and_then(wait))
}

/// Name and description of the codes that tests and trainers meet.
fn describe_code(code: Code) -> (&'static CStr, &'static CStr) {
    match code {
        SUCCESS => (c"CUDA_SUCCESS", c"no error"),
        INVALID_VALUE => (c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        OUT_OF_MEMORY => (c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        NO_DEVICE => (c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
        101 => (c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
        201 => (c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
        209 => (c"CUDA_ERROR_NO_BINARY_FOR_GPU", c"no kernel image is available for execution on the device"),
        214 => (c"CUDA_ERROR_ECC_UNCORRECTABLE", c"uncorrectable ECC error encountered"),
        218 => (c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
        222 => (c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION", c"the provided PTX was compiled with an unsupported toolchain."),
        400 => (c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
        500 => (c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
        600 => (c"CUDA_ERROR_NOT_READY", c"device not ready"),
        700 => (c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
        701 => (c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", c"too many resources requested for launch"),
        702 => (c"CUDA_ERROR_LAUNCH_TIMEOUT", c"the launch timed out and was terminated"),
        LAUNCH_FAILED => (c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
        801 => (c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
        UNKNOWN => (c"CUDA_ERROR_UNKNOWN", c"unknown error"),
        _ => (c"CUDA_ERROR", c"an error that the soft card does not describe"),
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(code: Code, out: *mut *const c_char) -> Code {
    // SAFETY: as above.
    code_of(unsafe { write_out(out, describe_code(code).0.as_ptr()) })
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(code: Code, out: *mut *const c_char) -> Code {
    // SAFETY: as above.
    code_of(unsafe { write_out(out, describe_code(code).1.as_ptr()) })
}
