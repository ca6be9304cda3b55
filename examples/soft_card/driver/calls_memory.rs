//! Calls about memory: allocations, copies, fills.

use super::abi::{
    Code, Handle, INVALID_VALUE, MEMORY_DEVICE, MEMORY_HOST, Memcpy2d, OUT_OF_MEMORY, code_of, write_out,
};
use super::calls_stream::stream_of;
use super::copies::submit_copy;
use super::device::Device;
use super::memory::{allocate_pinned, free_pinned};
use super::recording::record;
use super::stream::{Stream, Work};
use crate::trace::Call;
use std::ffi::{c_uchar, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

/// Allocates memory. If there is none, waits for the streams: memory freed in a stream comes back once the stream gets there.
fn allocate(out: *mut u64, bytes: usize) -> Result<(), Code> {
    let device = Device::current()?;
    let mut at = device.memory.allocate(bytes);
    if at == Err(OUT_OF_MEMORY) {
        device.synchronize()?;
        at = device.memory.allocate(bytes);
    }
    let at = at?;
    record(|| Call::Allocate { bytes: device.memory.size_of(at) });
    // SAFETY: the caller passes a pointer to one address that it owns.
    unsafe { write_out(out, at) }
}

fn record_free(device: &Device, at: u64) {
    record(|| Call::Free { bytes: device.memory.size_of(at) });
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(out: *mut u64, bytes: usize) -> Code {
    code_of(allocate(out, bytes))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocAsync(out: *mut u64, bytes: usize, stream: Handle) -> Code {
    code_of(stream_of(stream).and_then(|_| allocate(out, bytes)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(at: u64) -> Code {
    let free = |device: &'static Device| {
        record_free(device, at);
        device.synchronize().and_then(|()| device.memory.free(at))
    };
    code_of(Device::current().and_then(free))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(at: u64, stream: Handle) -> Code {
    let free = |stream: Arc<Stream>| {
        record_free(stream.device, at);
        stream.submit(Work::Free(at));
    };
    code_of(stream_of(stream).map(free))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Code {
    let answer = |device: &'static Device| {
        let (free_bytes, capacity) = (device.memory.free_bytes(), device.memory.capacity());
        // SAFETY: the caller passes pointers to two numbers that it owns.
        unsafe {
            write_out(free, free_bytes as usize)?;
            write_out(total, capacity as usize)
        }
    };
    code_of(Device::current().and_then(answer))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocHost_v2(out: *mut *mut c_void, bytes: usize) -> Code {
    let allocate = |_| {
        let at = allocate_pinned(bytes)?;
        // SAFETY: as for `allocate`.
        unsafe { write_out(out, at as *mut c_void) }
    };
    code_of(Device::current().and_then(allocate))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(at: *mut c_void) -> Code {
    let free = |device: &'static Device| device.synchronize().and_then(|()| free_pinned(at.addr()));
    code_of(Device::current().and_then(free))
}

fn rows(bytes: usize) -> Memcpy2d {
    Memcpy2d {
        from_x: 0,
        from_y: 0,
        from_type: MEMORY_DEVICE,
        from_host: ptr::null(),
        from_device: 0,
        from_array: ptr::null_mut(),
        from_pitch: bytes,
        to_x: 0,
        to_y: 0,
        to_type: MEMORY_DEVICE,
        to_host: ptr::null_mut(),
        to_device: 0,
        to_array: ptr::null_mut(),
        to_pitch: bytes,
        width: bytes,
        height: 1,
    }
}

fn copy(plan: &Memcpy2d, stream: Handle) -> Result<(), Code> {
    stream_of(stream).and_then(|stream| submit_copy(&stream, plan))
}

fn copy_and_wait(plan: &Memcpy2d) -> Code {
    let stream = ptr::null_mut();
    let wait = |()| {
        record(|| Call::Wait);
        stream_of(stream)?.synchronize()
    };
    code_of(copy(plan, stream).and_then(wait))
}

fn to_device(to_device: u64, from_host: *const c_void, bytes: usize) -> Memcpy2d {
    Memcpy2d { from_type: MEMORY_HOST, from_host, to_device, ..rows(bytes) }
}

fn to_host(to_host: *mut c_void, from_device: u64, bytes: usize) -> Memcpy2d {
    Memcpy2d { to_type: MEMORY_HOST, to_host, from_device, ..rows(bytes) }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: Handle) -> Code {
    code_of(copy(&to_device(to, from, bytes), stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> Code {
    copy_and_wait(&to_device(to, from, bytes))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: Handle) -> Code {
    code_of(copy(&to_host(to, from, bytes), stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> Code {
    copy_and_wait(&to_host(to, from, bytes))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to_device: u64, from_device: u64, bytes: usize, stream: Handle) -> Code {
    code_of(copy(&Memcpy2d { from_device, to_device, ..rows(bytes) }, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoD_v2(to_device: u64, from_device: u64, bytes: usize) -> Code {
    copy_and_wait(&Memcpy2d { from_device, to_device, ..rows(bytes) })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpy2DAsync_v2(plan: *const Memcpy2d, stream: Handle) -> Code {
    // SAFETY: the caller passes a complete plan, or null.
    code_of(unsafe { plan.as_ref() }.ok_or(INVALID_VALUE).and_then(|plan| copy(plan, stream)))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(at: u64, value: c_uchar, bytes: usize, stream: Handle) -> Code {
    let fill = |stream: Arc<Stream>| {
        record(|| Call::Fill { bytes: bytes as u64 });
        stream.submit(Work::Fill { at, value, bytes });
    };
    code_of(stream_of(stream).map(fill))
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8_v2(at: u64, value: c_uchar, bytes: usize) -> Code {
    cuMemsetD8Async(at, value, bytes, ptr::null_mut())
}

/// Flags change nothing here.
#[unsafe(no_mangle)]
extern "C" fn cuMemHostAlloc(out: *mut *mut c_void, bytes: usize, _flags: c_uint) -> Code {
    cuMemAllocHost_v2(out, bytes)
}
