//! Worker failures: constructors for known failures. Errors become text here, where they leave the process.

use super::device_failure::{DEVICE_THREADS, ask_driver, classify_panic, describe_error};
use super::task::DataError;
use downshift_core::protocol::worker::{Failed, FailureClass};
use downshift_core::store::lock::LockError;
use std::fmt::{self, Display};
use std::path::Path;

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
    let driver = ask_driver();
    let class = classify_panic(DEVICE_THREADS[0], &message, driver.as_ref());
    failed(class, describe_error(&message, driver.as_ref()))
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
