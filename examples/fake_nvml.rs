//! A shared library that fakes NVIDIA's NVML, for tests on machines without a GPU.
//!
//! It fakes a healthy GPU unless the JSON file next to it (`libfake_nvml.so` → `libfake_nvml.json`)
//! says otherwise. The file is read on every call, so a test can change it at any time:
//! ```json
//! {
//!   "nvmlDeviceGetTemperature": [{"value": 60, "per_call": 5}, {"after": 3, "code": 15}],
//!   "nvmlDeviceGetName": [{"hang": true}],
//!   "*": [{"code": 15}]
//! }
//! ```
//! The rule that applies to a symbol is the last one whose `after` is at most the number of earlier
//! calls. `*` covers every device call without its own rules. `code` is the return code, `value` the
//! answer, `per_call` an increment added for each call under the rule, `delay_ms` a delay, `hang` an
//! endless wait, signalled by a file `libfake_nvml.hung`.
//!
//! The GPU memory a process holds is in a separate file, `libfake_nvml.held/PID`: the bytes, and the
//! number of readings they stay in use after that process is gone.
//!
//! Calls are counted per loaded file: each test uses its own copy. To remove a symbol, a test changes
//! its name in the bytes of the copy.
#![expect(unsafe_code, reason = "a C interface: exported names, and answers written through the caller's pointers")]

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_uint, c_void};
use std::path::PathBuf;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;
use std::{fs, ptr, thread};

type Code = c_uint;
type Device = *mut c_void;

const SUCCESS: Code = 0;
const INVALID_ARGUMENT: Code = 2;
const INSUFFICIENT_SIZE: Code = 7;
const VERSION_MISMATCH: Code = 25;
const TIMEOUT: Code = 10;
const UNKNOWN: Code = 999;
/// The Xid bit in the event type mask.
const XID: u64 = 8;
/// Size 40 in the lower bytes, version 2 in the highest.
const MEMORY_V2: c_uint = 0x0200_0028;

#[repr(C)]
struct MemoryV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

#[repr(C)]
struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

#[repr(C)]
struct Process {
    pid: c_uint,
    used: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

#[repr(C)]
struct Pci {
    legacy: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    device_id: c_uint,
    subsystem_id: c_uint,
    bus_id: [u8; 32],
}

#[repr(C)]
struct FieldValue {
    field: c_uint,
    scope: c_uint,
    timestamp: i64,
    latency: i64,
    kind: c_uint,
    code: c_uint,
    value: u64,
}

#[repr(C)]
struct EventData {
    device: Device,
    kind: u64,
    data: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

const _: () = assert!(size_of::<Pci>() == 68 && size_of::<FieldValue>() == 40 && size_of::<EventData>() == 32);
const _: () = assert!(size_of::<MemoryV2>() == 40 && size_of::<Utilization>() == 8 && size_of::<Process>() == 24);

static CALLS: Mutex<BTreeMap<&str, u64>> = Mutex::new(BTreeMap::new());

/// The script's path without its extension: this library's own file, as mapped by the kernel.
static OWN_PATH: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
    // A private function: the address of an exported one would need its name, which tests may change.
    let here = nothing as *const () as usize;
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let within = usize::from_str_radix(from, 16).ok()? <= here && here < usize::from_str_radix(to, 16).ok()?;
        within.then(|| rest.find('/').map(|at| PathBuf::from(&rest[at..])))?
    })
});

/// Runs when the library is loaded, before any call; leaves a file `libfake_nvml.loaded`.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    if let Some(path) = OWN_PATH.as_ref() {
        let _ = fs::write(path.with_extension("loaded"), "");
    }
}

fn script() -> Map<String, Value> {
    let text = OWN_PATH.as_ref().and_then(|path| fs::read_to_string(path.with_extension("json")).ok());
    text.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// Returns the bytes that processes report holding, or held until a few readings ago.
fn held() -> u64 {
    static READ_SINCE: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());
    let folder = OWN_PATH.as_ref().map(|path| path.with_extension("held"));
    let entries = folder.and_then(|folder| fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    let of_process = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path()).ok()?;
        let (bytes, lingers) = text.split_once(' ')?;
        let pid = entry.file_name().into_string().ok()?;
        let mut gone = READ_SINCE.lock().unwrap_or_else(PoisonError::into_inner);
        let readings = gone.entry(pid).or_insert(0);
        *readings += u64::from(!PathBuf::from("/proc").join(entry.file_name()).exists());
        (*readings <= lingers.trim().parse().ok()?).then(|| bytes.parse::<u64>().ok())?
    };
    entries.filter_map(of_process).sum()
}

