//! Facts about a run, by concern: its watches, its position, its newest worker and the GPU's memory.

use super::age::AgeWatch;
use super::drift::DriftWatch;
use super::event::Limits;
use super::hang::HangWatch;
use super::heat::HeatWatch;
use super::idle::IdleWatch;
use super::moves::Move;
use super::pace::Pace;
use super::room::CardUse;
use super::skips::SkipWatch;
use super::spike::SpikeWatch;
use super::spill::SpillWatch;
use super::updates::UpdateWatch;
use crate::outlook::cost::Reached;
use crate::protocol::capability::Capability;
use crate::protocol::companion::IgnoredKnob;
use crate::protocol::progress::began_after;
use crate::protocol::worker::{DoneReason, Failed, Hello};
use std::mem::Discriminant;
use std::time::Duration;

/// The watches over one worker.
#[derive(Debug, Clone)]
pub struct Watches {
    pub hang: HangWatch,
    pub heat: HeatWatch,
    /// Of the steps on weights, and of those on the architecture of a search; drifts likewise.
    pub spikes: [SpikeWatch; 2],
    pub skips: SkipWatch,
    pub updates: UpdateWatch,
    pub drifts: [DriftWatch; 2],
    pub idle: IdleWatch,
    pub spill: SpillWatch,
    pub age: AgeWatch,
}

impl Watches {
    pub fn new(limits: &Limits, capability: Capability) -> Self {
        Self {
            hang: hang_watch(limits, capability, Duration::ZERO),
            heat: HeatWatch::default(),
            spikes: Default::default(),
            skips: SkipWatch::default(),
            updates: UpdateWatch::default(),
            drifts: Default::default(),
            idle: IdleWatch::default(),
            spill: SpillWatch::default(),
            age: AgeWatch::default(),
        }
    }

    /// Starts over for another worker. Active alarms persist.
    pub fn renew(&mut self, limits: &Limits, capability: Capability, now: Duration) {
        self.hang = hang_watch(limits, capability, now);
        (self.spikes, self.skips, self.updates, self.drifts) = Default::default();
        self.age.renew();
        self.spill = SpillWatch::default();
        self.idle.reset();
        self.heat.reset();
    }

    /// Excludes the time in which the keeper itself stalled.
    pub fn forgive(&mut self, delay: Duration, now: Duration) {
        self.hang.forgive(delay, now);
        self.age.forgive(now);
        self.idle.forgive(delay, now);
    }
}

fn hang_watch(limits: &Limits, capability: Capability, now: Duration) -> HangWatch {
    let mut watch = HangWatch::new(&limits.watch, now);
    if capability.is_command() {
        watch.watch_command(capability.may_end_hung());
    }
    watch
}

/// Where the run is.
#[derive(Debug, Clone)]
pub struct Position {
    /// The newest step of the worker.
    pub step: Option<u64>,
    /// The step after which the worker's training began; none until it has taken one.
    pub began_after: Option<u64>,
    /// An earlier keeper started the worker, which has not introduced itself again.
    pub is_continued: bool,
    /// Clock of the run at that step.
    pub clock: Option<u64>,
    /// Clock units in an epoch.
    pub epoch_units: u64,
    /// The epoch that a command reported last.
    pub epoch: Option<u64>,
    /// Clock units in the whole run.
    pub total_units: u64,
    /// Clock units in a step, as far as observed.
    pub pace: Pace,
    /// Checkpoint step the worker resumed from, once it has reported it.
    pub loaded: Option<u64>,
    /// Newest step held by a checkpoint.
    pub durable: Option<u64>,
}

impl Default for Position {
    fn default() -> Self {
        Self {
            step: None,
            began_after: None,
            is_continued: false,
            clock: None,
            epoch_units: u64::MAX,
            epoch: None,
            total_units: u64::MAX,
            pace: Pace::default(),
            loaded: None,
            durable: None,
        }
    }
}

