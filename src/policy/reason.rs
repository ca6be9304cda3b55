//! Why a run ended, or is being ended: facts as types, and here alone as sentences. No reason names the command that continues
//! the run; its [`Continuation`](crate::outlook::continuation::Continuation) does.

use super::age::format_span;
use super::fault::Fault;
use super::room::Holder;
use super::shift::Answered;
use crate::config::knobs::Relief;
use crate::format::{count, counted};
use crate::outlook::continuation::NewRun;
use crate::protocol::companion::IgnoredKnob;
use crate::protocol::resume::describe_ignored;
use std::fmt;
use std::time::Duration;

/// Why a run ended, or is being ended.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Reason {
    /// A fault that ends every run.
    #[error("{0}")]
    Fault(Fault),
    /// A fault that comes back until the user acts.
    #[error("{fault}{}; {}", and(.unsaved.as_ref()), .fault.advice)]
    NoRestartHelps {
        /// The fault.
        fault: Fault,
        /// The work that it costs, if it is known to.
        unsaved: Option<Unsaved>,
    },
    /// The host ran out of memory with the smallest loader.
    #[error("{0}, again with the smallest loader: lower training.loader, or free host memory")]
    HostMemory(Fault),
    /// The script raised the same exception twice.
    #[error("{fault}, twice in the same way {}: correct the script", place(*.step))]
    SameException {
        /// The exception.
        fault: Fault,
        /// The step after which it was raised.
        step: u64,
    },
    /// The script raised the same exception each time that it loaded the only checkpoint.
    #[error("{fault}, each time while it loads the checkpoint of step {}: correct `checkpoints` and `resume` in the run file, or the script", count(*.step))]
    CannotLoad {
        /// The exception.
        fault: Fault,
        /// The step of the checkpoint.
        step: u64,
    },
    /// No loss was finite since a restart for that reason.
    #[error("{fault}, and no finite loss since the restart; {unrelieved}: {}", .unrelieved.suggestion())]
    NoFiniteLoss {
        /// The fault.
        fault: Fault,
        /// The missing rung.
        unrelieved: Box<Unrelieved>,
    },
    /// The restart budget is used up.
    #[error(
        "{spent}; the last worker: {fault}{}{}{}",
        .proposed.as_ref().map_or_else(String::new, |does| format!("; the keeper {does}")),
        .unrelieved.as_ref().map_or_else(String::new, |it| format!("; {it}: {}", it.suggestion())),
        if *.puts_back { "; an older checkpoint failed in the same way, so the newest is put back if it is whole" } else { "" }
    )]
    NoProgress {
        /// How the budget was used up.
        spent: Exhausted,
        /// The last fault.
        fault: Fault,
        /// The open proposal.
        proposed: Option<String>,
        /// The missing rung, if one would help.
        unrelieved: Option<Box<Unrelieved>>,
        /// Checkpoints are put back, as an older one failed in the same way.
        puts_back: bool,
    },
    /// A restart would overwrite outputs of the command, which may be checkpoints.
    #[error(
        "{fault}; a start from the beginning would overwrite the outputs `{pattern}`, which `checkpoints.match` does not \
         match: correct it in the run's run.yaml"
    )]
    UnmatchedOutputs {
        /// The fault.
        fault: Fault,
        /// A pattern that matches the outputs.
        pattern: String,
    },
    /// The user started the command, from a checkpoint that the keeper may not know.
    #[error(
        "{0}; it has written no checkpoint since it was started, and a start from the beginning might overwrite what it had: \
         `downshift run FILE --from CHECKPOINT` starts from a checkpoint that you name"
    )]
    UnknownStart(Fault),
    /// Nothing resumes the command.
    #[error(
        "{fault}; nothing resumes the command, and a start from the beginning might overwrite its {}, so the keeper does not \
         start it again{}",
        if *.saves { "checkpoints" } else { "outputs" },
        and(.again.as_ref().map(NewRun::advice))
    )]
    NothingResumes {
        /// The fault.
        fault: Fault,
        /// The command saves checkpoints.
        saves: bool,
        /// How it starts again in a new run.
        again: Option<NewRun>,
    },
    /// The script ignores every knob that would relieve the cause.
    #[error(
        "{fault}; {}, so no rung helps against {}: make the script use the value it is given",
        describe_ignored(.ignored).unwrap_or_default(), .relief.trouble()
    )]
    IgnoredKnobs {
        /// The fault.
        fault: Fault,
        /// The knobs.
        ignored: Vec<IgnoredKnob>,
        /// The needed relief.
        relief: Relief,
    },
    /// The rung that relieves a fault cannot start, and the rung that the run left would meet the fault again.
    #[error(
        "{}, and {rung}, which helps against {}, cannot start here ({fault}); correct that rung in the run's run.yaml",
        .answers.text, .answers.relief.trouble()
    )]
    RungCannotStart {
        /// The first fault.
        answers: Answered,
        /// The rung.
        rung: String,
        /// The fault of the rung.
        fault: Fault,
    },
    /// A worker cannot be killed: that of an earlier keeper, with its process id.
    #[error(
        "{} cannot be killed (it may hang in the driver), so no other one starts. Look at it with `ps`, then restart the \
         machine or, under WSL2, run `wsl --shutdown`",
        .0.map_or_else(|| "the worker".to_owned(), |pid| format!("worker process {pid} of an earlier keeper"))
    )]
    Unkillable(Option<u32>),
    /// The GPU does not cool.
    #[error(
        "the GPU does not cool: {celsius:.0} °C after a pause of {} min, {resume_c:.0} °C needed; check its fan, its airflow \
         and other processes that use it",
        .waited.as_secs() / 60
    )]
    StaysHot {
        /// The temperature.
        celsius: f64,
        /// The temperature for a start.
        resume_c: f64,
        /// The length of the pause.
        waited: Duration,
    },
    /// Other processes leave no room on the GPU.
    #[error(
        "rung {rung} needs {} MiB of GPU memory, and {} MiB are free: {}; end what is not needed",
        .needed >> 20, .free >> 20, describe_holders(.holders)
    )]
    NoRoom {
        /// The rung.
        rung: String,
        /// The bytes it needs.
        needed: u64,
        /// The free bytes.
        free: u64,
        /// The other processes.
        holders: Vec<Holder>,
    },
    /// The driver counts memory for a worker that is gone.
    #[error(
        "the GPU memory was not released: the last worker of this run is gone, and the driver still counts {} MiB for it; \
         restart the machine or, under WSL2, run `wsl --shutdown`",
        .0 >> 20
    )]
    NotReleased(u64),
    /// More GPU memory is in use than before the run, and nobody knows by what.
    #[error(
        "the GPU memory was not released: {} MiB in use, {} MiB before the run; `nvidia-smi` shows which process holds it",
        .used >> 20, .before >> 20
    )]
    MemoryInUse {
        /// Bytes in use.
        used: u64,
        /// Bytes in use before the run.
        before: u64,
    },
    /// Another run uses the devices, and this one was not started to wait.
    #[error("{occupied}; `{resume} --wait-for-card` waits for it, `{resume} --another` starts beside it")]
    Occupied {
        /// The runs that use them.
        occupied: String,
        /// The command that resumes the run.
        resume: String,
    },
    /// The run directory was moved or deleted.
    #[error("{0} was moved or deleted during the run")]
    Moved(String),
    /// The disk of the run directory is gone.
    #[error("the disk of {0} was not mounted for an hour")]
    Unmounted(String),
    /// The run file is invalid by now.
    #[error("run.yaml changed and is invalid: {0}")]
    InvalidRunFile(String),
    /// The run file asks for more than the user approved.
    #[error(
        "run.yaml changed in what it starts, loads, contacts or deletes, and nobody has approved that; undo the change, or \
         resume the run, which asks for approval"
    )]
    Unapproved,
    /// The end of the run cannot be stored.
    #[error(
        "the run ended at step {}, but run.db cannot be written ({error}), so its end and its newest rows are lost: make room, \
         or raise the limit (`ulimit -f`, a quota), then resume the run",
        count(*.step)
    )]
    Unwritten {
        /// The last step.
        step: u64,
        /// The error of the store.
        error: String,
    },
}