/// Plays one call: returns the value for the caller, or the error code.
fn play(symbol: &'static str, healthy: Value) -> Result<Value, Code> {
    let before = {
        let mut calls = CALLS.lock().unwrap_or_else(PoisonError::into_inner);
        let count = calls.entry(symbol).or_insert(0);
        *count += 1;
        *count - 1
    };
    let script = script();
    let rules = script.get(symbol).or_else(|| script.get("*").filter(|_| symbol.starts_with("nvmlDevice")));
    let after = |rule: &&Value| rule["after"].as_u64().unwrap_or(0);
    let rule = rules.and_then(Value::as_array).and_then(|rules| rules.iter().rfind(|rule| after(rule) <= before));
    let Some(rule) = rule else { return Ok(healthy) };
    if rule["hang"] == true {
        hang();
    }
    thread::sleep(Duration::from_millis(rule["delay_ms"].as_u64().unwrap_or(0)));
    match rule["code"].as_u64() {
        Some(code) if code != 0 => return Err(code as Code),
        _ => {}
    }
    let value = rule.get("value").cloned().unwrap_or(healthy);
    match (value.as_u64(), rule["per_call"].as_u64()) {
        (Some(start), Some(step)) => Ok(json!(start + step * (before - after(&rule)))),
        _ => Ok(value),
    }
}

fn hang() -> ! {
    if let Some(path) = OWN_PATH.as_ref() {
        let _ = fs::write(path.with_extension("hung"), "");
    }
    loop {
        thread::park();
    }
}

/// Plays a call and passes the value to `write` if it succeeds.
fn answer(symbol: &'static str, healthy: Value, write: impl FnOnce(&Value) -> Code) -> Code {
    play(symbol, healthy).map_or_else(|code| code, |value| write(&value))
}

/// Plays a call that writes one unsigned number.
fn number<T: TryFrom<u64>>(symbol: &'static str, healthy: u64, out: *mut T) -> Code {
    answer(symbol, json!(healthy), |value| match value.as_u64().and_then(|value| T::try_from(value).ok()) {
        // SAFETY: the caller passes a pointer to one `T` that it owns, as NVML's headers ask.
        Some(value) => unsafe { put(out, value) },
        None => UNKNOWN,
    })
}

/// # Safety
/// `out` is null or valid for one write.
unsafe fn put<T>(out: *mut T, value: T) -> Code {
    if out.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: not null, and valid by this function's contract.
    unsafe { ptr::write(out, value) };
    SUCCESS
}

