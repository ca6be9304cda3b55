//! Further metrics: PCI, ECC and the fields without a function of their own.

use super::abi::{Code, Device, FieldValue, Pci, SUCCESS};
use super::answer::{answer_call, answer_number, write_out};
use serde_json::json;
use std::ffi::c_uint;

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfo_v3(_: Device, out: *mut Pci) -> Code {
    answer_call("nvmlDeviceGetPciInfo_v3", json!("00000000:01:00.0"), |value| {
        let (mut legacy, mut bus_id) = ([0; 16], [0; 32]);
        let text = value.as_str().unwrap_or_default().as_bytes();
        bus_id[..text.len().min(31)].copy_from_slice(&text[..text.len().min(31)]);
        legacy[..text.len().min(15)].copy_from_slice(&text[..text.len().min(15)]);
        // SAFETY: the caller passes a pointer to one struct that it owns.
        unsafe {
            write_out(
                out,
                Pci { legacy, domain: 0, bus: 1, device: 0, device_id: 0x2684_10de, subsystem_id: 0, bus_id },
            )
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxClockInfo(_: Device, _kind: c_uint, out: *mut c_uint) -> Code {
    answer_number("nvmlDeviceGetMaxClockInfo", 3_105, out)
}

/// Off, as on a GeForce, unless the script says 1.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetEccMode(_: Device, current: *mut c_uint, pending: *mut c_uint) -> Code {
    answer_call("nvmlDeviceGetEccMode", json!(0), |value| {
        let on = value.as_u64().unwrap_or(0) as c_uint;
        // SAFETY: the caller passes pointers to two numbers that it owns.
        unsafe { write_out(current, on).max(write_out(pending, on)) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTotalEccErrors(_: Device, kind: c_uint, _counter: c_uint, out: *mut u64) -> Code {
    answer_number("nvmlDeviceGetTotalEccErrors", if kind == 0 { 3 } else { 0 }, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCurrPcieLinkGeneration(_: Device, out: *mut c_uint) -> Code {
    answer_number("nvmlDeviceGetCurrPcieLinkGeneration", 4, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxPcieLinkGeneration(_: Device, out: *mut c_uint) -> Code {
    answer_number("nvmlDeviceGetMaxPcieLinkGeneration", 4, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCurrPcieLinkWidth(_: Device, out: *mut c_uint) -> Code {
    answer_number("nvmlDeviceGetCurrPcieLinkWidth", 16, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxPcieLinkWidth(_: Device, out: *mut c_uint) -> Code {
    answer_number("nvmlDeviceGetMaxPcieLinkWidth", 16, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPcieThroughput(_: Device, _counter: c_uint, out: *mut c_uint) -> Code {
    answer_number("nvmlDeviceGetPcieThroughput", 1_500, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPcieReplayCounter(_: Device, out: *mut c_uint) -> Code {
    answer_number("nvmlDeviceGetPcieReplayCounter", 0, out)
}

/// The script's value maps field numbers to values; other fields are not supported.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetFieldValues(_: Device, count: i32, values: *mut FieldValue) -> Code {
    const NOT_SUPPORTED: Code = 3;
    answer_call("nvmlDeviceGetFieldValues", json!({"82": 74, "230": 0}), |answers| {
        for at in 0..count.unsigned_abs() as usize {
            // SAFETY: the caller passes `count` structs that it owns, with the field's number filled in.
            unsafe {
                let value = values.add(at);
                let known = answers[(*value).field.to_string()].as_u64();
                // Type 1 is an unsigned 32-bit integer.
                ((*value).kind, (*value).code) = (1, if known.is_some() { SUCCESS } else { NOT_SUPPORTED });
                (*value).value = known.unwrap_or(0);
            }
        }
        SUCCESS
    })
}
