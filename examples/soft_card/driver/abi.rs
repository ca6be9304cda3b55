//! CUDA's codes and structs, and the layouts that kernels share with the driver (`include/soft_card`).

use std::ffi::{c_int, c_uint, c_void};

pub type Code = c_int;
pub type Handle = *mut c_void;

pub const SUCCESS: Code = 0;
pub const INVALID_VALUE: Code = 1;
pub const OUT_OF_MEMORY: Code = 2;
pub const NO_DEVICE: Code = 100;
pub const INVALID_DEVICE: Code = 101;
pub const INVALID_CONTEXT: Code = 201;
pub const NO_BINARY: Code = 209;
pub const INVALID_PTX: Code = 218;
pub const UNSUPPORTED_PTX: Code = 222;
pub const INVALID_HANDLE: Code = 400;
pub const NOT_FOUND: Code = 500;
pub const NOT_READY: Code = 600;
pub const LAUNCH_FAILED: Code = 719;
pub const NOT_SUPPORTED: Code = 801;
pub const UNKNOWN: Code = 999;

/// Returns the code of a call.
pub fn code_of(result: Result<(), Code>) -> Code {
    result.err().unwrap_or(SUCCESS)
}

/// Writes an answer through the caller's pointer.
///
/// # Safety
/// `out` is null or valid for one write.
pub unsafe fn write_out<T>(out: *mut T, value: T) -> Result<(), Code> {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and valid by this function's contract.
    unsafe { out.write(value) };
    Ok(())
}

/// `CUDA_MEMCPY2D`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Memcpy2d {
    pub from_x: usize,
    pub from_y: usize,
    pub from_type: c_uint,
    pub from_host: *const c_void,
    pub from_device: u64,
    pub from_array: *mut c_void,
    pub from_pitch: usize,
    pub to_x: usize,
    pub to_y: usize,
    pub to_type: c_uint,
    pub to_host: *mut c_void,
    pub to_device: u64,
    pub to_array: *mut c_void,
    pub to_pitch: usize,
    pub width: usize,
    pub height: usize,
}

pub const MEMORY_HOST: c_uint = 1;
pub const MEMORY_DEVICE: c_uint = 2;

const _: () = assert!(size_of::<Memcpy2d>() == 128);

/// `soft_card::Place`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Place {
    pub thread: [u32; 3],
    pub block: [u32; 3],
    pub block_dim: [u32; 3],
    pub grid_dim: [u32; 3],
    pub shared: *mut u8,
}

/// `soft_card::Services`, which only C++ looks into.
#[repr(C)]
pub struct Services {
    functions: [*const c_void; 5],
}

// SAFETY: a constant table of functions.
unsafe impl Sync for Services {}

/// `soft_card::Kernel`
#[repr(C)]
pub struct Kernel {
    pub parameter_count: c_uint,
    pub parameter_sizes: *const c_uint,
    pub has_waits: c_uint,
    pub run_thread: Run,
    pub run_block: Run,
    pub services: *mut *const Services,
}

pub type Run = unsafe extern "C" fn(*const Place, *const *mut c_void);
