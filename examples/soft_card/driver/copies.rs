//! Copies between host and device memory, all as rows of bytes.

use super::abi::{Code, INVALID_VALUE, MEMORY_DEVICE, MEMORY_HOST, Memcpy2d};
use super::faults::{CopyFaults, play_copy};
use super::memory::is_pinned;
use super::recording::record;
use super::stream::{Stream, Work};
use crate::trace::{Call, Direction};
use std::thread;

/// A copy whose source and target lie at fixed addresses, or whose source is staged.
pub struct Copy {
    from: usize,
    to: usize,
    from_pitch: usize,
    to_pitch: usize,
    width: usize,
    height: usize,
    /// Pageable host memory as it was at the call, for the caller may change it right after.
    staged: Option<Vec<u8>>,
    faults: CopyFaults,
}

impl Copy {
    pub fn perform(self) {
        thread::sleep(self.faults.delay);
        if self.faults.hangs {
            loop {
                thread::park();
            }
        }
        let from = self.staged.as_ref().map_or(self.from, |bytes| bytes.as_ptr().addr());
        let from_pitch = if self.staged.is_some() { self.width } else { self.from_pitch };
        for row in 0..self.height {
            let (from, to) = ((from + row * from_pitch) as *const u8, (self.to + row * self.to_pitch) as *mut u8);
            // SAFETY: the caller promised that both sides stay valid until the copy is done.
            unsafe { to.copy_from(from, self.width) };
        }
    }

    fn stage(&mut self) {
        let mut bytes = Vec::with_capacity(self.width * self.height);
        for row in 0..self.height {
            let from = (self.from + row * self.from_pitch) as *const u8;
            // SAFETY: the caller passes memory that it owns.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(from, self.width) });
        }
        self.staged = Some(bytes);
    }
}

/// Copies rows; returns before that is done, except to pageable host memory, as a card does.
pub fn submit_copy(stream: &Stream, plan: &Memcpy2d) -> Result<(), Code> {
    if plan.height > 1 && plan.from_pitch.min(plan.to_pitch) < plan.width {
        return Err(INVALID_VALUE);
    }
    let from = match plan.from_type {
        MEMORY_HOST => plan.from_host.addr(),
        MEMORY_DEVICE => plan.from_device as usize,
        _ => return Err(INVALID_VALUE),
    };
    let to = match plan.to_type {
        MEMORY_HOST => plan.to_host.addr(),
        MEMORY_DEVICE => plan.to_device as usize,
        _ => return Err(INVALID_VALUE),
    };
    let mut copy = Copy {
        from: from + plan.from_y * plan.from_pitch + plan.from_x,
        to: to + plan.to_y * plan.to_pitch + plan.to_x,
        from_pitch: plan.from_pitch,
        to_pitch: plan.to_pitch,
        width: plan.width,
        height: plan.height,
        staged: None,
        faults: if plan.to_type == MEMORY_HOST { play_copy(stream.device) } else { CopyFaults::default() },
    };
    if plan.from_type == MEMORY_HOST && !is_pinned(copy.from) {
        copy.stage();
    }
    let waits = plan.to_type == MEMORY_HOST && !is_pinned(copy.to);
    let direction = match (plan.from_type, plan.to_type) {
        (MEMORY_HOST, _) => Direction::ToDevice,
        (_, MEMORY_HOST) => Direction::ToHost,
        _ => Direction::Within,
    };
    record(|| Call::Copy { direction, bytes: (plan.width * plan.height) as u64 });
    stream.submit(Work::Copy(copy));
    if !waits {
        return Ok(());
    }
    record(|| Call::Wait);
    stream.synchronize()
}
