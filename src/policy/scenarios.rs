//! Short scenarios of the keeper's own decisions, each with the autopilot on, some with it off.

mod plans;
mod watches;

use super::event::{Effect, Event, Evidence, Signal};
use super::ledger::Ledger;
use super::lifecycle::{Back, Lifecycle, Outcome};
use super::machine::Policy;
use super::refusal::Refusal;
use super::tests::{KILLED, exited, failed, hello_from, limits, saved, seconds, starts};
use crate::protocol::cause::Cause;
use crate::protocol::control::{Request, RunState, Target};
use crate::protocol::exit::Exit;
use crate::protocol::worker::{Event as WorkerEvent, FailureClass, Order, Phase, Skipped, Step};
use std::time::Duration;

/// A run that has been training since second 1.
struct Story {
    policy: Policy,
    now: Duration,
    step: u64,
}

impl Story {
    fn begin(autopilot: bool) -> Self {
        let ledger = Ledger { autopilot: Some(autopilot), ..Ledger::default() };
        Self::of(Policy::new(limits(), 0, ledger, None))
    }

    fn of(policy: Policy) -> Self {
        let mut story = Self { policy, now: seconds(1), step: 0 };
        story.tell(Event::Begin);
        story.resume(None);
        story
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
        let mut effects = Vec::new();
        while self.step < to {
            self.step += 1;
            self.now += Duration::from_millis(10);
            let (step, samples, epoch, lr, grad_norm) = (self.step, self.step * 32, 0, 0.1, 1.0);
            let (micro_batches, data_wait_ms, compute_ms) = (1, 0.0, 1.0);
            let loss = loss * (1.0 + 0.01 * (step % 7) as f64);
            let taken = Step { step, samples, epoch, loss, lr, grad_norm, micro_batches, data_wait_ms, compute_ms };
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
            let skipped = Skipped { step, samples, epoch, lr, what, place, rescaled: false };
            effects.extend(self.tell(Event::Worker(WorkerEvent::Skipped(skipped))));
        }
        effects
    }

    /// Fails the worker; the next one resumes from its last save.
    fn fail(&mut self, class: FailureClass) -> Vec<Effect> {
        self.tell(failed(class));
        let effects = self.tell(exited(i32::from(class.exit_code())));
        self.resume(self.policy.durable);
        effects
    }

    /// Ends the worker as requested; returns the rungs that are started.
    fn end(&mut self) -> Vec<usize> {
        let effects = self.tell(exited(3));
        self.resume(self.policy.durable);
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
    let mut story = Story::begin(true);
    story.steps(100, 1.0);
    story.save();
    assert_eq!(starts(&story.fail(FailureClass::DeviceOutOfMemory)), [3], "safe relieves memory");
    assert_eq!(story.policy.describe_climb().unwrap(), "climb to full in 2000 clean steps");
    story.steps(1000, 1.0);
    story.save();
    assert_eq!(story.policy.describe_climb().unwrap(), "climb to full in 1100 clean steps");
    assert!(!story.steps(2099, 1.0).contains(&ASKED));
    let effects = story.steps(2100, 1.0);
    assert!(effects.contains(&ASKED), "{effects:?}");
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Journal(_, _, text) if text.starts_with("climb: safe → full")))
    );
    story.save();
    assert_eq!(story.end(), [0]);
    // A fault on probation: back down at once, with double the patience.
    story.steps(2150, 1.0);
    assert_eq!(starts(&story.fail(FailureClass::Panic)), [3]);
    assert_eq!(story.policy.describe_climb().unwrap(), "climb to full in 4000 clean steps");
    let stored = serde_json::to_string(story.policy.ledger()).unwrap();
    let ledger: Ledger = serde_json::from_str(&stored).unwrap();
    let mut later = Policy::new(limits(), 3, ledger, None);
    later.set_durable_step(Some(2100));
    assert_eq!(later.describe_climb().unwrap(), "climb to full in 4000 clean steps", "it survives the keeper");
}

