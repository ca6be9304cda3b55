//! Short scenarios of the keeper's own decisions, each with the autopilot on, some with it off.

mod faults;
mod plans;
mod shifts;
mod watches;

use super::event::{Effect, Event};
use super::ledger::Ledger;
use super::lifecycle::{Lifecycle, Outcome};
use super::machine::Policy;
use super::reason::Reason;
use super::tests::{KILLED, exited, failed, hello_from, limits, saved, seconds, starts};
use crate::outlook::request::Refusal;
use crate::protocol::control::{Request, RunState, Target};
use crate::protocol::worker::{Event as WorkerEvent, FailureClass, Order, Phase, Skipped, Step};
use std::time::Duration;

/// A run that has been training since second 1.
struct Scenario {
    policy: Policy,
    now: Duration,
    step: u64,
}

impl Scenario {
    fn begin(autopilot: bool) -> Self {
        let ledger = Ledger { autopilot: Some(autopilot), ..Ledger::default() };
        Self::with_policy(Policy::new(limits(), 0, ledger, None))
    }

    fn with_policy(policy: Policy) -> Self {
        let mut scenario = Self { policy, now: seconds(1), step: 0 };
        scenario.tell(Event::Begin);
        scenario.resume(None);
        scenario
    }

    fn tell(&mut self, event: Event) -> Vec<Effect> {
        self.policy.decide(event, self.now)
    }

    fn ask(&mut self, request: Request) -> Vec<Effect> {
        self.tell(Event::Request(request))
    }

    /// Sends a worker's hello.
    fn resume(&mut self, from: Option<u64>) {
        self.step = from.unwrap_or(0);
        self.tell(hello_from("cpu", from));
        self.tell(Event::Worker(WorkerEvent::Phase { phase: Phase::Training }));
    }

    /// Takes steps up to `to`, each with this loss. Returns all resulting effects.
    fn steps(&mut self, to: u64, loss: f64) -> Vec<Effect> {
        self.steps_of_phase(to, loss, false)
    }

    /// The same, in a phase of a search.
    fn steps_of_phase(&mut self, to: u64, loss: f64, searches: bool) -> Vec<Effect> {
        let mut effects = Vec::new();
        while self.step < to {
            self.step += 1;
            self.now += Duration::from_millis(10);
            let (step, samples) = (self.step, self.step * 32);
            let loss = Some(loss * (1.0 + 0.01 * (step % 7) as f64));
            let taken = Step { step, samples, loss, searches, compute_ms: 1.0, ..Step::default() };
            effects.extend(self.tell(Event::Worker(WorkerEvent::Step(taken))));
        }
        effects
    }

    fn save(&mut self) {
        self.tell(saved(self.step));
        self.tell(Event::Proven(self.step));
    }

    fn skip(&mut self, count: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        for _ in 0..count {
            self.step += 1;
            let (step, samples, epoch, lr) = (self.step, self.step * 32, 0, 0.1);
            let (what, place) = ("loss".to_owned(), String::new());
            let skipped =
                Skipped { step, samples, epoch, lr, what, place, parameter: None, rescaled: false, applied: false };
            effects.extend(self.tell(Event::Worker(WorkerEvent::Skipped(skipped))));
        }
        effects
    }

    /// Fails the worker; the next one resumes from its last save.
    fn fail(&mut self, class: FailureClass) -> Vec<Effect> {
        self.tell(failed(class));
        let effects = self.tell(exited(i32::from(class.exit_code())));
        self.resume(self.policy.position.durable);
        effects
    }

    /// Ends the worker as requested; returns the rungs that are started.
    fn end(&mut self) -> Vec<usize> {
        let effects = self.tell(exited(3));
        self.resume(self.policy.position.durable);
        starts(&effects)
    }

    fn heat(&mut self, celsius: f64, for_seconds: u64) -> Vec<Effect> {
        let mut effects = Vec::new();
        for _ in 0..for_seconds {
            self.now += seconds(1);
            self.tell(Event::StoodStill(seconds(1)));
            effects.extend(self.tell(Event::Temperature { celsius: Some(celsius), slowdown_c: None }));
        }
        effects
    }

    fn proposal(&self) -> String {
        self.policy.proposal().map(|proposal| format!("{}: {}", proposal.why, proposal.does)).unwrap_or_default()
    }
}

const ASKED: Effect = Effect::Order(Order::Stop { checkpoint: true });

