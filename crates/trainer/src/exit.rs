//! Immediate exit of the process.
//!
//! `std::process::exit` runs the exit handlers of C libraries. In a process with a broken CUDA context they
//! may never return; in a healthy one, the driver shuts down under device threads that are still alive, and
//! their panics would be mistaken for a fault.

#![expect(unsafe_code, reason = "ending without destructors is a C function that no crate wraps")]

/// Ends the process with this code, without destructors, exit handlers or joining threads.
pub fn exit_now(code: u8) -> ! {
    // SAFETY: `_exit` has no preconditions and does not return.
    unsafe { libc::_exit(i32::from(code)) }
}
