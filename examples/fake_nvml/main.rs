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
//! number of readings they stay in use after that process is gone. A third word lists the process as one that computes:
//! `listed` with its bytes, `unsized` without; `stuck` lists its bytes even when it is gone.
//!
//! Calls are counted per loaded file: each test uses its own copy. To remove a symbol, a test changes
//! its name in the bytes of the copy.
#![expect(unsafe_code, reason = "a C interface: exported names, and answers written through the caller's pointers")]

mod abi;
mod answer;
mod device;
mod device_more;
mod events;
mod script;

use abi::Code;
use answer::{answer_number, answer_success, answer_text};
use std::ffi::{c_char, c_uint};

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> Code {
    answer_success("nvmlInit_v2")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> Code {
    answer_success("nvmlShutdown")
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetDriverVersion(out: *mut c_char, length: c_uint) -> Code {
    answer_text("nvmlSystemGetDriverVersion", "580.95.05", out, length)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion_v2(out: *mut i32) -> Code {
    answer_number("nvmlSystemGetCudaDriverVersion_v2", 13_000, out)
}
