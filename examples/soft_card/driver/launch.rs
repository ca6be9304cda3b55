//! A launch: a kernel with a copy of its arguments, and the run of its grid.

use super::abi::{Code, INVALID_VALUE, LAUNCH_FAILED, Place};
use super::device::Device;
use super::faults::LaunchFaults;
use super::memory::map_pages;
use super::module::Function;
use super::recording::record;
use super::runtime::Stuck;
use crate::rewrite::order::SHARED_BYTES;
use crate::settings;
use crate::trace::Call;
use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Arc;
use std::{ptr, thread};

thread_local! {
    static SHARED_MEMORY: Cell<*mut u8> = const { Cell::new(ptr::null_mut()) };
}

pub struct Launch {
    function: Arc<Function>,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: usize,
    /// Aligned as far as any parameter needs.
    arguments: Vec<Vec<Chunk>>,
    faults: LaunchFaults,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Chunk([u8; 64]);

impl Launch {
    /// Copies the arguments, which belong to the caller again once the call has returned.
    ///
    /// # Safety
    /// `arguments` has a valid pointer for each parameter of the function.
    pub unsafe fn new(
        function: Arc<Function>,
        [grid, block]: [[u32; 3]; 2],
        shared_bytes: usize,
        arguments: *const *const c_void,
        faults: LaunchFaults,
    ) -> Result<Self, Code> {
        let threads = block.iter().map(|count| u64::from(*count)).product::<u64>();
        let is_possible = grid.iter().all(|count| *count > 0)
            && (1..=1024).contains(&threads)
            && block[2] <= 64
            && grid[1].max(grid[2]) <= 65_535
            && shared_bytes <= SHARED_BYTES;
        if !is_possible {
            settings::log(&format!("impossible launch of {}: {grid:?} {block:?} {shared_bytes}", function.name));
            return Err(INVALID_VALUE);
        }
        let copy = |(index, size): (usize, &usize)| {
            let mut chunks = vec![Chunk([0; 64]); size.div_ceil(64).max(1)];
            // SAFETY: this function's contract, and the chunks hold at least `size` bytes.
            unsafe {
                let from = (*arguments.add(index)).cast::<u8>();
                chunks.as_mut_ptr().cast::<u8>().copy_from(from, *size);
            }
            chunks
        };
        // SAFETY: this function's contract.
        record(|| unsafe { describe(&function, [grid, block], shared_bytes, arguments) });
        let sizes = function.code.iter().flat_map(|code| &code.parameter_sizes);
        let arguments = sizes.enumerate().map(copy).collect();
        Ok(Self { function, grid, block, shared_bytes, arguments, faults })
    }

    pub fn run(mut self, device: &Device) {
        thread::sleep(self.faults.delay);
        if self.faults.hangs {
            loop {
                thread::park();
            }
        }
        if let Some(code) = self.faults.breaks {
            device.break_later(code);
        } else if self.run_grid().is_err() {
            settings::log(&format!("threads of {} wait for each other for ever", self.function.name));
            device.break_later(LAUNCH_FAILED);
        }
    }

    fn run_grid(&mut self) -> Result<(), Stuck> {
        let Some(code) = &self.function.code else { return Ok(()) };
        let arguments: Vec<*mut c_void> = self.arguments.iter_mut().map(|chunks| chunks.as_mut_ptr().cast()).collect();
        let shared = shared_memory().ok_or(Stuck)?;
        let poisons = self.shared_bytes > 0 && settings::setting("POISON").is_some();
        let [width, height, depth] = self.grid;
        for number in 0..u64::from(width) * u64::from(height) * u64::from(depth) {
            let (x, yz) = (number % u64::from(width), number / u64::from(width));
            let block = [x as u32, (yz % u64::from(height)) as u32, (yz / u64::from(height)) as u32];
            let place = Place { thread: [0; 3], block, block_dim: self.block, grid_dim: self.grid, shared };
            if poisons {
                // SAFETY: the mapping of this thread has this size.
                unsafe { shared.write_bytes(0xff, SHARED_BYTES) };
            }
            if let Some(runtime) = code.runtime {
                runtime.run_block(code.run_thread, &place, arguments.as_ptr())?;
            } else {
                // SAFETY: the kernel gets a place and the arguments of its own launch.
                unsafe { (code.run_block)(&raw const place, arguments.as_ptr()) };
            }
        }
        Ok(())
    }
}

/// Describes a launch for the trace.
///
/// # Safety
/// `arguments` has a valid pointer for each parameter of the function.
unsafe fn describe(
    function: &Function,
    [grid, block]: [[u32; 3]; 2],
    shared_bytes: usize,
    arguments: *const *const c_void,
) -> Call {
    // SAFETY: this function's contract.
    let buffers = function.signature.as_ref().map(|signature| unsafe { signature.buffer_bytes(arguments) });
    Call::Launch { kernel: function.name.clone(), grid, block, shared_bytes, buffers: buffers.unwrap_or_default() }
}

/// Returns the shared memory of the block that runs on this thread.
fn shared_memory() -> Option<*mut u8> {
    if SHARED_MEMORY.get().is_null() {
        SHARED_MEMORY.set(map_pages(SHARED_BYTES)? as *mut u8);
    }
    Some(SHARED_MEMORY.get())
}
