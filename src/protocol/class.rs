//! Failure classes. A worker reports the first few itself; the keeper derives the others from its
//! exit, from the probe and from the kernel log.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Class of a failure that ended a worker or affects it. Each class that a worker reports itself has an exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
    Unknown,
}

impl FailureClass {
    /// All classes.
    pub const ALL: [Self; 22] = [
        Self::DeviceOutOfMemory,
        Self::DeviceFault,
        Self::NonFinite,
        Self::Config,
        Self::Checkpoint,
        Self::Data,
        Self::Panic,
        Self::Xid,
        Self::GpuLost,
        Self::Driver,
        Self::HostOutOfMemory,
        Self::Killed,
        Self::Crash,
        Self::Hang,
        Self::LossSpike,
        Self::Divergence,
        Self::Overheating,
        Self::DiskFull,
        Self::Collective,
        Self::EarlyExit,
        Self::Exception,
        Self::Unknown,
    ];

    /// Returns the exit code of a worker or run that ends with this class: 1 for a class that no worker reports itself.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::DeviceOutOfMemory => 10,
            Self::DeviceFault => 11,
            Self::NonFinite => 12,
            Self::Config => 13,
            Self::Checkpoint => 14,
            Self::Data => 15,
            Self::Panic => 101,
            _ => 1,
        }
    }

    /// Returns the class for an exit code.
    #[must_use]
    pub fn from_exit_code(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.exit_code() != 1 && i32::from(class.exit_code()) == code)
    }

    /// Returns the class as written in data: `device_out_of_memory`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::DeviceOutOfMemory => "device_out_of_memory",
            Self::DeviceFault => "device_fault",
            Self::NonFinite => "non_finite",
            Self::Config => "config",
            Self::Checkpoint => "checkpoint",
            Self::Data => "data",
            Self::Panic => "panic",
            Self::Xid => "xid",
            Self::GpuLost => "gpu_lost",
            Self::Driver => "driver",
            Self::HostOutOfMemory => "host_out_of_memory",
            Self::Killed => "killed",
            Self::Crash => "crash",
            Self::Hang => "hang",
            Self::LossSpike => "loss_spike",
            Self::Divergence => "divergence",
            Self::Overheating => "overheating",
            Self::DiskFull => "disk_full",
            Self::Collective => "collective",
            Self::EarlyExit => "early_exit",
            Self::Exception => "exception",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for FailureClass {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::DeviceOutOfMemory => "out of device memory",
            Self::DeviceFault => "device fault",
            Self::NonFinite => "too many NaN steps",
            Self::Config => "configuration",
            Self::Checkpoint => "checkpoint",
            Self::Data => "data",
            Self::Panic => "panic",
            Self::Xid => "driver error (Xid)",
            Self::GpuLost => "GPU lost",
            Self::Driver => "driver",
            Self::HostOutOfMemory => "out of host memory",
            Self::Killed => "killed",
            Self::Crash => "crash",
            Self::Hang => "hang",
            Self::LossSpike => "loss spike",
            Self::Divergence => "divergence",
            Self::Overheating => "overheating",
            Self::DiskFull => "disk full",
            Self::Collective => "collective",
            Self::EarlyExit => "early exit",
            Self::Exception => "exception",
            Self::Unknown => "unknown",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::FailureClass;

    #[test]
    fn words_and_codes_lead_back_to_their_class() {
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
