//! The state machine itself: worker events, deaths and deadlines. What people ask for is in
//! [`super::requests`].

use super::budget::{Budget, Verdict};
use super::event::{Effect, Event, Exit, Limits, Signal};
use super::hang::HangWatch;
use super::life::{Life, Outcome, Pressure, Start, Then};
use crate::config::knobs::Relief;
use crate::protocol::control::JournalKind;
use crate::protocol::worker::{DoneReason, Event as WorkerEvent, Failed, FailureClass, Level, Order, Phase};
use std::time::Duration;

/// SIGTERM is given so long before SIGKILL.
const TERM_GRACE: Duration = Duration::from_secs(5);
/// A worker that survives SIGKILL so long cannot be killed.
const KILL_GRACE: Duration = Duration::from_secs(10);
/// The card is given so long to become free.
const VRAM_GRACE: Duration = Duration::from_secs(50);
/// The wait where the card cannot be read.
const BLIND_WAIT: Duration = Duration::from_secs(2);
/// The card counts as free at its baseline and so much more.
const VRAM_SLACK: u64 = 64 << 20;

/// The decider of one run.
#[derive(Debug, Clone)]
pub struct Policy {
    pub(super) limits: Limits,
    pub(super) life: Life,
    pub(super) rung: usize,
    pub(super) autopilot: bool,
    pub(super) hang: HangWatch,
    /// How long the newest save took.
    pub(super) save: Duration,
    pub(super) budget: Budget,
    step: Option<u64>,
    /// What the worker went on from, once it said so.
    loaded: Option<u64>,
    durable: Option<u64>,
    failure: Option<Failed>,
    finished: bool,
    on_gpu: bool,
    vram: Option<u64>,
    baseline: Option<u64>,
}

impl Policy {
    /// The decider of a run that stands on `rung`, with what an earlier keeper stored.
    #[must_use]
    pub fn new(limits: Limits, rung: usize, budget: Budget, baseline: Option<u64>) -> Self {
        let hang = HangWatch::new(limits.hang_min, Duration::ZERO);
        Self {
            limits,
            life: Life::New,
            rung,
            autopilot: true,
            hang,
            save: Duration::ZERO,
            budget,
            step: None,
            loaded: None,
            durable: None,
            failure: None,
            finished: false,
            on_gpu: false,
            vram: None,
            baseline,
        }
    }

    /// The newest step that checkpoints on the disk hold.
    pub fn found(&mut self, durable: Option<u64>) {
        self.durable = durable;
    }

    /// The run was paused when an earlier keeper died, and stays so.
    pub fn rest(&mut self) {
        self.life = Life::Paused;
    }

    /// Where the run stands.
    #[must_use]
    pub fn life(&self) -> &Life {
        &self.life
    }

    /// The rung it is on, or on its way to.
    #[must_use]
    pub fn rung(&self) -> usize {
        self.rung
    }

    /// Whether the keeper may shift alone.
    #[must_use]
    pub fn autopilot(&self) -> bool {
        self.autopilot
    }

    /// Restarts used up; to be stored.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Memory in use on the card before the first start; to be stored.
    #[must_use]
    pub fn baseline(&self) -> Option<u64> {
        self.baseline
    }

    /// When [`Event::Tick`] is due at the latest.
    #[must_use]
    pub fn next_wake(&self) -> Option<Duration> {
        match &self.life {
            Life::Running(_) => Some(self.hang.deadline()),
            Life::Stopping { until, .. } | Life::AwaitingVram { until, .. } | Life::BackingOff { until, .. } => {
                Some(*until)
            }
            Life::New | Life::Paused | Life::Over(_) => None,
        }
    }

    /// What to do about an event at the time `now`, counted from any fixed moment.
    pub fn decide(&mut self, event: Event, now: Duration) -> Vec<Effect> {
        match event {
            Event::Begin => self.begin(now),
            Event::Worker(event) => self.heard(event, now),
            Event::Exited(exit) => self.exited(exit, now),
            Event::StartFailed(why) => self.fault(&format!("the worker could not be started: {why}"), None, None, now),
            Event::Vram(used) => self.measured(used, now),
            Event::Request(request) => self.asked(&request, now),
            Event::StoodStill => {
                self.hang.forgive(now);
                Vec::new()
            }
            Event::Tick => self.tick(now),
        }
    }

