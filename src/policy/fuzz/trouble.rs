//! Random trouble: faults of workers, requests of the user, heat, memory pressure.

use super::{
    Cause, Event, Evidence, Exit, FailureClass, Lifecycle, Outcome, Request, Skipped, Target, WorkerEvent, World,
};
use std::time::Duration;

impl World {
    pub(super) fn mischief(&mut self, step: u64) {
        let (code, signal) = (Exit::with_code, Exit::by_signal);
        // The step is not taken yet, in case the worker lives on.
        self.worker.iter_mut().for_each(|worker| worker.step = step - 1);
        match self.dice.below(16) {
            0 => self.fail(FailureClass::DeviceOutOfMemory),
            1 => self.fail(FailureClass::DeviceFault),
            2 => self.fail(FailureClass::NonFinite),
            3 => self.fail(FailureClass::Panic),
            4 => self.die(signal(9)),
            5 => self.die(signal(11)),
            6 => self.die(code(0)),
            7 => self.die(code(77)),
            8 | 9 => {
                let unkillable = self.dice.below(40) == 0;
                if let Some(worker) = &mut self.worker {
                    (worker.hung, worker.unkillable) = (true, unkillable);
                }
            }
            10 => (0..8).for_each(|offset| self.skip(step + offset)),
            11 => self.die_of(signal(9), FailureClass::HostOutOfMemory),
            12 => {
                let number = Some([13, 31, 43, 45, 63, 79, 94, 109, 119][self.dice.below(9) as usize]);
                let (class, text) = (FailureClass::Xid, format!("Xid {number:?}"));
                self.decide(Event::Evidence(Evidence { class, number, text }));
            }
            13 => {
                for _ in 0..3 {
                    self.now += Duration::from_secs(40);
                    self.decide(Event::Temperature { celsius: Some(92.0), slowdown_c: Some(95.0) });
                    self.decide(Event::StoodStill(Duration::from_secs(40)));
                }
            }
            14 => {
                let request = match self.dice.below(8) {
                    0 => Request::Shift { to: Target::Down },
                    1 => Request::Shift { to: Target::Up },
                    2 => Request::Restart,
                    3 => Request::Pause,
                    4 => Request::Accept,
                    5 => Request::Autopilot { on: self.autopilot },
                    6 if self.dice.below(10) == 0 => Request::Stop,
                    _ => Request::Checkpoint,
                };
                self.decide(Event::Request(request));
            }
            _ if self.dice.below(30) == 0 => self.fail(FailureClass::Data),
            _ if self.dice.below(3) == 0 => self.fail_for_a_moment(step),
            _ => self.now += Duration::from_secs(self.dice.below(9)),
        }
    }

    /// Fails for a reason that may pass: only one that comes back at its step ends the run.
    fn fail_for_a_moment(&mut self, step: u64) {
        let cause = Cause { may_pass: true, ..Cause::new(FailureClass::Data, Vec::new()) };
        let place = self.policy.position.step.unwrap_or(0);
        let is_again = self.policy.ledger.failures.of_workers().next().is_some_and(|before| before.step == place);
        let (seed, stops) = (self.seed, matches!(self.policy.life(), Lifecycle::Stopping { .. }));
        self.worker = None;
        self.note_failure(FailureClass::Data);
        self.expect();
        self.decide(Event::Exited(Exit::with_code(1), cause));
        let ends = matches!(self.outcome, Some(Outcome::Failed(..)));
        assert!(!ends || is_again || stops, "seed {seed}: ended at the first failure, at step {step}");
    }

    fn skip(&mut self, step: u64) {
        let (what, place) = ("loss".to_owned(), String::new());
        let (samples, epoch, lr) = (step * 32, 0, 0.1);
        self.say(WorkerEvent::Skipped(Skipped {
            step,
            samples,
            epoch,
            lr,
            what,
            place,
            parameter: None,
            rescaled: false,
            applied: false,
        }));
    }

    pub(super) fn measure(&mut self) {
        let low = self.dice.below(9) == 0;
        self.decide(Event::DiskLow(low));
        if self.gpu {
            let busy = f64::from(self.dice.unit());
            let idle = self.dice.below(3) == 0;
            self.decide(Event::Utilisation(Some(if idle { 0.01 } else { busy })));
            let free = self.worker.is_none() && self.dice.below(50) != 0;
            self.decide(Event::Vram(Some(if free { 1 << 30 } else { 9 << 30 })));
            let cool = !matches!(self.policy.life(), Lifecycle::Cooling { .. }) || self.dice.below(60) != 0;
            self.decide(Event::Temperature { celsius: Some(if cool { 60.0 } else { 90.0 }), slowdown_c: None });
        }
    }
}
