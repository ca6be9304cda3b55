//! Worker failures: the class of a panic, and constructors for known failures. Errors become text here, where they
//! leave the process.

use super::task::DataError;
use crate::protocol::worker::{Failed, FailureClass};
use crate::store::lock::LockError;
use std::fmt::{self, Display};
use std::path::Path;

/// Name prefixes of the threads that run cubecl's device work.
const DEVICE_THREADS: [&str; 2] = ["DSD-", "DSU-"];
/// Messages of a failed allocation, from cubecl and from the driver.
const OUT_OF_MEMORY: [&str; 4] =
    ["can't allocate buffer", "out of memory", "CUDA_ERROR_OUT_OF_MEMORY", "Memory page 0 doesn't exist"];
/// Messages of a device fault reported on another thread.
const DEVICE_FAULTS: [&str; 3] = ["CUDA_ERROR", "DriverError", "NVRTC_ERROR"];

/// Returns the class of a panic, from the thread's name and the message.
#[must_use]
pub fn classify_panic(thread: &str, message: &str) -> FailureClass {
    let says = |words: &[&str]| words.iter().any(|word| message.contains(word));
    let on_device = DEVICE_THREADS.iter().any(|name| thread.starts_with(name));
    if missing_library_remedy(message).is_some() {
        FailureClass::Config
    } else if says(&OUT_OF_MEMORY) && (on_device || says(&DEVICE_FAULTS) || says(&OUT_OF_MEMORY[..1])) {
        FailureClass::DeviceOutOfMemory
    } else if on_device || says(&DEVICE_FAULTS) {
        FailureClass::DeviceFault
    } else {
        FailureClass::Panic
    }
}

/// Returns the remedy for a CUDA library that cannot be loaded, if the panic is about one.
#[must_use]
pub fn missing_library_remedy(message: &str) -> Option<&'static str> {
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

/// The quantity of a step that is NaN or infinite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NonFinite {
    /// The loss of a micro-batch.
    Loss,
    /// The gradient, with every loss finite.
    Gradient,
}

impl Display for NonFinite {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Loss => "loss",
            Self::Gradient => "gradient",
        })
    }
}

fn failed(class: FailureClass, reason: impl Display) -> Failed {
    Failed { class, message: reason.to_string(), step: None, thread: None, injected: false }
}

/// Returns the failure of a configuration that cannot run.
pub fn invalid_config(reason: impl Display) -> Failed {
    failed(FailureClass::Config, reason)
}

/// Returns the failure of an unusable checkpoint.
pub fn unusable_checkpoint(reason: impl Display) -> Failed {
    failed(FailureClass::Checkpoint, reason)
}

/// Returns the failure of a disk that is full or failing.
pub fn disk_failure(reason: impl Display) -> Failed {
    failed(FailureClass::DiskFull, reason)
}

/// Returns the failure of unreadable data.
#[must_use]
pub fn unreadable_data(error: DataError) -> Failed {
    failed(FailureClass::Data, error)
}

/// Returns the failure of a loader that ended before the run; its list of requests should rule this out.
#[must_use]
pub fn data_ran_out(step: u64) -> Failed {
    let reason = "the data loader ended before the last step of the run";
    Failed { step: Some(step), ..failed(FailureClass::Panic, reason) }
}

/// Returns a failure that the device reported as a value.
pub fn device_error(error: impl Display) -> Failed {
    let message = error.to_string();
    failed(classify_panic(DEVICE_THREADS[0], &message), message)
}

/// Returns the failure of a thread that the operating system refused.
#[expect(clippy::needless_pass_by_value, reason = "it is passed to map_err")]
#[must_use]
pub fn no_thread(error: std::io::Error) -> Failed {
    system_refused("a thread", &error)
}

/// Returns the failure of an operation that the operating system refused.
pub fn system_refused(what: impl Display, error: &std::io::Error) -> Failed {
    failed(FailureClass::Panic, format!("the operating system refuses {what}: {error}"))
}

/// Returns the failure of too many non-finite steps in a row.
#[must_use]
pub fn non_finite_steps(step: u64, in_a_row: u64, last: NonFinite) -> Failed {
    let reason = format!(
        "{in_a_row} steps in a row had a NaN or infinite loss or gradient (last: {last}); a safer rung lowers the \
         learning rate or raises the precision"
    );
    Failed { step: Some(step), ..failed(FailureClass::NonFinite, reason) }
}

/// Returns the failure of a run whose lock file another worker holds.
#[must_use]
pub fn run_locked(path: &Path, holder: &LockError) -> Failed {
    let path = path.display();
    failed(FailureClass::Panic, format!("another worker of this run is still alive; {path} is {holder}; end it first"))
}

#[cfg(test)]
mod tests {
    use super::{FailureClass, classify_panic};

    #[test]
    fn panics_are_classified_by_thread_and_message() {
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
            assert_eq!(classify_panic(thread, message), class, "{thread}: {message}");
        }
    }
}
