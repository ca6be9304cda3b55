//! The metrics that every reading needs: name, memory, temperature, load, power, clocks, processes.

use super::abi::{
    Code, Device, INSUFFICIENT_SIZE, INVALID_ARGUMENT, MEMORY_V2, MemoryV2, Process, SUCCESS, Utilization,
    VERSION_MISMATCH,
};
use super::answer::{answer_call, answer_number, answer_text, write_out};
use super::script::{held_bytes, listed_processes};
use serde_json::{Value, json};
use std::ffi::{c_char, c_uint};
use std::ptr;

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount_v2(out: *mut c_uint) -> Code {
    answer_number("nvmlDeviceGetCount_v2", 1, out)
}

/// The handle is the index plus one: any non-null value will do, nothing dereferences it.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, out: *mut Device) -> Code {
    // SAFETY: the caller passes a pointer to one handle that it owns.
    answer_call("nvmlDeviceGetHandleByIndex_v2", Value::Null, |_| unsafe {
        write_out(out, ptr::without_provenance_mut(index as usize + 1))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetName(_: Device, out: *mut c_char, length: c_uint) -> Code {
    answer_text("nvmlDeviceGetName", "NVIDIA GeForce RTX 4090", out, length)
}

/// `GPU-fake-0` for the first card, and so on.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUUID(device: Device, out: *mut c_char, length: c_uint) -> Code {
    answer_text("nvmlDeviceGetUUID", &format!("GPU-fake-{}", device.addr() - 1), out, length)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo_v2(_: Device, out: *mut MemoryV2) -> Code {
    let healthy = json!({"total": 24_000_000_000_u64, "used": 6_000_000_000_u64});
    answer_call("nvmlDeviceGetMemoryInfo_v2", healthy, |value| {
        let (total, used) = (value["total"].as_u64().unwrap_or(0), value["used"].as_u64().unwrap_or(0) + held_bytes());
        // SAFETY: the caller passes a complete struct that it owns, with the version filled in.
        unsafe {
            if out.is_null() || (*out).version != MEMORY_V2 {
                return VERSION_MISMATCH;
            }
            write_out(out, MemoryV2 { version: MEMORY_V2, total, reserved: 0, free: total.saturating_sub(used), used })
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTemperature(_: Device, _sensor: c_uint, out: *mut c_uint) -> Code {
    answer_number("nvmlDeviceGetTemperature", 61, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTemperatureThreshold(_: Device, kind: c_uint, out: *mut c_uint) -> Code {
    let [shutdown, slowdown, gpu_max] = [100, 95, 90];
    let healthy = [shutdown, slowdown, 0, gpu_max].get(kind as usize).copied().unwrap_or(0);
    answer_number("nvmlDeviceGetTemperatureThreshold", healthy, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUtilizationRates(_: Device, out: *mut Utilization) -> Code {
    // SAFETY: the caller passes a pointer to one struct that it owns.
    answer_call("nvmlDeviceGetUtilizationRates", json!(87), |value| unsafe {
        write_out(out, Utilization { gpu: value.as_u64().unwrap_or(0) as c_uint, memory: 11 })
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPowerUsage(_: Device, out: *mut c_uint) -> Code {
    answer_number("nvmlDeviceGetPowerUsage", 312_500, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetEnforcedPowerLimit(_: Device, out: *mut c_uint) -> Code {
    answer_number("nvmlDeviceGetEnforcedPowerLimit", 450_000, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetClockInfo(_: Device, kind: c_uint, out: *mut c_uint) -> Code {
    let [graphics, sm, memory, video] = [2_520, 2_505, 10_501, 1_950];
    let healthy = [graphics, sm, memory, video].get(kind as usize).copied().unwrap_or(0);
    answer_number("nvmlDeviceGetClockInfo", healthy, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCurrentClocksThrottleReasons(_: Device, out: *mut u64) -> Code {
    answer_number("nvmlDeviceGetCurrentClocksThrottleReasons", 0, out)
}

/// Called twice: first with a count of 0 for the number of processes, then for the list. A null amount
/// means NVML's "not available".
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(_: Device, count: *mut c_uint, out: *mut Process) -> Code {
    answer_call("nvmlDeviceGetComputeRunningProcesses_v3", listed_processes(), |value| {
        let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
        if count.is_null() {
            return INVALID_ARGUMENT;
        }
        // SAFETY: `count` is the caller's own, and says how many entries fit into `out`.
        unsafe {
            let room = ptr::replace(count, list.len() as c_uint) as usize;
            if list.len() > room {
                return INSUFFICIENT_SIZE;
            }
            for (at, process) in list.iter().enumerate() {
                let pid = process["pid"].as_u64().unwrap_or(0) as c_uint;
                let used = process["used"].as_u64().unwrap_or(u64::MAX);
                let none = c_uint::MAX;
                ptr::write(out.add(at), Process { pid, used, gpu_instance: none, compute_instance: none });
            }
        }
        SUCCESS
    })
}