/// Plays a call that writes NUL-terminated text.
fn text(symbol: &'static str, healthy: &str, out: *mut c_char, length: c_uint) -> Code {
    answer(symbol, json!(healthy), |value| {
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

fn nothing(symbol: &'static str) -> Code {
    answer(symbol, Value::Null, |_| SUCCESS)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> Code {
    nothing("nvmlInit_v2")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> Code {
    nothing("nvmlShutdown")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetDriverVersion(out: *mut c_char, length: c_uint) -> Code {
    text("nvmlSystemGetDriverVersion", "580.95.05", out, length)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount_v2(out: *mut c_uint) -> Code {
    number("nvmlDeviceGetCount_v2", 1, out)
}

/// The handle is the index plus one: any non-null value will do, nothing dereferences it.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, out: *mut Device) -> Code {
    // SAFETY: the caller passes a pointer to one handle that it owns.
    answer("nvmlDeviceGetHandleByIndex_v2", Value::Null, |_| unsafe {
        put(out, ptr::without_provenance_mut(index as usize + 1))
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetName(_: Device, out: *mut c_char, length: c_uint) -> Code {
    text("nvmlDeviceGetName", "NVIDIA GeForce RTX 4090", out, length)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo_v2(_: Device, out: *mut MemoryV2) -> Code {
    let healthy = json!({"total": 24_000_000_000_u64, "used": 6_000_000_000_u64});
    answer("nvmlDeviceGetMemoryInfo_v2", healthy, |value| {
        let (total, used) = (value["total"].as_u64().unwrap_or(0), value["used"].as_u64().unwrap_or(0) + held());
        // SAFETY: the caller passes a complete struct that it owns, with the version filled in.
        unsafe {
            if out.is_null() || (*out).version != MEMORY_V2 {
                return VERSION_MISMATCH;
            }
            put(out, MemoryV2 { version: MEMORY_V2, total, reserved: 0, free: total.saturating_sub(used), used })
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTemperature(_: Device, _sensor: c_uint, out: *mut c_uint) -> Code {
    number("nvmlDeviceGetTemperature", 61, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTemperatureThreshold(_: Device, kind: c_uint, out: *mut c_uint) -> Code {
    let [shutdown, slowdown, gpu_max] = [100, 95, 90];
    let healthy = [shutdown, slowdown, 0, gpu_max].get(kind as usize).copied().unwrap_or(0);
    number("nvmlDeviceGetTemperatureThreshold", healthy, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUtilizationRates(_: Device, out: *mut Utilization) -> Code {
    // SAFETY: the caller passes a pointer to one struct that it owns.
    answer("nvmlDeviceGetUtilizationRates", json!(87), |value| unsafe {
        put(out, Utilization { gpu: value.as_u64().unwrap_or(0) as c_uint, memory: 11 })
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPowerUsage(_: Device, out: *mut c_uint) -> Code {
    number("nvmlDeviceGetPowerUsage", 312_500, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetEnforcedPowerLimit(_: Device, out: *mut c_uint) -> Code {
    number("nvmlDeviceGetEnforcedPowerLimit", 450_000, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetClockInfo(_: Device, kind: c_uint, out: *mut c_uint) -> Code {
    let [graphics, sm, memory, video] = [2_520, 2_505, 10_501, 1_950];
    let healthy = [graphics, sm, memory, video].get(kind as usize).copied().unwrap_or(0);
    number("nvmlDeviceGetClockInfo", healthy, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCurrentClocksThrottleReasons(_: Device, out: *mut u64) -> Code {
    number("nvmlDeviceGetCurrentClocksThrottleReasons", 0, out)
}

/// Called twice: first with a count of 0 for the number of processes, then for the list. A null amount
/// means NVML's "not available".
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(_: Device, count: *mut c_uint, out: *mut Process) -> Code {
    answer("nvmlDeviceGetComputeRunningProcesses_v3", json!([]), |value| {
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

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion_v2(out: *mut i32) -> Code {
    number("nvmlSystemGetCudaDriverVersion_v2", 13_000, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfo_v3(_: Device, out: *mut Pci) -> Code {
    answer("nvmlDeviceGetPciInfo_v3", json!("00000000:01:00.0"), |value| {
        let (mut legacy, mut bus_id) = ([0; 16], [0; 32]);
        let text = value.as_str().unwrap_or_default().as_bytes();
        bus_id[..text.len().min(31)].copy_from_slice(&text[..text.len().min(31)]);
        legacy[..text.len().min(15)].copy_from_slice(&text[..text.len().min(15)]);
        // SAFETY: the caller passes a pointer to one struct that it owns.
        unsafe {
            put(out, Pci { legacy, domain: 0, bus: 1, device: 0, device_id: 0x2684_10de, subsystem_id: 0, bus_id })
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxClockInfo(_: Device, _kind: c_uint, out: *mut c_uint) -> Code {
    number("nvmlDeviceGetMaxClockInfo", 3_105, out)
}

/// Off, as on a GeForce, unless the script says 1.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetEccMode(_: Device, current: *mut c_uint, pending: *mut c_uint) -> Code {
    answer("nvmlDeviceGetEccMode", json!(0), |value| {
        let on = value.as_u64().unwrap_or(0) as c_uint;
        // SAFETY: the caller passes pointers to two numbers that it owns.
        unsafe { put(current, on).max(put(pending, on)) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetTotalEccErrors(_: Device, kind: c_uint, _counter: c_uint, out: *mut u64) -> Code {
    number("nvmlDeviceGetTotalEccErrors", if kind == 0 { 3 } else { 0 }, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCurrPcieLinkGeneration(_: Device, out: *mut c_uint) -> Code {
    number("nvmlDeviceGetCurrPcieLinkGeneration", 4, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxPcieLinkGeneration(_: Device, out: *mut c_uint) -> Code {
    number("nvmlDeviceGetMaxPcieLinkGeneration", 4, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCurrPcieLinkWidth(_: Device, out: *mut c_uint) -> Code {
    number("nvmlDeviceGetCurrPcieLinkWidth", 16, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxPcieLinkWidth(_: Device, out: *mut c_uint) -> Code {
    number("nvmlDeviceGetMaxPcieLinkWidth", 16, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPcieThroughput(_: Device, _counter: c_uint, out: *mut c_uint) -> Code {
    number("nvmlDeviceGetPcieThroughput", 1_500, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPcieReplayCounter(_: Device, out: *mut c_uint) -> Code {
    number("nvmlDeviceGetPcieReplayCounter", 0, out)
}

/// The script's value maps field numbers to values; other fields are not supported.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetFieldValues(_: Device, count: i32, values: *mut FieldValue) -> Code {
    const NOT_SUPPORTED: Code = 3;
    answer("nvmlDeviceGetFieldValues", json!({"82": 74, "230": 0}), |answers| {
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

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetCreate(out: *mut Device) -> Code {
    // SAFETY: the caller passes a pointer to one handle that it owns.
    answer("nvmlEventSetCreate", Value::Null, |_| unsafe { put(out, ptr::without_provenance_mut(1)) })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetFree(_: Device) -> Code {
    nothing("nvmlEventSetFree")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetSupportedEventTypes(_: Device, out: *mut u64) -> Code {
    number("nvmlDeviceGetSupportedEventTypes", XID, out)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceRegisterEvents(_: Device, _kinds: u64, _set: Device) -> Code {
    nothing("nvmlDeviceRegisterEvents")
}

/// A number in the script is an Xid error; without one the wait times out. A lost GPU, which fails
/// every device call, fails this one too, like the real one.
#[unsafe(no_mangle)]
extern "C" fn nvmlEventSetWait_v2(_: Device, out: *mut EventData, timeout_ms: c_uint) -> Code {
    answer("nvmlEventSetWait_v2", Value::Null, |value| {
        if let Some(data) = value.as_u64() {
            let device = ptr::without_provenance_mut(1);
            let none = c_uint::MAX;
            // SAFETY: the caller passes a pointer to one struct that it owns.
            unsafe { put(out, EventData { device, kind: XID, data, gpu_instance: none, compute_instance: none }) }
        } else {
            thread::sleep(Duration::from_millis(timeout_ms.min(20).into()));
            TIMEOUT
        }
    })
}
