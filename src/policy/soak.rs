//! A hundred thousand steps of a worker that is slow in every way a healthy worker can be; none of it
//! is a hang. A control checks that a real hang is detected in time.

use super::event::{Effect, Event, Signal};
use super::ledger::Ledger;
use super::machine::Policy;
use super::tests::{hello_from, limits, saved, seconds};
use crate::protocol::worker::{Event as WorkerEvent, Order, Phase, Step};
use crate::recipe::seed::Stream;
use std::time::Duration;

struct Soak {
    policy: Policy,
    now: Duration,
    alarms: Vec<u64>,
    step: u64,
}

impl Soak {
    fn begin() -> Self {
        let policy = Policy::new(limits(), 0, Ledger::default(), None);
        let mut soak = Self { policy, now: seconds(0), alarms: Vec::new(), step: 0 };
        soak.tell(Event::Begin);
        soak.tell(hello_from("cpu", None));
        soak
    }

    fn tell(&mut self, event: Event) {
        let effects = self.policy.decide(event, self.now);
        if effects.iter().any(|effect| matches!(effect, Effect::Signal(_))) {
            self.alarms.push(self.step);
        }
        if effects.contains(&Effect::Order(Order::Checkpoint)) {
            self.tell(saved(self.step));
        }
    }

    /// Passes time without a word from the worker; the keeper's clock keeps running.
    fn silence(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = (self.now + Duration::from_millis(250)).min(end);
            self.tell(Event::Tick);
        }
    }

    /// Stalls the keeper, or the whole machine.
    fn standstill(&mut self, time: Duration) {
        self.now += time;
        self.tell(Event::StoodStill(time));
        self.tell(Event::Tick);
    }

    fn phase(&mut self, phase: Phase, time: Duration) {
        self.tell(Event::Worker(WorkerEvent::Phase { phase }));
        self.silence(time);
    }

    fn step(&mut self, took: Duration) {
        self.silence(took);
        self.step += 1;
        let (step, compute_ms) = (self.step, took.as_secs_f64() * 1e3);
        let taken = Step { step, samples: step, loss: Some(1.0), compute_ms, ..Step::default() };
        self.tell(Event::Worker(WorkerEvent::Step(taken)));
    }
}

#[test]
fn a_hundred_thousand_slow_steps_raise_no_alarm() {
    let (mut soak, mut dice) = (Soak::begin(), Stream::new(36));
    soak.silence(seconds(500));
    soak.phase(Phase::Compiling, seconds(278));
    soak.phase(Phase::Training, seconds(0));
    for _ in 0..5 {
        soak.step(seconds(3));
    }
    for number in 6..=100_000_u64 {
        let usual = Duration::from_millis(200 + dice.below(100));
        // One step in fifty takes ten times as long, as on a busy machine.
        soak.step(if number % 50 == 0 { usual * 10 } else { usual });
        if number % 1000 == 0 {
            soak.phase(Phase::Checkpointing, seconds(60 + dice.below(300)));
            soak.tell(saved(number));
            soak.phase(Phase::Training, seconds(0));
        }
        if number % 2500 == 0 {
            soak.phase(Phase::Evaluating, seconds(100 + dice.below(50)));
            soak.phase(Phase::Training, seconds(0));
        }
        match dice.below(2000) {
            0 => soak.standstill(seconds(60)),
            1 => soak.standstill(Duration::from_hours(9)),
            // The worker stalls for less than half of its limit.
            2 => soak.silence(seconds(4)),
            3 => {
                soak.phase(Phase::Compiling, seconds(100));
                soak.phase(Phase::Training, seconds(0));
            }
            _ => {}
        }
    }
    assert_eq!(soak.alarms, [0_u64; 0]);
}

#[test]
fn a_hang_is_detected_within_its_limit() {
    let mut soak = Soak::begin();
    soak.phase(Phase::Training, seconds(0));
    for _ in 0..100 {
        soak.step(Duration::from_millis(300));
    }
    let stood = soak.now;
    let mut seen = None;
    while seen.is_none() && soak.now < stood + seconds(60) {
        soak.now += Duration::from_millis(250);
        let effects = soak.policy.decide(Event::Tick, soak.now);
        seen = effects.contains(&Effect::Signal(Signal::Terminate)).then_some(soak.now);
    }
    // 5 × the longest step is below the minimum limit of 10 s.
    let took = seen.expect("the hang is seen").saturating_sub(stood);
    assert!((seconds(10)..seconds(11)).contains(&took), "{took:?}");
}
