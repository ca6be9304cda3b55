//! The state machine: worker events, starts and exits. Requests of the user are in
//! [`super::requests`], faults in [`super::faults`], deadlines in [`super::ending`].

use super::command::StartedBy;
use super::event::{Effect, Event, Evidence, Limits};
use super::facts::{GpuMemory, NewestWorker, Position, Watches};
use super::fault::Fault;
use super::ledger::Ledger;
use super::lifecycle::{Lifecycle, Outcome, Pressure, Start, Then};
use super::moves::Move;
use super::reason::Reason;
use super::refused::Wishes;
use crate::faults;
use crate::faults::response::Response;
use crate::format::count;
use crate::protocol::capability::Capability;
use crate::protocol::cause::Cause;
use crate::protocol::claim::Waiting;
use crate::protocol::control::JournalKind;
use crate::protocol::device::DeviceChoice;
use crate::protocol::exit::Exit;
use crate::protocol::worker::{DoneReason, Event as WorkerEvent, FailureClass, Level, Phase};
use std::time::Duration;

/// Makes the decisions of one run.
#[derive(Debug, Clone)]
pub struct Policy {
    pub(super) limits: Limits,
    /// Abilities of the worker, as far as they are known now.
    pub(super) capability: Capability,
    /// The origin of the process that runs now.
    pub(super) started_by: StartedBy,
    pub(super) life: Lifecycle,
    pub(super) rung: usize,
    pub(super) ledger: Ledger,
    pub(super) watches: Watches,
    pub(super) position: Position,
    pub(super) worker: NewestWorker,
    pub(super) gpu: GpuMemory,
    /// The obstacle to the next start, as reported by the keeper.
    pub(super) waiting: Option<Waiting>,
    /// Requests that failed saves have blocked, and when they were made.
    pub(super) wishes: Wishes,
}

impl Policy {
    /// Creates the policy of a run on `rung`, with the ledger of an earlier keeper.
    #[must_use]
    pub fn new(limits: Limits, rung: usize, ledger: Ledger, baseline: Option<u64>) -> Self {
        let mut policy = Self {
            watches: Watches::new(&limits, limits.capability),
            capability: limits.capability,
            started_by: StartedBy::Run,
            limits,
            life: Lifecycle::New,
            rung,
            ledger,
            position: Position::default(),
            worker: NewestWorker { rung, ..NewestWorker::default() },
            gpu: GpuMemory { baseline, ..GpuMemory::default() },
            waiting: None,
            wishes: Wishes::default(),
        };
        policy.check_shift();
        policy
    }

    /// Sets the newest step held by a checkpoint on disk.
    pub fn set_durable_step(&mut self, durable: Option<u64>) {
        self.position.durable = durable;
    }

    /// Keeps a run paused that was paused when an earlier keeper died.
    pub fn stay_paused(&mut self) {
        self.life = Lifecycle::Paused;
    }

    /// Returns the state of the run.
    #[must_use]
    pub fn life(&self) -> &Lifecycle {
        &self.life
    }

    /// Returns the current rung, or the one the run is moving to.
    #[must_use]
    pub fn rung(&self) -> usize {
        self.rung
    }

    /// Reports whether the autopilot is on.
    #[must_use]
    pub fn autopilot(&self) -> bool {
        self.ledger.autopilot.unwrap_or(self.limits.watch.autopilot)
    }

    /// Reports whether the newest worker trains on a GPU.
    #[must_use]
    pub fn is_on_gpu(&self) -> bool {
        self.gpu.in_use
    }

    /// Returns the state that must outlive the keeper, to be stored.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns the run's current step, as far as known.
    pub(super) fn current_step(&self) -> u64 {
        self.position.current_step()
    }

    /// Returns the obstacle to the next start.
    #[must_use]
    pub fn waiting(&self) -> Option<&Waiting> {
        self.waiting.as_ref()
    }

    /// Returns the GPU memory in use before the first start, to be stored.
    #[must_use]
    pub fn baseline(&self) -> Option<u64> {
        self.gpu.baseline
    }

    /// Returns the latest time for the next [`Event::Tick`].
    #[must_use]
    pub fn next_wake(&self) -> Option<Duration> {
        match &self.life {
            Lifecycle::Running(_) => {
                let others = [self.age_deadline(), self.restart_due()];
                Some(others.into_iter().flatten().fold(self.watches.hang.deadline(), Duration::min))
            }
            Lifecycle::Stopping { until, .. }
            | Lifecycle::AwaitingVram { until, .. }
            | Lifecycle::BackingOff { until, .. }
            | Lifecycle::Cooling { until, .. } => Some(*until),
            // The keeper reports when the wait for the turn is over.
            Lifecycle::New | Lifecycle::AwaitingTurn { .. } | Lifecycle::Paused | Lifecycle::Over(_) => None,
        }
    }

