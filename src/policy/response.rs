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
    Stop(Advice),
}

/// Advice for trouble that no rung relieves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// The driver has lost the GPU.
    LostGpu,
    /// The driver is unusable.
    Driver,
    /// The disk is full or broken.
    Disk,
    /// The GPU needs a reset.
    ResetGpu,
    /// The GPU's memory has uncorrectable errors.
    GpuMemory,
    /// The GPU has fallen off the bus.
    OffTheBus,
}

impl Advice {
    /// Returns the advice as a sentence; `resume` is the command that continues the run.
    #[must_use]
    pub fn sentence(self, resume: &str) -> String {
        match self {
            Self::LostGpu => format!(
                "the driver has lost the GPU: restart the machine (under WSL2: `wsl --shutdown`, or restart Windows), \
                 then `{resume}`"
            ),
            Self::Driver => "the driver is missing, not loaded, or does not match its library: see `nvidia-smi`; \
                             after a driver update, restart the machine"
                .to_owned(),
            Self::Disk => format!("free some space or repair the disk, then `{resume}`"),
            Self::ResetGpu => format!(
                "the GPU needs a reset: end the processes that use it, then `nvidia-smi --gpu-reset`, or restart the \
                 machine (under WSL2: `wsl --shutdown`, or restart Windows), then `{resume}`"
            ),
            Self::GpuMemory => format!(
                "the GPU's memory has uncorrectable errors: reset the GPU or restart the machine, then `{resume}`; if \
                 they return, have the GPU replaced"
            ),
            Self::OffTheBus => format!(
                "the GPU has fallen off the bus: restart the machine, then `{resume}`; if it happens again, check \
                 its power, cooling and seating"
            ),
        }
    }
}

/// Returns the knobs that a rung with this relief changes, as a hint for writing one.
#[must_use]
pub fn suggest_knobs(relief: Relief) -> &'static str {
    match relief {
        Relief::Memory => {
            "a smaller training.micro_batch with more training.accumulation, training.gradient_checkpointing: true"
        }
        Relief::Kernels => "training.fused_kernels: false, training.autotune: minimal",
        Relief::Numerics => {
            "in this order: half the optimizer.lr, a longer optimizer.schedule.warmup, another training.precision"
        }
        Relief::Heat => "a smaller training.micro_batch, training.autotune: minimal",
    }
}

/// The same for a script, whose arguments and variables a rung changes.
#[must_use]
pub fn suggest_for_script(relief: Relief) -> &'static str {
    match relief {
        Relief::Memory => "a smaller batch with more gradient accumulation, or gradient checkpointing",
        Relief::Kernels => "without torch.compile, or with another implementation of attention",
        Relief::Numerics => "in this order: half the learning rate, a longer warm-up, bf16 or fp32 instead of fp16",
        Relief::Heat => "a smaller batch",
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
        FailureClass::GpuLost => Response::Stop(Advice::LostGpu),
        FailureClass::Driver => Response::Stop(Advice::Driver),
        FailureClass::DiskFull => Response::Stop(Advice::Disk),
        FailureClass::Xid => match number.map(xid::answer_xid) {
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
        | FailureClass::Exception
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
            assert!(matches!(response(class, xid), Response::Stop(_)), "{class}");
        }
    }
}