/// How the restart budget was used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Exhausted {
    /// Restarts are off.
    #[error("restarts are off (watch.restarts_without_progress: 0)")]
    Off,
    /// This many restarts led to no newer checkpoint.
    #[error("{} without progress", counted(u64::from(*.0), "restart"))]
    WithoutProgress(u32),
    /// This many restarts, within a time if one is set.
    #[error(
        "{}{}",
        counted(u64::from(*.0), "restart"),
        .1.map_or_else(|| ", as many as allowed".to_owned(), |window| format!(" within {}", format_span(window)))
    )]
    TooMany(u32, Option<Duration>),
}

/// No lower rung offers a relief.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error(
    "no rung below {rung} helps against {}{}",
    .relief.trouble(), .why.as_ref().map_or_else(String::new, |why| format!(" ({why})"))
)]
pub struct Unrelieved {
    /// The current rung.
    pub rung: String,
    /// The relief.
    pub relief: Relief,
    /// Why a rung that should offer it does not.
    pub why: Option<NoEffect>,
    /// The worker is a script.
    pub is_script: bool,
    /// How its command starts again in a new run, if nothing resumes it.
    pub again: Option<NewRun>,
}

impl Unrelieved {
    /// Suggests a rung that would offer the relief.
    #[must_use]
    pub fn suggestion(&self) -> String {
        let knobs = if self.is_script { suggest_for_script(self.relief) } else { suggest_knobs(self.relief) };
        let rung = format!("a rung with `relieves: [{}]` ({knobs})", self.relief);
        match &self.again {
            None => format!("add {rung} to the ladder in its run.yaml"),
            Some(NewRun { init: Some(init), .. }) => {
                format!("write a run file with `{init}`, and add {rung} to its ladder")
            }
            Some(NewRun { init: None, .. }) => format!("add {rung} to the ladder in its run file"),
        }
    }
}

