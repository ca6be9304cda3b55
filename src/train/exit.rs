//! The end of the process, at once.
//!
//! `std::process::exit` runs what C libraries registered to run at exit; in a process whose CUDA
//! context is broken that may never return, and in a healthy one the driver goes away under device
//! threads that are still alive, whose panic would then be taken for a fault.

#![expect(unsafe_code, reason = "ending without destructors is a C function that nobody wraps")]

/// Ends the process with this code: no destructors, no exit handlers, no joining of threads.
pub fn now(code: u8) -> ! {
    // SAFETY: `_exit` has no preconditions and does not return.
    unsafe { libc::_exit(i32::from(code)) }
}
