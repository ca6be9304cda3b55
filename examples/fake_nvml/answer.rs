//! Writes scripted answers through the caller's pointers.

use super::abi::{Code, INSUFFICIENT_SIZE, INVALID_ARGUMENT, SUCCESS, UNKNOWN};
use super::script::play_call;
use serde_json::{Value, json};
use std::ffi::{c_char, c_uint};
use std::ptr;

/// Plays a call and passes the value to `write` if it succeeds.
pub fn answer_call(symbol: &'static str, healthy: Value, write: impl FnOnce(&Value) -> Code) -> Code {
    play_call(symbol, healthy).map_or_else(|code| code, |value| write(&value))
}

/// Plays a call that writes one unsigned number.
pub fn answer_number<T: TryFrom<u64>>(symbol: &'static str, healthy: u64, out: *mut T) -> Code {
    answer_call(symbol, json!(healthy), |value| match value.as_u64().and_then(|value| T::try_from(value).ok()) {
        // SAFETY: the caller passes a pointer to one `T` that it owns, as NVML's headers ask.
        Some(value) => unsafe { write_out(out, value) },
        None => UNKNOWN,
    })
}

/// # Safety
/// `out` is null or valid for one write.
pub unsafe fn write_out<T>(out: *mut T, value: T) -> Code {
    if out.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not null, and valid by this function's contract.
    unsafe { ptr::write(out, value) };
    SUCCESS
}

/// Plays a call that writes NUL-terminated text.
pub fn answer_text(symbol: &'static str, healthy: &str, out: *mut c_char, length: c_uint) -> Code {
    answer_call(symbol, json!(healthy), |value| {
        let text = value.as_str().unwrap_or_default();
        if text.len() >= length as usize {
            return INSUFFICIENT_SIZE;
        }
        // SAFETY: the caller's buffer holds `length` bytes, and the text with its NUL fits into it.
        unsafe {
            ptr::copy_nonoverlapping(text.as_ptr().cast(), out, text.len());
            ptr::write(out.add(text.len()), 0);
        }
        SUCCESS
    })
}

pub fn answer_success(symbol: &'static str) -> Code {
    answer_call(symbol, Value::Null, |_| SUCCESS)
}
