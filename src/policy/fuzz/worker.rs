//! Simulated workers: how they start, save, fail and end, and what the keeper's death does to them.

use super::{
    Cause, Event, Exit, Failed, FailureClass, Hello, Ledger, Lifecycle, Phase, Policy, Position, STEPS, Saved,
};
use super::{Then, Worker, WorkerEvent, World, class_of, limits};
use std::time::Duration;

impl World {
    pub(super) fn save(&mut self, step: u64) {
        self.checkpoints.retain(|known| *known != step);
        self.checkpoints.push(step);
        self.checkpoints.sort_unstable();
        self.durable();
        let (samples, bytes, pause_ms, total_ms) = (step * 32, 1, 1.0, 10.0);
        self.say(WorkerEvent::Saved(Saved { step, samples, bytes, pause_ms, total_ms, ..Saved::default() }));
        if let Some(proven) = self.checkpoints.iter().rev().nth(3).copied() {
            self.calm.proven = self.calm.proven.max(proven);
            self.decide(Event::Proven(proven));
        }
    }

    pub(super) fn durable(&mut self) {
        let newest = self.checkpoints.last().copied();
        if newest > self.most_durable {
            (self.most_durable, self.since_durable) = (newest, 0);
        }
    }

    pub(super) fn fail(&mut self, class: FailureClass) {
        let (message, thread) = ("x".to_owned(), None);
        self.say(WorkerEvent::Failed(Failed { class, message, step: None, thread, injected: false }));
        self.calm.failed = true;
        self.die(Exit::with_code(i32::from(class.exit_code())));
    }

    pub(super) fn die(&mut self, exit: Exit) {
        self.die_of(exit, class_of(exit));
    }

    pub(super) fn die_of(&mut self, exit: Exit, class: FailureClass) {
        if self.worker.take().is_some() {
            self.note_failure(class);
            self.expect();
            if std::mem::take(&mut self.calm.failed) && self.expects_fault_start {
                self.calm.disturbed = self.policy.current_step();
            }
            self.decide(Event::Exited(exit, Cause::new(class, Vec::new())));
        }
    }

    /// Records whether the start after the worker's end follows a fault.
    pub(super) fn expect(&mut self) {
        let asked = matches!(self.policy.life(), Lifecycle::Stopping { then, .. } if !matches!(then, Then::Recover(_)));
        self.expects_fault_start = !asked;
        self.note_trial();
    }

    pub(super) fn say(&mut self, event: WorkerEvent) {
        self.decide(Event::Worker(event));
    }

    /// Kills the keeper; another one takes over with the stored state, and the worker ends unasked.
    pub(super) fn lose_keeper(&mut self) {
        let unkillable = self.worker.as_ref().is_some_and(|worker| worker.unkillable);
        if matches!(self.policy.life(), Lifecycle::Over(_) | Lifecycle::Paused) || unkillable {
            return;
        }
        if let Some(worker) = self.worker.take().filter(|worker| !worker.hung) {
            self.save_silently(worker.step);
        }
        let stored = serde_json::to_string(self.policy.ledger()).unwrap();
        let ledger: Ledger = serde_json::from_str(&stored).unwrap();
        let (rung, baseline) = (self.policy.rung(), self.policy.baseline());
        self.policy = Policy::new(limits(&self.plan), rung, ledger, baseline);
        self.policy.set_durable_step(self.checkpoints.last().copied());
        self.now += Duration::from_secs(2);
        self.expects_fault_start = false;
        self.decide(Event::Begin);
    }

    pub(super) fn save_silently(&mut self, step: u64) {
        self.checkpoints.push(step);
        self.checkpoints.sort_unstable();
        self.checkpoints.dedup();
        self.durable();
    }

    pub(super) fn start(&mut self, rung: usize) {
        let seed = self.seed;
        assert!(self.worker.is_none(), "seed {seed}: a second worker");
        assert!(self.outcome.is_none(), "seed {seed}: a start after the end");
        self.starts += 1;
        if std::mem::take(&mut self.expects_fault_start) && !self.rungs.is_free(rung) {
            let (now, watch) = (self.now, limits(&[]).watch);
            self.since_durable += 1;
            self.fault_starts.push(now);
            self.fault_starts.retain(|at| now.saturating_sub(*at) < Duration::from_mins(30));
            assert!(self.since_durable <= watch.restarts_without_progress, "seed {seed}: restarts without progress");
            assert!(
                self.fault_starts.len() <= watch.restarts_in_window as usize,
                "seed {seed}: restarts in the window"
            );
        }
        let step = self.checkpoints.last().copied();
        self.calm.disturbed = self.calm.disturbed.min(step.unwrap_or(0));
        self.worker = Some(Worker {
            step: step.unwrap_or(0),
            stopping: None,
            asked_to_save: false,
            hung: false,
            unkillable: false,
        });
        let device = if self.gpu { "cuda:0" } else { "cpu" };
        let position = Position { epoch: 0, offset: 0, samples: step.unwrap_or(0) * 32 };
        self.say(WorkerEvent::Hello(Hello {
            protocol: 1,
            build: String::new(),
            pid: 1,
            device: device.to_owned(),
            backend: String::new(),
            parameters: 1,
            resumed_from: step,
            position,
            epoch_units: 32 * 50,
            total_units: 32 * STEPS,
            total_steps: STEPS,
            unit: "samples".to_owned(),
        }));
        self.say(WorkerEvent::Phase { phase: Phase::Training });
        if self.fails_to_start(rung) {
            self.fail_to_start();
        }
    }
}
