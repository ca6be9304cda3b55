//! The table from cause to response. The rung, and whether the budget still allows it, are decided elsewhere.

use super::xid;
use crate::config::knobs::Relief;
use crate::protocol::worker::FailureClass;

/// Response to the end of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Response {
    /// Restart unchanged.
    Again,
    /// Restart on the nearest lower rung that offers this relief, with the same batch.
    Relieve(Relief),
    /// Restart unchanged the first time; from the second time on, use a rung that offers this relief.
    AgainThen(Relief),
    /// Restart once with one loader thread and one batch of prefetch; after that, ask the user.
    Lean,
    /// Retrying changes nothing: end with the class's exit code.
    Fail,
    /// No rung helps: stop, keep everything, and give this advice.
    Stop(&'static str),
}

const LOST: &str = "the driver has lost the card: restart the machine (under WSL2: `wsl --shutdown`, or restart \
                    Windows), then `downshift resume`";
const DRIVER: &str = "the driver is missing, not loaded, or does not match its library: `nvidia-smi` says more; \
                      restart after an update of the driver";
const DISK: &str = "free some space or repair the disk, then `downshift resume`";

/// Returns the knobs that a rung with this relief changes, as a hint for writing one.
#[must_use]
pub fn remedy(relief: Relief) -> &'static str {
    match relief {
        Relief::Memory => {
            "a smaller training.micro_batch with more training.accumulation, training.gradient_checkpointing: true"
        }
        Relief::Kernels => "training.fused_kernels: false, training.autotune: minimal",
        Relief::Numerics => "a lower optimizer.lr, a lower optimizer.max_norm",
        Relief::Heat => "a smaller training.micro_batch, training.autotune: minimal",
    }
}

/// Returns the response to a class; `number` is the Xid number.
#[must_use]
pub fn response(class: FailureClass, number: Option<u32>) -> Response {
    match class {
        FailureClass::DeviceOutOfMemory => Response::Relieve(Relief::Memory),
        FailureClass::DeviceFault => Response::Relieve(Relief::Kernels),
        FailureClass::NonFinite => Response::Relieve(Relief::Numerics),
        FailureClass::Hang => Response::AgainThen(Relief::Kernels),
        FailureClass::Overheating => Response::Relieve(Relief::Heat),
        FailureClass::HostOutOfMemory => Response::Lean,
        FailureClass::Config | FailureClass::Data | FailureClass::Checkpoint => Response::Fail,
        FailureClass::GpuLost => Response::Stop(LOST),
        FailureClass::Driver => Response::Stop(DRIVER),
        FailureClass::DiskFull => Response::Stop(DISK),
        FailureClass::Xid => match number.map(xid::answer) {
            Some(xid::Answer::Stop(advice)) => Response::Stop(advice),
            Some(xid::Answer::Kernels) => Response::Relieve(Relief::Kernels),
            Some(xid::Answer::Hang) => Response::AgainThen(Relief::Kernels),
            Some(xid::Answer::Note | xid::Answer::Again) | None => Response::Again,
        },
        FailureClass::Panic
        | FailureClass::Killed
        | FailureClass::Crash
        | FailureClass::EarlyExit
        | FailureClass::Collective
        | FailureClass::LossSpike
        | FailureClass::Divergence
        | FailureClass::Unknown => Response::Again,
    }
}

/// Reports whether the cause lies outside the worker and its work; such a fault counts against neither
/// a rung nor a checkpoint.
#[must_use]
pub fn is_outside(class: FailureClass) -> bool {
    matches!(class, FailureClass::Killed | FailureClass::HostOutOfMemory | FailureClass::DiskFull)
}

#[cfg(test)]
mod tests {
    use super::{Response, response};
    use crate::config::knobs::Relief;
    use crate::protocol::worker::FailureClass as Class;

    #[test]
    fn every_class_has_its_response() {
        for (class, xid, wanted) in [
            (Class::DeviceOutOfMemory, None, Response::Relieve(Relief::Memory)),
            (Class::DeviceFault, None, Response::Relieve(Relief::Kernels)),
            (Class::NonFinite, None, Response::Relieve(Relief::Numerics)),
            (Class::Overheating, None, Response::Relieve(Relief::Heat)),
            (Class::Hang, None, Response::AgainThen(Relief::Kernels)),
            (Class::HostOutOfMemory, None, Response::Lean),
            (Class::Config, None, Response::Fail),
            (Class::Data, None, Response::Fail),
            (Class::Checkpoint, None, Response::Fail),
            (Class::Xid, Some(31), Response::Relieve(Relief::Kernels)),
            (Class::Xid, Some(109), Response::AgainThen(Relief::Kernels)),
            (Class::Xid, Some(94), Response::Again),
            (Class::Xid, None, Response::Again),
            (Class::Killed, None, Response::Again),
            (Class::Unknown, None, Response::Again),
        ] {
            assert_eq!(response(class, xid), wanted, "{class}");
        }
        for (class, xid) in
            [(Class::GpuLost, None), (Class::Driver, None), (Class::Xid, Some(79)), (Class::DiskFull, None)]
        {
            assert!(matches!(response(class, xid), Response::Stop(advice) if !advice.is_empty()), "{class}");
        }
    }
}