    fn begin(&mut self, now: Duration) -> Vec<Effect> {
        let reason = match self.durable {
            Some(step) => format!("goes on from step {step} on {}", self.rung_name(self.rung)),
            None => format!("begins on {}", self.rung_name(self.rung)),
        };
        self.start(Start { rung: self.rung, reason }, now)
    }

    fn heard(&mut self, event: WorkerEvent, now: Duration) -> Vec<Effect> {
        match event {
            WorkerEvent::Hello(hello) => {
                self.on_gpu = hello.device.starts_with("cuda");
                // Newer checkpoints than the one it took are of no use.
                self.durable = hello.resumed_from.or(self.durable);
                self.loaded = hello.resumed_from;
                self.step = hello.resumed_from;
            }
            WorkerEvent::Phase { phase } => {
                self.hang.phase(phase, now);
                if let Life::Running(shown) = &mut self.life {
                    *shown = phase;
                }
            }
            WorkerEvent::Step(step) => {
                self.step = Some(step.step);
                self.hang.step(now);
            }
            WorkerEvent::Skipped(skipped) => {
                self.step = Some(skipped.step);
                self.hang.step(now);
            }
            WorkerEvent::Saved(saved) => {
                self.durable = self.durable.max(Some(saved.step));
                self.save = Duration::try_from_secs_f64(saved.total_ms / 1000.0).unwrap_or_default();
            }
            WorkerEvent::Failed(failed) => self.failure = Some(failed),
            WorkerEvent::Done { reason, .. } => self.finished = reason == DoneReason::Finished,
            WorkerEvent::Eval(_)
            | WorkerEvent::SaveFailed { .. }
            | WorkerEvent::Note { .. }
            | WorkerEvent::Injected { .. } => {}
        }
        Vec::new()
    }

    fn exited(&mut self, exit: Exit, now: Duration) -> Vec<Effect> {
        let failure = self.failure.take();
        if self.finished && exit.code == Some(0) {
            return self.finish(Outcome::Finished);
        }
        let stopping = std::mem::replace(&mut self.life, Life::New);
        match stopping {
            Life::Stopping { then: Then::Start(start), .. } => self.start(start, now),
            Life::Stopping { then: Then::Pause, .. } => {
                self.life = Life::Paused;
                Vec::new()
            }
            Life::Stopping { then: Then::End, .. } => self.finish(Outcome::Stopped),
            Life::Stopping { then: Then::Recover(cause), .. } => self.fault(&cause, Some("hang"), None, now),
            _ => self.died(failure.as_ref(), exit, now),
        }
    }

    /// A worker that nobody asked to end.
    fn died(&mut self, failure: Option<&Failed>, exit: Exit, now: Duration) -> Vec<Effect> {
        let class = failure.map(|failed| failed.class).or_else(|| FailureClass::from_exit_code(exit.code?));
        let cause = describe(failure, class, exit);
        match class {
            Some(class @ (FailureClass::Config | FailureClass::Data | FailureClass::Checkpoint)) => {
                self.finish(Outcome::Failed(class, cause))
            }
            _ if self.limits.restarts == 0 && class.is_some() => {
                self.finish(Outcome::Failed(class.unwrap_or(FailureClass::Panic), cause))
            }
            _ => {
                let relief = class.and_then(|class| self.relief(class));
                self.fault(&cause, kind(class, exit).as_deref(), relief, now)
            }
        }
    }

    /// The nearest lower rung that relieves the cause, if the keeper may shift alone.
    fn relief(&self, class: FailureClass) -> Option<usize> {
        let relief = match class {
            FailureClass::DeviceOutOfMemory => Relief::Memory,
            FailureClass::DeviceFault => Relief::Kernels,
            FailureClass::NonFinite => Relief::Numerics,
            _ => return None,
        };
        let relieves = |rung: &usize| self.limits.relieves.get(*rung).is_some_and(|list| list.contains(&relief));
        let reachable = |rung: &usize| !self.limits.barriers.contains_key(&(self.rung, *rung));
        (self.rung + 1..self.limits.rungs.len()).filter(relieves).find(reachable).filter(|_| self.autopilot)
    }