/// Why a rung has no effect, although it offers a relief.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum NoEffect {
    /// The script ignores its knobs.
    #[error("{}", describe_ignored(.0).unwrap_or_default())]
    Ignored(Vec<IgnoredKnob>),
    /// It changes variables of a GPU, and the run uses none.
    #[error("{0} changes only what a GPU reads, and none is in use")]
    NoGpu(String),
    /// It cannot start.
    #[error("{rung} cannot start here: {fault}")]
    CannotStart {
        /// The rung.
        rung: String,
        /// The fault that ended it.
        fault: String,
    },
}

/// The work that an end without a save loses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unsaved {
    /// Steps since the newest checkpoint.
    pub steps: u64,
    /// Step of that checkpoint.
    pub since: Option<u64>,
}

impl fmt::Display for Unsaved {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = counted(self.steps, "step");
        match self.since {
            Some(durable) => write!(formatter, "not saved: {steps} since checkpoint {}", count(durable)),
            None => write!(formatter, "not saved: {steps}; no checkpoint yet"),
        }
    }
}

/// A request that was accepted and cannot be carried out: the worker cannot save first, and trains on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "cancelled: {what}; step {} could not be saved ({message}). Training continues, so nothing is lost ({unsaved}); fix the \
     cause, then ask again{}",
    count(*.step),
    if *.is_stop { "; a second stop ends it without saving" } else { "" }
)]
pub struct Cancelled {
    /// The request.
    pub what: String,
    /// The step.
    pub step: u64,
    /// Why it cannot be saved.
    pub message: String,
    /// The work since the newest checkpoint.
    pub unsaved: Unsaved,
    /// The request was to stop.
    pub is_stop: bool,
}

fn and(part: Option<impl fmt::Display>) -> String {
    part.map_or_else(String::new, |part| format!("; {part}"))
}

fn place(step: u64) -> String {
    if step == 0 { "before the first step".to_owned() } else { format!("after step {}", count(step)) }
}

fn describe_holders(holders: &[Holder]) -> String {
    let named: Vec<String> = holders.iter().take(3).map(ToString::to_string).collect();
    if named.is_empty() { "the driver does not report the holders".to_owned() } else { named.join(", ") }
}

/// Returns the knobs that a rung with this relief changes, as a hint for writing one.
fn suggest_knobs(relief: Relief) -> &'static str {
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
fn suggest_for_script(relief: Relief) -> &'static str {
    match relief {
        Relief::Memory => "a smaller batch with more gradient accumulation, or gradient checkpointing",
        Relief::Kernels => "without torch.compile, or with another implementation of attention",
        Relief::Numerics => "in this order: half the learning rate, a longer warm-up, bf16 or fp32 instead of fp16",
        Relief::Heat => "a smaller batch",
    }
}

#[cfg(test)]
mod tests;
