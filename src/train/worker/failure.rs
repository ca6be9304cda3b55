//! Worker failures: the class of a panic, the record on disk, and constructors for known failures.

use super::WorkerArgs;
use crate::protocol::worker::{Failed, FailureClass};
use crate::train::task::DataError;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io::Write,
    path::Path,
};

/// The record of the failure that ended the last worker, in the run directory.
pub const FAILURE_FILE: &str = "failure.json";

/// The content of [`FAILURE_FILE`], for when the contract's last line did not get through.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FailureRecord {
    /// The number of the worker life that failed.
    pub attempt: u64,
    /// The worker's process id.
    pub pid: u32,
    /// The rung it ran on.
    pub rung: usize,
    /// The failure.
    pub failed: Failed,
}

/// Writes the record. Ignores errors: a run directory that cannot be written must not keep the worker from exiting.
pub fn record(args: &WorkerArgs, failed: &Failed) {
    let record =
        FailureRecord { attempt: args.attempt, pid: std::process::id(), rung: args.rung, failed: failed.clone() };
    if let Ok(text) = serde_json::to_vec_pretty(&record) {
        // Remove it first, so that a symlink of that name is not followed.
        forget(&args.run_dir);
        File::create_new(args.run_dir.join(FAILURE_FILE)).and_then(|mut file| file.write_all(&text)).ok();
    }
}

/// Removes the record of an earlier worker.
pub fn forget(run_dir: &Path) {
    fs::remove_file(run_dir.join(FAILURE_FILE)).ok();
}

/// Name prefixes of the threads that run cubecl's device work.
const DEVICE_THREADS: [&str; 2] = ["DSD-", "DSU-"];
/// Messages of a failed allocation, from cubecl and from the driver.
const OUT_OF_MEMORY: [&str; 4] =
    ["can't allocate buffer", "out of memory", "CUDA_ERROR_OUT_OF_MEMORY", "Memory page 0 doesn't exist"];
/// Messages of a device fault reported on another thread.
const DEVICE_WORDS: [&str; 3] = ["CUDA_ERROR", "DriverError", "NVRTC_ERROR"];

/// Returns the class of a panic, from the thread's name and the message.
#[must_use]
pub fn classify(thread: &str, message: &str) -> FailureClass {
    let says = |words: &[&str]| words.iter().any(|word| message.contains(word));
    let on_device = DEVICE_THREADS.iter().any(|name| thread.starts_with(name));
    if missing_library(message).is_some() {
        FailureClass::Config
    } else if says(&OUT_OF_MEMORY) && (on_device || says(&DEVICE_WORDS) || says(&OUT_OF_MEMORY[..1])) {
        FailureClass::DeviceOutOfMemory
    } else if on_device || says(&DEVICE_WORDS) {
        FailureClass::DeviceFault
    } else {
        FailureClass::Panic
    }
}

/// Returns the remedy for a CUDA library that cannot be loaded, if the panic is about one.
#[must_use]
pub fn missing_library(message: &str) -> Option<&'static str> {
    let missing = message.contains("Unable to dynamically load the");
    if missing && message.contains("\"nvrtc\"") {
        return Some("install the CUDA toolkit's runtime compiler (NVRTC), or train with --device cpu");
    }
    if missing && message.contains("\"cuda\"") {
        return Some("install the NVIDIA driver, or train with --device cpu");
    }
    if message.contains("CUDA installation not found") {
        return Some("set CUDA_PATH to the folder that holds include/cuda_runtime.h, or train with --device cpu");
    }
    None
}

fn of(class: FailureClass, message: impl Into<String>) -> Failed {
    Failed { class, message: message.into(), step: None, thread: None, injected: false }
}

/// Returns the failure of a configuration that cannot run.
pub fn config(message: impl Into<String>) -> Failed {
    of(FailureClass::Config, message)
}

/// Returns the failure of an unusable checkpoint.
pub fn checkpoint(message: impl Into<String>) -> Failed {
    of(FailureClass::Checkpoint, message)
}

/// Returns the failure of a disk that is full or failing.
pub fn disk(message: impl Into<String>) -> Failed {
    of(FailureClass::DiskFull, message)
}

/// Returns the failure of unreadable data.
#[must_use]
pub fn data(error: &DataError) -> Failed {
    of(FailureClass::Data, error.to_string())
}

/// Returns the failure of a loader that ended before the run; its list of requests should rule this out.
#[must_use]
pub fn data_ran_out(step: u64) -> Failed {
    Failed { step: Some(step), ..of(FailureClass::Panic, "the data loader ended before the last step of the run") }
}

/// Returns a failure that the device reported as a value.
#[must_use]
pub fn device(message: &str) -> Failed {
    of(classify(DEVICE_THREADS[0], message), message)
}

/// Returns the failure of a thread that the operating system refused.
#[expect(clippy::needless_pass_by_value, reason = "it is passed to map_err")]
#[must_use]
pub fn no_thread(error: std::io::Error) -> Failed {
    refused("a thread", &error)
}

/// Returns the failure of an operation that the operating system refused.
#[must_use]
pub fn refused(what: &str, error: &std::io::Error) -> Failed {
    of(FailureClass::Panic, format!("the operating system refuses {what}: {error}"))
}

/// Returns the failure of too many non-finite steps in a row.
#[must_use]
pub fn non_finite(step: u64, in_a_row: u64, last: &str) -> Failed {
    let message = format!(
        "{in_a_row} steps in a row were not finite, the last one in its {last}; a safer rung lowers \
         the learning rate or raises the precision"
    );
    Failed { step: Some(step), ..of(FailureClass::NonFinite, message) }
}

/// Returns the failure of a run that another worker holds.
#[must_use]
pub fn locked(message: String) -> Failed {
    of(FailureClass::Panic, message)
}

#[cfg(test)]
mod tests {
    use super::{FailureClass, classify};

    #[test]
    fn panics_are_classified_by_thread_and_words() {
        use FailureClass::{Config, DeviceFault, DeviceOutOfMemory, Panic};
        let table = [
            ("DSD-0-0", "can't allocate buffer of size: 68719476736", DeviceOutOfMemory),
            ("DSD-0-0", "couldn't find resource for that handle: Memory page 0 doesn't exist", DeviceOutOfMemory),
            ("DSU-0-0", "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")", DeviceOutOfMemory),
            ("main", "called `Result::unwrap()`: DriverError(CUDA_ERROR_OUT_OF_MEMORY)", DeviceOutOfMemory),
            ("main", "can't allocate buffer of size: 12", DeviceOutOfMemory),
            ("DSD-0-1", "DriverError(CUDA_ERROR_ILLEGAL_ADDRESS)", DeviceFault),
            ("DSD-0-0", "index out of bounds", DeviceFault),
            ("main", "DriverError(CUDA_ERROR_LAUNCH_FAILED)", DeviceFault),
            ("main", "Unable to dynamically load the \"nvrtc\" shared library - searched", Config),
            ("DSD-0-0", "Unable to dynamically load the \"cuda\" shared library - searched", Config),
            ("DSD-0-0", "CUDA installation not found.", Config),
            ("loader-0", "index out of bounds", Panic),
            ("main", "the pool of ideas is out of memory", Panic),
            ("saver", "attempt to divide by zero", Panic),
        ];
        for (thread, message, class) in table {
            assert_eq!(classify(thread, message), class, "{thread}: {message}");
        }
    }
}