    /// Starts again within the budget, on `onto` if that is given. `kind` is what makes two faults
    /// the same.
    fn fault(&mut self, cause: &str, kind: Option<&str>, onto: Option<usize>, now: Duration) -> Vec<Effect> {
        let place = self.step.map_or_else(String::new, |step| format!(" at step {step}"));
        let ended = Effect::Journal(Level::Error, JournalKind::Worker, format!("worker ended{place}: {cause}"));
        let rung = onto.unwrap_or(self.rung);
        let mut reason = format!("restart after: {cause}");
        let mut effects = vec![ended];
        if rung != self.rung {
            let (from, to) = (self.rung_name(self.rung), self.rung_name(rung));
            let text = format!("shift down: {from} → {to}, by the keeper: it relieves what ended the worker");
            effects.push(Effect::Journal(Level::Warn, JournalKind::Shift, text));
            reason = format!("shift down: {from} → {to} after: {cause}");
        }
        let (loaded, step) = (self.loaded, self.step);
        if self.budget.relapse.fault(loaded, step, kind) {
            effects.extend(loaded.map(Effect::GoBack));
        }
        match self.budget.fault(self.durable, self.limits.restarts) {
            Verdict::Restart(Duration::ZERO) => effects.extend(self.start(Start { rung, reason }, now)),
            Verdict::Restart(wait) => {
                let text =
                    format!("no durable step since the last fault; waiting {} s before the next start", wait.as_secs());
                effects.push(Effect::Journal(Level::Warn, JournalKind::Run, text));
                self.life = Life::BackingOff { start: Start { rung, reason }, until: now + wait };
            }
            Verdict::Exhausted => {
                let restarts = self.limits.restarts;
                let many = if restarts == 1 { "" } else { "s" };
                let why =
                    format!("{restarts} restart{many} brought no new durable step; the last worker ended: {cause}");
                effects.extend(self.finish(Outcome::NeedsPerson(why)));
            }
        }
        effects
    }

    /// Starts a worker, once the card is free of the last one.
    pub(super) fn start(&mut self, start: Start, now: Duration) -> Vec<Effect> {
        if !self.on_gpu {
            return self.launch(start, now);
        }
        // What was measured before the worker was gone says nothing: wait for the next reading.
        let grace = if self.baseline.is_some() { VRAM_GRACE } else { BLIND_WAIT };
        self.life = Life::AwaitingVram { start, until: now + grace };
        Vec::new()
    }

    fn launch(&mut self, start: Start, now: Duration) -> Vec<Effect> {
        if self.baseline.is_none() && !self.on_gpu {
            self.baseline = self.vram;
        }
        self.rung = start.rung;
        self.failure = None;
        self.loaded = None;
        self.finished = false;
        self.hang = HangWatch::new(self.limits.hang_min, now);
        self.life = Life::Running(Phase::Starting);
        vec![Effect::Start(start)]
    }

    fn measured(&mut self, used: Option<u64>, now: Duration) -> Vec<Effect> {
        self.vram = used;
        match std::mem::replace(&mut self.life, Life::New) {
            Life::AwaitingVram { start, until } => {
                let limit = self.baseline.map(|baseline| baseline + VRAM_SLACK);
                if used.zip(limit).is_some_and(|(used, limit)| used <= limit) {
                    return self.launch(start, now);
                }
                self.life = Life::AwaitingVram { start, until };
            }
            other => self.life = other,
        }
        Vec::new()
    }