#[test]
fn a_climb_that_proves_itself_leads_on_to_the_next_one() {
    let mut story = Story::begin(true);
    assert_eq!(starts(&story.fail(FailureClass::DeviceFault)), [1]);
    story.steps(50, 1.0);
    story.save();
    story.fail(FailureClass::DeviceOutOfMemory);
    let mut rungs = vec![story.policy.rung()];
    for _ in 0..40 {
        let to = story.step + 250;
        if story.steps(to, 1.0).contains(&ASKED) {
            story.save();
            story.end();
        } else {
            story.save();
        }
        rungs.push(story.policy.rung());
    }
    rungs.dedup();
    assert_eq!(rungs, [3, 1, 0], "the way it came: never by way of 2");
    assert_eq!(story.policy.describe_climb(), None, "home");
}

#[test]
fn it_does_not_climb_when_the_run_ends_before_the_climb_is_proven() {
    for (total, wanted) in [(4099, false), (4100, true)] {
        let mut story = Story::begin(true);
        story.steps(100, 1.0);
        story.save();
        story.fail(FailureClass::DeviceOutOfMemory);
        story.policy.total_units = total * 32;
        story.steps(1000, 1.0);
        story.save();
        assert_eq!(story.steps(2100, 1.0).contains(&ASKED), wanted, "2000 calm steps, {total} in all");
    }
}

#[test]
fn a_kill_from_outside_fails_no_climb_and_a_person_is_not_overruled() {
    let mut story = Story::begin(true);
    story.fail(FailureClass::DeviceOutOfMemory);
    story.steps(1500, 1.0);
    story.save();
    story.steps(2000, 1.0);
    story.save();
    story.end();
    assert_eq!(story.policy.rung(), 0);
    assert_eq!(starts(&story.tell(KILLED)), [0]);
    story.resume(Some(2000));
    story.ask(Request::Shift { to: Target::Rung("safe".to_owned()) });
    story.end();
    assert_eq!(story.policy.describe_climb(), None, "a person chose this rung");
}

#[test]
fn a_loss_that_jumps_goes_back_and_leaves_the_data_out() {
    let mut story = Story::begin(true);
    assert!(story.steps(300, 1.0).is_empty());
    let effects = story.steps(303, 9.0);
    assert!(effects.contains(&Effect::Order(Order::Stop { checkpoint: false })), "not worth saving: {effects:?}");
    let effects = story.tell(exited(3));
    let back = Back { before: 301, steps: 100, skip_units: 200 * 32 };
    assert!(matches!(&effects[..], [Effect::RollBack(found), Effect::Start(_)] if *found == back), "{effects:?}");
}

#[test]
fn with_the_autopilot_off_the_same_decisions_are_proposals() {
    let mut story = Story::begin(false);
    assert!(story.ask(Request::Accept) == [Effect::Reply(Err(Refusal::NoProposal))]);
    story.steps(300, 1.0);
    assert!(!story.steps(303, 9.0).iter().any(|effect| matches!(effect, Effect::Order(_))));
    assert!(story.proposal().contains("would go back about 100 steps and skip the data"), "{}", story.proposal());
    let effects = story.ask(Request::Accept);
    assert!(effects.contains(&Effect::Order(Order::Stop { checkpoint: false })), "{effects:?}");
    let told = |effect: &Effect| matches!(effect, Effect::Asked(.., text) if text.starts_with("accept the proposal"));
    assert!(effects.iter().any(told), "{effects:?}");
    story.end();
    // Non-finite steps.
    story.skip(5);
    assert_eq!(story.proposal(), "5 steps in a row were not finite: would shift down to safe");
    assert!(story.ask(Request::Accept).contains(&ASKED));
    assert_eq!(story.end(), [3]);
    assert_eq!(story.proposal(), "");
    // The way back up.
    story.steps(1000, 1.0);
    story.save();
    story.steps(2400, 1.0);
    assert!(story.proposal().ends_with("would climb to full"), "{}", story.proposal());
    assert!(story.ask(Request::Accept).contains(&ASKED));
    assert_eq!(story.end(), [0]);
    // Heat.
    story.heat(90.0, 70);
    assert!(story.proposal().ends_with("would pause until the GPU has cooled"), "{}", story.proposal());
    // A fault: the worker restarts unchanged.
    assert_eq!(starts(&story.fail(FailureClass::DeviceOutOfMemory)), [0]);
    assert!(story.proposal().ends_with("would shift down to safe"), "{}", story.proposal());
}