#[test]
fn it_shifts_down_and_climbs_back_after_a_calm_stretch() {
    let mut scenario = Scenario::begin(true);
    scenario.steps(100, 1.0);
    scenario.save();
    assert_eq!(starts(&scenario.fail(FailureClass::DeviceOutOfMemory)), [3], "safe helps against lack of memory");
    assert_eq!(scenario.policy.describe_climb().unwrap(), "climb to full in 2000 clean steps");
    scenario.steps(1000, 1.0);
    scenario.save();
    assert_eq!(scenario.policy.describe_climb().unwrap(), "climb to full in 1100 clean steps");
    assert!(!scenario.steps(2099, 1.0).contains(&ASKED));
    let effects = scenario.steps(2100, 1.0);
    assert!(effects.contains(&ASKED), "{effects:?}");
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Journal(_, _, text) if text.starts_with("climb: safe → full")))
    );
    scenario.save();
    assert_eq!(scenario.end(), [0]);
    // A fault on probation: back down at once, with double the patience.
    scenario.steps(2150, 1.0);
    assert_eq!(starts(&scenario.fail(FailureClass::Panic)), [3]);
    assert_eq!(scenario.policy.describe_climb().unwrap(), "climb to full in 4000 clean steps");
    let stored = serde_json::to_string(scenario.policy.ledger()).unwrap();
    let ledger: Ledger = serde_json::from_str(&stored).unwrap();
    let mut later = Policy::new(limits(), 3, ledger, None);
    later.set_durable_step(Some(2100));
    assert_eq!(later.describe_climb().unwrap(), "climb to full in 4000 clean steps", "it survives the keeper");
}

#[test]
fn a_climb_that_proves_itself_leads_on_to_the_next_one() {
    let mut scenario = Scenario::begin(true);
    assert_eq!(starts(&scenario.fail(FailureClass::DeviceFault)), [1]);
    scenario.steps(50, 1.0);
    scenario.save();
    scenario.fail(FailureClass::DeviceOutOfMemory);
    let mut rungs = vec![scenario.policy.rung()];
    for _ in 0..40 {
        let to = scenario.step + 250;
        if scenario.steps(to, 1.0).contains(&ASKED) {
            scenario.save();
            scenario.end();
        } else {
            scenario.save();
        }
        rungs.push(scenario.policy.rung());
    }
    rungs.dedup();
    assert_eq!(rungs, [3, 1, 0], "the way it came: never by way of 2");
    assert_eq!(scenario.policy.describe_climb(), None, "home");
}

#[test]
fn it_does_not_climb_when_the_run_ends_before_the_climb_is_proven() {
    for (total, wanted) in [(4099, false), (4100, true)] {
        let mut scenario = Scenario::begin(true);
        scenario.steps(100, 1.0);
        scenario.save();
        scenario.fail(FailureClass::DeviceOutOfMemory);
        scenario.policy.position.total_units = total * 32;
        scenario.steps(1000, 1.0);
        scenario.save();
        assert_eq!(scenario.steps(2100, 1.0).contains(&ASKED), wanted, "2000 calm steps, {total} in all");
    }
}

#[test]
fn a_kill_from_outside_fails_no_climb_and_the_users_choice_stands() {
    let mut scenario = Scenario::begin(true);
    scenario.fail(FailureClass::DeviceOutOfMemory);
    scenario.steps(1500, 1.0);
    scenario.save();
    scenario.steps(2000, 1.0);
    scenario.save();
    scenario.end();
    assert_eq!(scenario.policy.rung(), 0);
    assert_eq!(starts(&scenario.tell(KILLED)), [0]);
    scenario.resume(Some(2000));
    scenario.ask(Request::Shift { to: Target::Rung("safe".to_owned()) });
    scenario.end();
    assert_eq!(scenario.policy.describe_climb(), None, "a person chose this rung");
}

#[test]
fn a_resume_withdraws_a_pause_that_has_not_ended_the_worker_yet() {
    let ends = |requests: &[Request]| {
        let mut scenario = Scenario::begin(true);
        scenario.steps(50, 1.0);
        for request in requests {
            scenario.ask(request.clone());
        }
        let effects = scenario.tell(exited(3));
        let starts = effects.iter().any(|effect| matches!(effect, Effect::Start(_)));
        (starts, matches!(scenario.policy.life(), Lifecycle::Paused))
    };
    assert_eq!(ends(&[Request::Pause]), (false, true));
    assert_eq!(ends(&[Request::Pause, Request::Resume]), (true, false));
}

