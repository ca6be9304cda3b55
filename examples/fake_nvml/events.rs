//! Xid events.

use super::abi::{Code, Device, EventData, TIMEOUT, XID};
use super::answer::{answer_call, answer_number, answer_success, write_out};
use serde_json::Value;
use std::ffi::c_uint;
use std::time::Duration;
use std::{ptr, thread};

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetCreate(out: *mut Device) -> Code {
    // SAFETY: the caller passes a pointer to one handle that it owns.
    answer_call("nvmlEventSetCreate", Value::Null, |_| unsafe { write_out(out, ptr::without_provenance_mut(1)) })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetFree(_: Device) -> Code {
    answer_success("nvmlEventSetFree")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetSupportedEventTypes(_: Device, out: *mut u64) -> Code {
    answer_number("nvmlDeviceGetSupportedEventTypes", XID, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceRegisterEvents(_: Device, _kinds: u64, _set: Device) -> Code {
    answer_success("nvmlDeviceRegisterEvents")
}

/// A number in the script is an Xid error; without one the wait times out. A lost GPU, which fails
/// every device call, fails this one too, like the real one.
#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetWait_v2(_: Device, out: *mut EventData, timeout_ms: c_uint) -> Code {
    answer_call("nvmlEventSetWait_v2", Value::Null, |value| {
        if let Some(data) = value.as_u64() {
            let device = ptr::without_provenance_mut(1);
            let none = c_uint::MAX;
            // SAFETY: the caller passes a pointer to one struct that it owns.
            unsafe { write_out(out, EventData { device, kind: XID, data, gpu_instance: none, compute_instance: none }) }
        } else {
            thread::sleep(Duration::from_millis(timeout_ms.min(20).into()));
            TIMEOUT
        }
    })
}