#[test]
fn with_the_autopilot_on_again_a_proposal_is_carried_out_or_dropped() {
    let mut story = Story::begin(false);
    story.steps(300, 1.0);
    story.skip(5);
    assert!(story.proposal().ends_with("would shift down to safe"));
    let effects = story.ask(Request::Autopilot { on: true });
    assert!(effects.contains(&ASKED), "{effects:?}");
    assert_eq!((story.end(), story.proposal()), (vec![3], String::new()));

    let mut story = Story::begin(false);
    story.heat(90.0, 70);
    story.ask(Request::Pause);
    story.end();
    assert!(story.proposal().ends_with("would pause until the GPU has cooled"));
    let effects = story.ask(Request::Autopilot { on: true });
    let dropped = |effect: &Effect| matches!(effect, Effect::Journal(_, _, text) if text.contains("dropped"));
    assert!(effects.iter().any(dropped) && story.proposal().is_empty(), "{effects:?}");
}

#[test]
fn a_proposal_expires_and_survives_the_keeper() {
    let mut story = Story::begin(false);
    story.skip(5);
    let stored = serde_json::to_string(story.policy.ledger()).unwrap();
    let later = Policy::new(limits(), 0, serde_json::from_str(&stored).unwrap(), None);
    assert_eq!(later.proposal(), story.policy.proposal());
    story.steps(2000, 1.0);
    assert_ne!(story.proposal(), "");
    story.steps(2006, 1.0);
    assert_eq!(story.proposal(), "");
}

#[test]
fn five_skipped_steps_in_a_row_shift_to_a_rung_for_numerics() {
    let mut story = Story::begin(true);
    story.steps(100, 1.0);
    assert!(!story.skip(4).contains(&ASKED));
    assert!(story.skip(1).contains(&ASKED));
    assert_eq!(story.end(), [3]);
}

#[test]
fn a_device_fault_takes_the_rung_for_kernels_then_the_safest() {
    let mut story = Story::begin(true);
    assert_eq!(starts(&story.fail(FailureClass::DeviceFault)), [1]);
    story.steps(50, 1.0);
    story.save();
    assert_eq!(starts(&story.fail(FailureClass::DeviceFault)), [3]);
    story.steps(100, 1.0);
    story.save();
    assert_eq!(starts(&story.fail(FailureClass::DeviceFault)), [3], "there is none below");
}

#[test]
fn a_hang_is_restarted_unchanged_once() {
    let mut story = Story::begin(true);
    let hang = |story: &mut Story| {
        story.now += seconds(1000);
        let effects = story.tell(Event::Tick);
        let told = |text: &str| text.starts_with("hang: no progress for 10 s while training");
        assert!(
            matches!(&effects[..], [Effect::Journal(_, _, text), Effect::Signal(Signal::Terminate)] if told(text)),
            "{effects:?}"
        );
        assert!(story.policy.life().why().is_some_and(|why| told(&why)), "the state says why it stops");
        let started = starts(&story.tell(KILLED));
        story.resume(story.policy.durable);
        started
    };
    story.steps(100, 1.0);
    story.save();
    assert_eq!(hang(&mut story), [0]);
    story.steps(200, 1.0);
    story.save();
    assert_eq!(hang(&mut story), [1], "the second one: fewer kernels");
}

#[test]
fn a_hot_card_rests_and_after_three_rests_takes_a_cooler_rung() {
    let mut story = Story::begin(true);
    for pause in 1..=3 {
        assert!(story.heat(86.0, 61).contains(&ASKED), "pause {pause}");
        assert!(starts(&story.tell(exited(3))).is_empty());
        assert_eq!(story.policy.life().state(), RunState::BackingOff);
        assert!(starts(&story.heat(80.0, 100)).is_empty(), "not yet cool");
        assert_eq!(starts(&story.heat(75.0, 1)), [0]);
        story.resume(story.policy.durable);
    }
    assert!(story.heat(86.0, 61).contains(&ASKED));
    assert_eq!(story.end(), [2], "the rung that relieves heat");
}