    fn tick(&mut self, now: Duration) -> Vec<Effect> {
        if self.next_wake().is_none_or(|due| now < due) {
            return Vec::new();
        }
        match std::mem::replace(&mut self.life, Life::New) {
            Life::Running(phase) => {
                let limit = self.hang.limit().as_secs();
                let cause = format!("hang: no progress for {limit} s while {}", doing(phase));
                self.press(Then::Recover(cause), Pressure::Terminated, now)
            }
            Life::Stopping { then, pressure: Pressure::Asked, .. } => self.press(then, Pressure::Terminated, now),
            Life::Stopping { then, pressure: Pressure::Terminated, .. } => self.press(then, Pressure::Killed, now),
            Life::Stopping { .. } => {
                let why = "the worker cannot be killed (it may hang in the driver); no other is started. Look at it with \
                           `ps`, then restart the machine or, under WSL2, run `wsl --shutdown`";
                self.finish(Outcome::NeedsPerson(why.to_owned()))
            }
            Life::AwaitingVram { start, .. } => match self.baseline.zip(self.vram) {
                None => {
                    let text = "the card's memory cannot be read; went on after a fixed wait".to_owned();
                    let mut effects = vec![Effect::Journal(Level::Warn, JournalKind::Health, text)];
                    effects.extend(self.launch(start, now));
                    effects
                }
                Some((baseline, used)) => {
                    let why = format!(
                        "the card did not become free: {} MiB in use, {} MiB before the run; find who holds it with `nvidia-smi`",
                        used >> 20,
                        baseline >> 20
                    );
                    self.finish(Outcome::NeedsPerson(why))
                }
            },
            Life::BackingOff { start, .. } => self.start(start, now),
            other => {
                self.life = other;
                Vec::new()
            }
        }
    }

    /// Tells the worker to end, by the contract or by a signal.
    pub(super) fn press(&mut self, then: Then, pressure: Pressure, now: Duration) -> Vec<Effect> {
        let (effect, grace) = match pressure {
            Pressure::Asked => (Effect::Order(Order::Stop { checkpoint: true }), self.stop_grace()),
            Pressure::Terminated => (Effect::Signal(Signal::Terminate), TERM_GRACE),
            Pressure::Killed => (Effect::Signal(Signal::Kill), KILL_GRACE),
        };
        self.life = Life::Stopping { then, pressure, until: now + grace };
        vec![effect]
    }

    /// A stop takes a step, a save, and some air.
    fn stop_grace(&self) -> Duration {
        let wanted = self.hang.longest_step() * 2 + self.save * 3;
        wanted.clamp(Duration::from_secs(5), Duration::from_mins(2)).max(match self.life {
            Life::Running(Phase::Training | Phase::Checkpointing) => Duration::ZERO,
            // Loading, compiling or evaluating, a worker listens only at the next border.
            _ => Duration::from_secs(30),
        })
    }

    pub(super) fn finish(&mut self, outcome: Outcome) -> Vec<Effect> {
        self.life = Life::Over(outcome.clone());
        vec![Effect::Finish(outcome)]
    }

    pub(super) fn rung_name(&self, rung: usize) -> &str {
        self.limits.rungs.get(rung).map_or("?", String::as_str)
    }
}

/// What makes two faults the same; none for those that come from outside of the worker or ask for
/// memory, since they say nothing about what it had loaded.
fn kind(class: Option<FailureClass>, exit: Exit) -> Option<String> {
    match (class, exit) {
        (Some(FailureClass::DeviceOutOfMemory), _) | (None, Exit { signal: Some(9 | 15), .. }) => None,
        (Some(class), _) => Some(class.to_string()),
        (None, Exit { signal: Some(signal), .. }) => Some(format!("signal {signal}")),
        (None, Exit { code, .. }) => Some(format!("exit code {}", code.unwrap_or(-1))),
    }
}

fn describe(failure: Option<&Failed>, class: Option<FailureClass>, exit: Exit) -> String {
    match (failure, class, exit) {
        (Some(failed), ..) => {
            let asked = if failed.injected { " (injected)" } else { "" };
            format!("{}{asked}: {}", failed.class, failed.message)
        }
        (None, Some(class), _) => format!("{class} (exit code {})", class.exit_code()),
        (None, None, Exit { signal: Some(9), .. }) => "killed by SIGKILL".to_owned(),
        (None, None, Exit { signal: Some(signal), .. }) => format!("ended by signal {signal}"),
        (None, None, Exit { code: Some(0 | 3), .. }) => "it ended before the last step, unasked".to_owned(),
        (None, None, Exit { code, .. }) => format!("exit code {}", code.unwrap_or(-1)),
    }
}

/// What a worker is at, in a sentence.
fn doing(phase: Phase) -> &'static str {
    match phase {
        Phase::Starting => "starting",
        Phase::Compiling => "compiling kernels",
        Phase::Training => "training",
        Phase::Evaluating => "evaluating",
        Phase::Checkpointing => "checkpointing",
    }
}