    /// Returns the effects of an event at time `now`, measured from any fixed moment.
    pub fn decide(&mut self, event: Event, now: Duration) -> Vec<Effect> {
        match event {
            Event::Begin => self.begin_run(now),
            Event::Turn(waiting) => self.handle_turn(waiting, now),
            Event::Worker(event) => self.handle_worker_event(event, now),
            Event::Exited(exit, cause) => self.handle_exit(exit, &cause, now),
            Event::StartFailed(why) => {
                let text = format!("the worker failed to start: {why}");
                self.handle_fault(&Fault { kind: None, ..Fault::new(FailureClass::Unknown, text) }, now)
            }
            Event::Evidence(evidence) => self.handle_evidence(&evidence, now),
            Event::Temperature { celsius, slowdown_c } => self.handle_temperature(celsius, slowdown_c, now),
            Event::Proven(step) => {
                self.ledger.climb.record_proven(step);
                Vec::new()
            }
            Event::Card(card) => {
                self.gpu.holders = card;
                Vec::new()
            }
            Event::Vram(used) => self.handle_vram(used, now),
            Event::Utilisation(share) => self.handle_utilisation(share, now),
            Event::GpuLoad(load) => {
                self.watches.spill.measured(load);
                Vec::new()
            }
            Event::DiskLow(low) => {
                self.watches.age.disk_is_low = low;
                Vec::new()
            }
            Event::Homeless(why) => self.end_homeless(why, now),
            Event::Request(request) => self.answer_request(&request, now),
            Event::StartPutOff(start, wait) => {
                // The rollback was done before this start; it must not happen twice.
                self.life = Lifecycle::BackingOff { start: Start { back: None, ..start }, until: now + wait };
                Vec::new()
            }
            Event::StoodStill(delay) => {
                self.watches.forgive(delay, now);
                if let Lifecycle::Stopping { until, .. }
                | Lifecycle::AwaitingVram { until, .. }
                | Lifecycle::Cooling { until, .. } = &mut self.life
                {
                    *until += delay;
                }
                Vec::new()
            }
            Event::Tick => self.handle_tick(now),
        }
    }

    fn begin_run(&mut self, now: Duration) -> Vec<Effect> {
        // A request may have ended the run before it began.
        if self.life != Lifecycle::New {
            return Vec::new();
        }
        let reason = match self.position.durable {
            // Only the worker can tell whether that checkpoint is usable.
            Some(step) if self.capability.can_resume() => {
                let (rung, step) = (self.rung_name(self.rung), count(step));
                format!("continues on {rung} from the newest usable checkpoint (step {step})")
            }
            _ => format!("starts on {}", self.rung_name(self.rung)),
        };
        self.start_worker(Start::on(self.rung, reason), now)
    }

    fn handle_worker_event(&mut self, event: WorkerEvent, now: Duration) -> Vec<Effect> {
        match event {
            WorkerEvent::Hello(hello) => {
                self.gpu.in_use = DeviceChoice::names_gpu(&hello.device);
                self.gpu.is_absent = !self.gpu.in_use;
                self.gpu.is_blind = false;
                self.ledger.proposal.take_if(|proposal| proposal.what == Move::TakeTunedKernels);
                self.position.resume(&hello);
                let step = hello.resumed_from.unwrap_or(0);
                self.ledger.climb.rewind_to(step);
                self.ledger.climb.plan.rewind_to(hello.position.samples, step);
            }
            WorkerEvent::Phase { phase } => {
                self.watches.hang.phase(phase, now);
                self.watches.idle.phase(phase, now);
                self.watches.spill.phase(phase);
                if phase == Phase::Training {
                    self.watches.age.trains(now);
                }
                if let Lifecycle::Running(shown) = &mut self.life {
                    *shown = phase;
                }
            }
            WorkerEvent::Step(step) => return self.handle_step(&step, now),
            WorkerEvent::Skipped(skipped) => return self.handle_skip(&skipped, now),
            WorkerEvent::Saved(saved) => {
                self.position.durable = self.position.durable.max(Some(saved.step));
                self.wishes.saved();
                self.worker.save = Duration::try_from_secs_f64(saved.total_ms / 1000.0).unwrap_or_default();
                return self.end_age_alarm(now);
            }
            WorkerEvent::StopRefused { step, message } => return self.handle_refused_stop(step, &message, now),
            WorkerEvent::Failed(failed) => self.worker.failure = Some(failed),
            WorkerEvent::Done { reason, .. } => self.worker.done = Some(reason),
            WorkerEvent::Command { news } => return self.handle_command_news(&news, now),
            WorkerEvent::SaveFailed { message, of_disk, .. } => return self.handle_failed_save(&message, of_disk, now),
            WorkerEvent::KernelsTuned => {
                return self.suggest_move(Move::TakeTunedKernels, "`downshift prepare` has tuned them", now);
            }
            WorkerEvent::Eval(_)
            | WorkerEvent::Kernels(_)
            | WorkerEvent::Samples { .. }
            | WorkerEvent::Layers(_)
            | WorkerEvent::Note { .. }
            | WorkerEvent::Injected { .. }
            | WorkerEvent::Memory(_) => {}
        }
        Vec::new()
    }

