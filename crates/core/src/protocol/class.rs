//! Failure classes. A worker reports the first few itself; the keeper derives the others from its
//! exit, from the probe and from the kernel log.

use super::exit_code::{CHECKPOINT, CONFIG, DATA, FAILURE};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Class of a failure that ended a worker or affects it. Each class that a worker reports itself has an exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureClass {
    /// An allocation on the device failed.
    DeviceOutOfMemory,
    /// The device raised an error or its thread panicked.
    DeviceFault,
    /// More non-finite steps in a row than the guard tolerates.
    NonFinite,
    /// The configuration is unusable.
    Config,
    /// The checkpoint is unusable.
    Checkpoint,
    /// The data is unreadable.
    Data,
    /// Device memory moved to the host, which makes every step many times slower.
    Spilled,
    /// Any other panic.
    Panic,
    /// The driver reported an Xid; the message contains its number.
    Xid,
    /// The GPU has fallen off the bus, or the driver lost it.
    GpuLost,
    /// The driver is missing, not loaded, or does not match its library.
    Driver,
    /// The kernel or the cgroup ran out of host memory; assigned only with evidence.
    HostOutOfMemory,
    /// A signal from outside ended the worker, for an unknown reason.
    Killed,
    /// The worker crashed: SIGSEGV, SIGABRT, SIGBUS, SIGILL, SIGFPE, SIGSYS.
    Crash,
    /// No progress for longer than its limit.
    Hang,
    /// The loss spiked.
    LossSpike,
    /// The loss diverged.
    Divergence,
    /// The GPU is too hot.
    Overheating,
    /// The disk is full, or fails to write.
    DiskFull,
    /// Processes of one training job lost each other.
    Collective,
    /// The worker exited with code 0 before the last step.
    EarlyExit,
    /// The script raised an exception that nothing caught.
    Exception,
    /// No known class fits.
    #[default]
    Unknown,
}

/// Each class with its word in data and its name in sentences, in their order.
const NAMES: [(FailureClass, &str, &str); 23] = [
    (FailureClass::DeviceOutOfMemory, "device_out_of_memory", "out of device memory"),
    (FailureClass::DeviceFault, "device_fault", "device fault"),
    (FailureClass::NonFinite, "non_finite", "too many NaN steps"),
    (FailureClass::Config, "config", "configuration"),
    (FailureClass::Checkpoint, "checkpoint", "checkpoint"),
    (FailureClass::Data, "data", "data"),
    (FailureClass::Spilled, "spilled", "device memory spilled to the host"),
    (FailureClass::Panic, "panic", "panic"),
    (FailureClass::Xid, "xid", "driver error (Xid)"),
    (FailureClass::GpuLost, "gpu_lost", "GPU lost"),
    (FailureClass::Driver, "driver", "driver"),
    (FailureClass::HostOutOfMemory, "host_out_of_memory", "out of host memory"),
    (FailureClass::Killed, "killed", "killed"),
    (FailureClass::Crash, "crash", "crash"),
    (FailureClass::Hang, "hang", "hang"),
    (FailureClass::LossSpike, "loss_spike", "loss spike"),
    (FailureClass::Divergence, "divergence", "divergence"),
    (FailureClass::Overheating, "overheating", "overheating"),
    (FailureClass::DiskFull, "disk_full", "disk full"),
    (FailureClass::Collective, "collective", "collective"),
    (FailureClass::EarlyExit, "early_exit", "early exit"),
    (FailureClass::Exception, "exception", "exception"),
    (FailureClass::Unknown, "unknown", "unknown"),
];
const _: () = assert!(FailureClass::Unknown as usize + 1 == NAMES.len(), "a class without a name");

impl FailureClass {
    /// All classes.
    pub const ALL: [Self; NAMES.len()] = {
        let (mut all, mut index) = ([Self::Unknown; NAMES.len()], 0);
        while index < all.len() {
            all[index] = NAMES[index].0;
            index += 1;
        }
        all
    };

    /// Returns the exit code of a worker or run that ends with this class: 1 for a class that no worker reports itself.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::DeviceOutOfMemory => 10,
            Self::DeviceFault => 11,
            Self::NonFinite => 12,
            Self::Config => CONFIG,
            Self::Checkpoint => CHECKPOINT,
            Self::Data => DATA,
            Self::Panic => 101,
            _ => FAILURE,
        }
    }

    /// Returns the class for an exit code.
    #[must_use]
    pub fn from_exit_code(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.exit_code() != FAILURE && i32::from(class.exit_code()) == code)
    }

    /// Returns the class as written in data: `device_out_of_memory`.
    #[must_use]
    pub fn word(self) -> &'static str {
        NAMES[self as usize].1
    }
}

impl fmt::Display for FailureClass {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(NAMES[*self as usize].2)
    }
}

#[cfg(test)]
mod tests {
    use super::{FailureClass, NAMES};

    #[test]
    fn words_and_codes_lead_back_to_their_class() {
        assert!(NAMES.iter().enumerate().all(|(index, (class, ..))| *class as usize == index));
        for class in FailureClass::ALL {
            let json = format!("\"{}\"", class.word());
            assert_eq!(serde_json::to_string(&class).unwrap(), json);
            assert_eq!(serde_json::from_str::<FailureClass>(&json).unwrap(), class);
            if class.exit_code() != 1 {
                assert_eq!(FailureClass::from_exit_code(i32::from(class.exit_code())), Some(class));
            }
        }
        assert_eq!(FailureClass::from_exit_code(1), None);
        assert_eq!(FailureClass::from_exit_code(0), None);
    }
}
