//! Memory use of this process, as accounted by the kernel and the allocator.

#![cfg_attr(
    target_env = "gnu",
    expect(unsafe_code, reason = "the statistics and settings of glibc's allocator are C functions")
)]

use crate::job::EventSink;
use downshift_core::protocol::worker::{Event, Memory, Phase};
use std::fs;
use std::sync::Arc;
#[cfg(target_env = "gnu")]
use std::{ffi::c_void, sync::OnceLock};

/// Returns the resident bytes.
#[must_use]
pub fn resident_bytes() -> Option<u64> {
    status_bytes("VmRSS:")
}

/// Returns the peak resident bytes since the start, or since [`reset_peak`].
#[must_use]
pub fn peak_bytes() -> Option<u64> {
    status_bytes("VmHWM:")
}

/// Restarts the peak from the current value. If the kernel refuses, the peak still counts from the start.
pub fn reset_peak() {
    let _ = fs::write("/proc/self/clear_refs", "5");
}

/// Returns the bytes allocated and not yet freed. Unlike resident memory, this excludes memory that the
/// allocator retains for later. An allocator without these statistics gives the resident bytes.
#[must_use]
pub fn allocated_bytes() -> u64 {
    statistics_of_the_allocator().or_else(resident_bytes).unwrap_or(0)
}

/// Asks glibc 2.33 or later. Releases run on 2.28 too, so the function is looked up instead of linked.
#[cfg(target_env = "gnu")]
fn statistics_of_the_allocator() -> Option<u64> {
    static FUNCTION: OnceLock<Option<extern "C" fn() -> libc::mallinfo2>> = OnceLock::new();
    let function = FUNCTION.get_or_init(|| {
        // SAFETY: the name is terminated, and a symbol of this name in glibc has this signature.
        unsafe {
            let symbol = libc::dlsym(libc::RTLD_DEFAULT, c"mallinfo2".as_ptr());
            (!symbol.is_null()).then(|| std::mem::transmute::<*mut c_void, extern "C" fn() -> libc::mallinfo2>(symbol))
        }
    });
    // It reads the statistics under the allocator's locks and returns a copy.
    let statistics = (*function)?();
    Some((statistics.uordblks + statistics.hblkhd) as u64)
}

#[cfg(not(target_env = "gnu"))]
fn statistics_of_the_allocator() -> Option<u64> {
    None
}

/// Makes the allocator keep what is freed, for the next step. By default glibc gives buffers above 32 MiB back to the kernel
/// at once, and each step pays for fresh, zeroed pages: a third of a step of GPT-2. This holds for the main thread, which trains:
/// the heaps of other threads are smaller.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it changes two numbers of the allocator, under its lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_MAX, 0);
        libc::mallopt(libc::M_TRIM_THRESHOLD, -1);
    }
}

fn status_bytes(key: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(key))?;
    value.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

/// Reports the memory of an attempt, phase by phase, if requested.
pub struct MemoryReporter(Option<Arc<dyn EventSink>>);

impl MemoryReporter {
    /// Returns a reporter that reports to `sink`, if there is one.
    #[must_use]
    pub fn new(asked: bool, sink: &Arc<dyn EventSink>) -> Self {
        Self(asked.then(|| Arc::clone(sink)))
    }

    /// Ends a phase and reports its peak.
    pub fn report_phase(&self, phase: Phase) {
        let Some(sink) = &self.0 else { return };
        if let (Some(resident_bytes), Some(peak_bytes)) = (resident_bytes(), peak_bytes()) {
            sink.send(Event::Memory(Memory { phase, resident_bytes, peak_bytes }));
        }
        reset_peak();
    }
}

#[cfg(test)]
mod tests {
    use super::{allocated_bytes, peak_bytes, reset_peak, resident_bytes};

    #[test]
    fn a_large_buffer_raises_the_peak() {
        let (before, given_before) = (resident_bytes().unwrap(), allocated_bytes());
        let buffer = vec![1_u8; 64 << 20];
        assert!(allocated_bytes() >= given_before + (60 << 20));
        assert!(buffer.iter().step_by(4096).all(|byte| *byte == 1));
        assert!(peak_bytes().unwrap() >= before + (60 << 20));
        drop(buffer);
        reset_peak();
        assert!(peak_bytes().is_some());
    }
}