#[test]
fn a_card_that_does_not_cool_needs_a_person() {
    let mut story = Story::begin(true);
    story.heat(90.0, 61);
    story.tell(exited(3));
    story.now += seconds(1801);
    let effects = story.tell(Event::Tick);
    assert!(matches!(&effects[..], [Effect::Finish(Outcome::NeedsPerson(why))] if why.contains("does not cool")));
}

#[test]
fn what_no_rung_helps_against_stops_and_says_what_to_do() {
    for (class, number, words) in [
        (FailureClass::GpuLost, None, "restart the machine"),
        (FailureClass::Xid, Some(79), "fallen off the bus"),
        (FailureClass::Xid, Some(48), "uncorrectable errors"),
        (FailureClass::Xid, Some(119), "needs a reset"),
    ] {
        let evidence = || Event::Evidence(Evidence { class, number, text: "seen".to_owned() });
        let mut living = Story::begin(true);
        let effects = living.tell(evidence());
        assert!(effects.contains(&ASKED), "it may still save: {effects:?}");
        living.tell(KILLED);
        let mut dying = Story::begin(true);
        dying.tell(failed(FailureClass::DeviceFault));
        let cause = Cause { xid: number, ..Cause::new(class, vec!["seen".to_owned()]) };
        dying.tell(Event::Exited(Exit::with_code(11), cause));
        for story in [living, dying] {
            let life = story.policy.life();
            assert!(matches!(life, Lifecycle::Over(Outcome::NeedsPerson(why)) if why.contains(words)), "{life:?}");
        }
    }
    let mut note = Story::begin(true);
    note.tell(Event::Evidence(Evidence { class: FailureClass::Xid, number: Some(63), text: "seen".to_owned() }));
    assert!(matches!(note.policy.life(), Lifecycle::Running(_)), "a note");
    assert_eq!(starts(&note.tell(KILLED)), [0]);
}

#[test]
fn out_of_host_memory_loads_sparingly_once_then_needs_a_person() {
    let mut story = Story::begin(true);
    let kill = |story: &mut Story| {
        let cause = Cause::new(FailureClass::HostOutOfMemory, vec!["Killed process 7".to_owned()]);
        let effects = story.tell(Event::Exited(Exit::by_signal(9), cause));
        story.resume(story.policy.durable);
        effects
    };
    assert!(!story.policy.ledger().lean);
    assert_eq!(starts(&kill(&mut story)), [0], "no rung of the ladder");
    assert!(story.policy.ledger().lean);
    let effects = kill(&mut story);
    assert!(matches!(effects.last(), Some(Effect::Finish(Outcome::NeedsPerson(_)))), "{effects:?}");
    let mut plain = Story::begin(true);
    plain.tell(KILLED);
    assert!(!plain.policy.ledger().lean, "a kill without evidence says nothing about memory");
}

#[test]
fn data_that_fail_twice_are_left_out() {
    let mut story = Story::begin(true);
    story.steps(50, 1.0);
    story.save();
    let mut last = Vec::new();
    for _ in 0..2 {
        story.steps(149, 1.0);
        last = story.fail(FailureClass::Panic);
        story.tell(Event::Tick);
        story.now += seconds(5);
        story.tell(Event::Tick);
        story.resume(Some(50));
    }
    assert!(last.contains(&Effect::LeaveOut { from: 149 * 32, units: 1 }), "{last:?}");
    let mut kills = Story::begin(true);
    for _ in 0..2 {
        kills.steps(149, 1.0);
        last = kills.tell(KILLED);
        kills.resume(None);
    }
    assert!(!last.iter().any(|effect| matches!(effect, Effect::LeaveOut { .. })), "a kill is nobody's fault");
}

#[test]
fn divergence_is_only_ever_proposed() {
    let mut story = Story::begin(true);
    story.policy.limits.watch.spike.sigma = 0.0;
    story.steps(1000, 1.0);
    let effects = story.steps(2000, 3.0);
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Order(_))), "{effects:?}");
    assert!(story.proposal().contains("above 2 times its best"), "{}", story.proposal());
    assert!(story.proposal().ends_with("on to safe"), "{}", story.proposal());
}
