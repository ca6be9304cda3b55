//! Measures what a rung needs: a worker or a command, started without a keeper, one attempt after the other, in a
//! temporary folder. Nothing of an attempt is left afterwards but what a command itself writes elsewhere.

pub mod attempt;
pub mod card;
mod command;
pub mod folder;
mod host_memory;
pub mod interruption;
pub mod isolated_worker;
mod observed;

use super::{Failure, trial};
use crate::config::run::{AsWritten, Run, Source};
use crate::format::{bytes, counted, quoted};
use crate::protocol::claim::Devices;
use crate::protocol::device::DeviceChoice;
use crate::protocol::plan::Measured;
use crate::protocol::worker::FailureClass;
use crate::untrusted::text;
use clap::Args;
use command::CommandMeter;
use isolated_worker::IsolatedWorker;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Options for measurements.
#[derive(Debug, Clone, Args)]
pub struct Limits {
    /// Measure even if a run is on the same device
    #[arg(long)]
    pub another: bool,
    /// Longest time for one measurement of a command, such as 90s or 10m; a command that reports no steps is measured
    /// for this long
    #[arg(long, default_value = "5m", value_name = "TIME", value_parser = trial::parse_duration)]
    pub limit: Duration,
}

/// How long one attempt is measured, and what it may take.
#[derive(Debug, Clone, Copy)]
pub struct Protocol {
    /// Steps to take.
    pub steps: u64,
    /// Longest time for a command.
    pub limit: Duration,
    /// Bytes of the device beyond which a command is ended, and a worker if the device is the CPU.
    pub budget: Option<u64>,
}

/// A measurement.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measurement {
    /// The figures.
    pub figures: Measured,
    /// The loss at each step that reported one.
    pub losses: BTreeMap<u64, f64>,
}

/// Reason for a missing measurement.
#[derive(Debug)]
pub enum Unmeasured {
    /// The attempt ran out of memory, or took more than its budget.
    OutOfMemory(Failure),
    /// It failed otherwise.
    Failed(Failure),
    /// A signal told this program to end.
    Interrupted(Failure),
}

impl Unmeasured {
    /// Creates the reason of an attempt that ended with this code of the worker contract.
    fn with_code(code: u8, message: String) -> Self {
        let failure = Failure::new(code, message);
        if code == FailureClass::DeviceOutOfMemory.exit_code() {
            Self::OutOfMemory(failure)
        } else {
            Self::Failed(failure)
        }
    }

    /// Creates the reason of an attempt that was ended above its budget.
    fn over_budget(rung: &str, needed: u64, budget: u64) -> Self {
        let message = format!("rung {rung}: takes {}, more than {}", bytes(needed), bytes(budget));
        Self::OutOfMemory(Failure::new(FailureClass::DeviceOutOfMemory.exit_code(), message))
    }

    /// Creates the reason of an attempt that the kernel probably ended for its memory.
    fn killed_for_memory(rung: &str, peak: u64, log: &str) -> Self {
        let message = format!("rung {rung}: killed at {} or more, probably for lack of memory{log}", bytes(peak));
        Self::OutOfMemory(Failure::new(FailureClass::DeviceOutOfMemory.exit_code(), message))
    }
}

impl<E: std::error::Error> From<E> for Unmeasured {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl From<Failure> for Unmeasured {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Unmeasured> for Failure {
    fn from(why: Unmeasured) -> Self {
        match why {
            Unmeasured::OutOfMemory(failure) | Unmeasured::Failed(failure) | Unmeasured::Interrupted(failure) => {
                failure
            }
        }
    }
}

/// Measures the rungs of a run, one after the other.
pub enum Meter<'a> {
    /// By a worker.
    Worker(IsolatedWorker<'a>),
    /// By its command.
    Command(CommandMeter<'a>),
}

impl<'a> Meter<'a> {
    /// Creates a meter for a run on the `requested` device, of which the trainer has `found` the first. A command may
    /// use all `devices`.
    pub fn new(
        run: &Run,
        requested: &'a str,
        found: &str,
        devices: &Devices,
        protocol: Protocol,
    ) -> Result<Self, Failure> {
        if run.command.is_none() {
            let gpu = super::plan::card_index(found);
            let budget = protocol.budget.filter(|_| !DeviceChoice::names_gpu(found));
            return Ok(Self::Worker(IsolatedWorker::new(requested, gpu, protocol.steps).within(budget)));
        }
        Ok(Self::Command(CommandMeter::new(requested, devices, protocol)?))
    }

    /// Measures a rung.
    pub fn measure(&mut self, run: &Run, rung: usize) -> Result<Measurement, Unmeasured> {
        match self {
            Self::Worker(worker) => worker.measure(run, rung),
            Self::Command(meter) => meter.measure(run, rung),
        }
    }
}

/// Describes what a measurement of a command starts; none for a built-in task, which writes nothing.
pub fn preview(run: &Run, protocol: &Protocol) -> Option<String> {
    let spec = run.command.as_ref()?;
    let words: Vec<String> = spec.command.iter().map(|word| quoted(word)).collect();
    Some(format!(
        "each measurement starts `{}` in {} from its beginning, and ends it with everything it started after {} or {} \
         s; the script's own outputs go where they always do",
        words.join(" "),
        text::path(&spec.directory),
        counted(protocol.steps, "step"),
        protocol.limit.as_secs()
    ))
}

/// Returns a run with this rung alone.
pub fn only_rung(run: &Run, rung: usize) -> Run {
    Run { rungs: vec![run.rungs[rung].clone()], plan: Vec::new(), ..run.clone() }
}

/// Returns a run of one rung with another value of a knob, checked like a run file.
pub fn with_knob(run: &Run, knob: &str, value: &str) -> Result<Run, Failure> {
    let (text, overrides) = (run.to_yaml(), [(knob.to_owned(), value.to_owned())]);
    let source = Source { file: "run.yaml", text: &text, base: Path::new("/"), overrides: &overrides };
    let mut changed = Run::read(&source, &AsWritten)
        .map_err(|refusal| Failure::config(format!("{}:\n{refusal}", refusal.subject())))?;
    // The text calls its only rung `full`.
    changed.rungs[0].name.clone_from(&run.rungs[0].name);
    Ok(changed)
}