#[test]
fn with_the_autopilot_off_the_same_decisions_are_proposals() {
    let mut scenario = Scenario::begin(false);
    assert!(scenario.ask(Request::Accept) == [Effect::Reply(Err(Refusal::NoProposal))]);
    scenario.steps(50, 1.0);
    scenario.save();
    scenario.steps(300, 1.0);
    assert!(!scenario.steps(303, 9.0).iter().any(|effect| matches!(effect, Effect::Order(_))));
    assert!(
        scenario
            .proposal()
            .contains("would go back to a checkpoint from step 201 or before, else to the oldest, and skip the data"),
        "{}",
        scenario.proposal()
    );
    let effects = scenario.ask(Request::Accept);
    assert!(effects.contains(&Effect::Order(Order::Stop { checkpoint: false })), "{effects:?}");
    let told = |effect: &Effect| matches!(effect, Effect::Asked(.., text) if text.starts_with("accept the proposal"));
    assert!(effects.iter().any(told), "{effects:?}");
    scenario.end();
    // Non-finite steps.
    scenario.skip(5);
    assert_eq!(scenario.proposal(), "5 steps in a row were not finite: would shift down to safe");
    assert!(scenario.ask(Request::Accept).contains(&ASKED));
    assert_eq!(scenario.end(), [3]);
    assert_eq!(scenario.proposal(), "");
    // The way back up.
    scenario.steps(1000, 1.0);
    scenario.save();
    scenario.steps(2400, 1.0);
    assert!(scenario.proposal().ends_with("would climb to full"), "{}", scenario.proposal());
    assert!(scenario.ask(Request::Accept).contains(&ASKED));
    assert_eq!(scenario.end(), [0]);
    let trains = scenario.step + 10;
    scenario.steps(trains, 1.0);
    // Heat.
    scenario.heat(90.0, 70);
    assert!(scenario.proposal().ends_with("would pause until the GPU has cooled"), "{}", scenario.proposal());
    // A fault: the worker restarts unchanged.
    assert_eq!(starts(&scenario.fail(FailureClass::DeviceOutOfMemory)), [0]);
    assert!(scenario.proposal().ends_with("would shift down to safe"), "{}", scenario.proposal());
}

#[test]
fn turning_the_autopilot_on_settles_the_proposal() {
    let mut scenario = Scenario::begin(false);
    scenario.steps(300, 1.0);
    scenario.skip(5);
    assert!(scenario.proposal().ends_with("would shift down to safe"));
    let effects = scenario.ask(Request::Autopilot { on: true });
    assert!(effects.contains(&ASKED), "{effects:?}");
    assert_eq!((scenario.end(), scenario.proposal()), (vec![3], String::new()));

    let mut scenario = Scenario::begin(false);
    scenario.heat(90.0, 70);
    scenario.ask(Request::Pause);
    scenario.end();
    assert!(scenario.proposal().ends_with("would pause until the GPU has cooled"));
    let effects = scenario.ask(Request::Autopilot { on: true });
    let dropped = |effect: &Effect| matches!(effect, Effect::Journal(_, _, text) if text.contains("dropped"));
    assert!(effects.iter().any(dropped) && scenario.proposal().is_empty(), "{effects:?}");
}

#[test]
fn a_proposal_expires_and_survives_the_keeper() {
    let mut scenario = Scenario::begin(false);
    scenario.skip(5);
    let stored = serde_json::to_string(scenario.policy.ledger()).unwrap();
    let later = Policy::new(limits(), 0, serde_json::from_str(&stored).unwrap(), None);
    assert_eq!(later.proposal(), scenario.policy.proposal());
    scenario.steps(2000, 1.0);
    assert_ne!(scenario.proposal(), "");
    scenario.steps(2006, 1.0);
    assert_eq!(scenario.proposal(), "");
}

#[test]
fn a_hot_card_rests_and_after_three_rests_takes_a_cooler_rung() {
    let mut scenario = Scenario::begin(true);
    for pause in 1..=3 {
        assert!(scenario.heat(86.0, 61).contains(&ASKED), "pause {pause}");
        assert!(starts(&scenario.tell(exited(3))).is_empty());
        assert_eq!(scenario.policy.life().state(), RunState::BackingOff);
        assert!(starts(&scenario.heat(80.0, 100)).is_empty(), "not yet cool");
        assert_eq!(starts(&scenario.heat(75.0, 1)), [0]);
        scenario.resume(scenario.policy.position.durable);
    }
    assert!(scenario.heat(86.0, 61).contains(&ASKED));
    assert_eq!(scenario.end(), [2], "the rung that helps against heat");
}

#[test]
fn a_gpu_that_does_not_cool_needs_attention() {
    let mut scenario = Scenario::begin(true);
    scenario.heat(90.0, 61);
    scenario.tell(exited(3));
    scenario.now += seconds(1801);
    let effects = scenario.tell(Event::Tick);
    assert!(matches!(&effects[..], [Effect::Finish(Outcome::NeedsPerson(Reason::StaysHot { .. }))]), "{effects:?}");
}