    fn handle_exit(&mut self, exit: Exit, cause: &Cause, now: Duration) -> Vec<Effect> {
        let failure = self.worker.failure.take();
        if self.worker.done == Some(DoneReason::Finished) && exit.code == Some(0) {
            return self.finish_run(Outcome::Finished);
        }
        let ends_by_withdrawn_stop = self.ends_by_withdrawn_stop();
        let stopping = std::mem::replace(&mut self.life, Lifecycle::New);
        match stopping {
            Lifecycle::Stopping { then: Then::Start(start), .. } => self.start_worker(start, now),
            Lifecycle::Stopping { then: Then::Pause, .. } => {
                self.life = Lifecycle::Paused;
                Vec::new()
            }
            Lifecycle::Stopping { then: Then::End, .. } => self.end_as_asked(),
            Lifecycle::Stopping { then: Then::Cool(start), .. } => {
                let give_up = self.limits.watch.heat.give_up.duration();
                self.life = Lifecycle::Cooling { start, until: now + give_up };
                Vec::new()
            }
            Lifecycle::Stopping { then: Then::Conclude(why), .. } => self.finish_run(Outcome::NeedsPerson(why)),
            Lifecycle::Stopping { then: Then::Recover(fault), .. } => {
                self.handle_fault(&fault.or_gpu_failure(exit, cause), now)
            }
            _ if ends_by_withdrawn_stop => {
                let reason = "restart: the worker ended by a stop that was withdrawn too late";
                self.start_worker(Start::on(self.rung, reason), now)
            }
            _ => self.handle_fault(&Fault::from_verdict(failure.as_ref(), exit, cause), now),
        }
    }

    /// Handles trouble reported by the probe or the kernel log. Trouble that no rung relieves ends the run
    /// at once; any other trouble is noted, and triage knows of it when it explains a death.
    fn handle_evidence(&mut self, evidence: &Evidence, now: Duration) -> Vec<Effect> {
        if matches!(self.life, Lifecycle::Over(_)) {
            return Vec::new();
        }
        let told = Effect::Journal(Level::Warn, JournalKind::Health, evidence.text.clone());
        if faults::response(evidence.class, evidence.number, None) != Response::Stop {
            return vec![told];
        }
        let advice = faults::advice(evidence.class, evidence.number).to_owned();
        let fault = Fault { xid: evidence.number, advice, ..Fault::new(evidence.class, evidence.text.clone()) };
        let why = Reason::NoRestartHelps { fault, unsaved: None };
        let mut effects = vec![told];
        match std::mem::replace(&mut self.life, Lifecycle::New) {
            Lifecycle::Running(phase) => {
                self.life = Lifecycle::Running(phase);
                effects.extend(self.end_worker(Then::Conclude(why), Pressure::Asked, now));
            }
            Lifecycle::Stopping { pressure, until, .. } => {
                self.life = Lifecycle::Stopping { then: Then::Conclude(why), pressure, until };
            }
            _ => effects.extend(self.finish_run(Outcome::NeedsPerson(why))),
        }
        effects
    }

    /// Starts a worker once it is the run's turn, and the GPU is free of the last one.
    pub(super) fn start_worker(&mut self, start: Start, now: Duration) -> Vec<Effect> {
        if let Some(waiting) = self.waiting.clone() {
            return self.await_turn(start, waiting, now);
        }
        if !self.gpu.in_use {
            return self.launch_worker(start, now);
        }
        // Readings from before the worker exited are stale: wait for the next one.
        let wait = self.limits.watch.ending.vram_wait.duration();
        let grace =
            if self.gpu.baseline.is_some() || self.gpu.holders.is_some() { wait } else { self.limits.release_time };
        self.life = Lifecycle::AwaitingVram { start, until: now + grace };
        Vec::new()
    }

    pub(super) fn launch_worker(&mut self, start: Start, now: Duration) -> Vec<Effect> {
        self.gpu.keep_baseline();
        self.rung = start.rung;
        self.wishes = Wishes::default();
        (self.position.loaded, self.position.began_after, self.position.is_continued) = (None, None, false);
        self.worker = NewestWorker {
            rung: start.rung,
            started: now,
            save: self.worker.save,
            before: Some(self.worker.rung),
            ..NewestWorker::default()
        };
        self.watches.renew(&self.limits, self.capability, now);
        self.life = Lifecycle::Running(Phase::Starting);
        let mut effects: Vec<Effect> = start.back.map(Effect::RollBack).into_iter().collect();
        effects.push(Effect::Start(start));
        effects
    }

    /// Ends the run at the user's request. A finished run that took no step since it was resumed stays finished.
    pub(super) fn end_as_asked(&mut self) -> Vec<Effect> {
        let is_finished = self.ledger.finished_at.is_some_and(|last| last == self.current_step());
        self.finish_run(if is_finished { Outcome::Finished } else { Outcome::Stopped })
    }

    pub(super) fn finish_run(&mut self, outcome: Outcome) -> Vec<Effect> {
        if outcome == Outcome::Finished {
            self.ledger.finished_at = Some(self.current_step());
        }
        self.life = Lifecycle::Over(outcome.clone());
        vec![Effect::Finish(outcome)]
    }

    pub(super) fn rung_name(&self, rung: usize) -> &str {
        self.limits.rungs.get(rung).map_or("?", String::as_str)
    }
}