impl Position {
    /// Takes over the position of a worker that has loaded.
    pub fn resume(&mut self, hello: &Hello) {
        // Checkpoints newer than the one it loaded are unusable.
        self.durable = hello.resumed_from.or(self.durable);
        self.loaded = hello.resumed_from;
        if !std::mem::take(&mut self.is_continued) {
            (self.step, self.clock) = (hello.resumed_from, Some(hello.position.samples));
        }
        // The length of a command is not known from the start.
        let known = |units: u64| if units == 0 { u64::MAX } else { units };
        (self.epoch_units, self.total_units) = (known(hello.epoch_units), known(hello.total_units));
    }

    /// Reports whether the clock tells the epochs.
    pub fn knows_epoch_length(&self) -> bool {
        self.epoch_units != u64::MAX
    }

    /// Goes back to a step from which the command trains on.
    pub fn go_back(&mut self, step: u64, samples: u64) {
        (self.step, self.clock) = (Some(step), Some(samples));
    }

    /// Records a step, taken or skipped.
    pub fn advance(&mut self, step: u64, samples: u64) {
        self.began_after = self.began_after.or(self.loaded).or_else(|| Some(began_after(step)));
        if let Some(before) = self.clock.filter(|before| *before < samples) {
            self.pace.step(samples - before);
        }
        (self.step, self.clock) = (Some(step), Some(samples));
    }

    /// Returns the current step, as far as known.
    pub fn current_step(&self) -> u64 {
        self.step.or(self.loaded).or(self.durable).unwrap_or(0)
    }

    /// Returns how far the run has come.
    #[must_use]
    pub fn reached(&self) -> Reached {
        let step = self.current_step();
        // The run took the steps that a checkpoint holds.
        let elsewhere = self.began_after.filter(|_| self.loaded.is_none()).unwrap_or(0);
        Reached { step, taken: step.saturating_sub(elsewhere), durable: self.durable }
    }

    /// Returns the steps left in the run, as far as known.
    pub fn steps_left(&self) -> u64 {
        self.total_units.saturating_sub(self.clock.unwrap_or(0)) / self.pace.units_per_step()
    }
}

/// The newest worker.
#[derive(Debug, Clone, Default)]
pub struct NewestWorker {
    /// Its rung.
    pub rung: usize,
    /// Its start time.
    pub started: Duration,
    /// Duration of the newest save; outlives the worker.
    pub save: Duration,
    /// Its own report of a failure.
    pub failure: Option<Failed>,
    /// It has reported that the run is finished.
    pub done: Option<DoneReason>,
    /// A stop was withdrawn; it may hear of that too late.
    pub stop_withdrawn: bool,
    /// The alarm about its silence was raised.
    pub silent: bool,
    /// Moves that were noted instead of made.
    pub unmade: Vec<Discriminant<Move>>,
    /// A pattern for outputs that no pattern of the run file matches, and that may be checkpoints.
    pub unmatched: Option<String>,
    /// The rung of the worker before it.
    pub before: Option<usize>,
    /// The companion of its command.
    pub companion: Companion,
}

/// The companion of a command, as far as decisions depend on it.
#[derive(Debug, Clone, Default)]
pub struct Companion {
    /// It has introduced itself.
    pub is_there: bool,
    /// Knobs of the rung that the script ignores, as last noted.
    pub ignored: Vec<IgnoredKnob>,
    /// It was noted that the shift to this rung changed nothing.
    pub shifted_in_vain: bool,
}

/// The GPU's memory.
#[derive(Debug, Clone, Default)]
pub struct GpuMemory {
    /// The newest worker trains on the GPU.
    pub in_use: bool,
    /// The newest worker trains without one.
    pub is_absent: bool,
    /// Memory by process.
    pub holders: Option<CardUse>,
    /// Bytes in use.
    pub vram: Option<u64>,
    /// Bytes in use before the first start.
    pub baseline: Option<u64>,
    /// The journal already says that this start did not wait: GPU memory cannot be read.
    pub is_blind: bool,
}

impl GpuMemory {
    /// Keeps the bytes in use before the first start as the baseline.
    pub fn keep_baseline(&mut self) {
        if self.baseline.is_none() && !self.in_use {
            self.baseline = self.vram;
        }
    }
}
