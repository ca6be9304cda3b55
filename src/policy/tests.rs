//! The state machine against tables. Its helpers serve the other tests, too.

mod kernels;
mod random;

use super::command::CommandTimes;
use super::event::{Effect, Event, Limits, Signal};
use super::ledger::Ledger;
use super::lifecycle::{Lifecycle, Outcome};
use super::machine::Policy;
use super::reason::Reason;
use crate::config::knobs::{Relief, Watch};
use crate::config::units::Every;
use crate::outlook::continuation::Commands;
use crate::outlook::request::Refusal;
use crate::protocol::capability::Capability;
use crate::protocol::cause::Cause;
use crate::protocol::control::{Request, Target};
use crate::protocol::exit::Exit;
use crate::protocol::worker::{
    DoneReason, Event as WorkerEvent, Failed, FailureClass, Hello, Order, Phase, Saved, Step,
};
use crate::recipe::batch::Position;
use std::collections::BTreeMap;
use std::time::Duration;

pub(super) fn policy() -> Policy {
    let rungs = ["full", "plain", "safe"].map(str::to_owned).to_vec();
    let relieves = vec![vec![], vec![Relief::Kernels], vec![Relief::Memory]];
    Policy::new(Limits { rungs, relieves, ..limits() }, 0, Ledger::default(), None)
}

/// Returns the limits of a run with four rungs.
pub(super) fn limits() -> Limits {
    let rungs = ["full", "plain", "cool", "safe"].map(str::to_owned).to_vec();
    let relieves = vec![vec![], vec![Relief::Kernels], vec![Relief::Heat], vec![Relief::Memory, Relief::Numerics]];
    let (plan, save_every) = (Vec::new(), vec![Every::Seconds(30.0); 4]);
    let commands = Commands::built_in("downshift resume");
    Limits {
        commands,
        rungs,
        relieves,
        barriers: BTreeMap::new(),
        watch: Watch::default(),
        release_time: seconds(2),
        plan,
        save_every,
        capability: Capability::BUILT_IN,
        times: CommandTimes::default(),
        knobs: Vec::new(),
        unfused: Vec::new(),
    }
}

pub(super) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(super) fn hello(device: &str) -> Event {
    hello_from(device, None)
}

pub(super) fn hello_from(device: &str, resumed_from: Option<u64>) -> Event {
    Event::Worker(WorkerEvent::Hello(Hello {
        protocol: 1,
        build: "0".to_owned(),
        pid: 1,
        device: device.to_owned(),
        backend: String::new(),
        parameters: 1,
        resumed_from,
        position: Position::default(),
        epoch_units: 10,
        total_units: 3_200_000,
        total_steps: 100_000,
        unit: "samples".to_owned(),
    }))
}

pub(super) fn saved(step: u64) -> Event {
    Event::Worker(WorkerEvent::Saved(Saved {
        path: String::new(),
        step,
        samples: step,
        bytes: 1,
        pause_ms: 1.0,
        total_ms: 10.0,
        ..Saved::default()
    }))
}

pub(super) fn step(step: u64) -> Event {
    Event::Worker(WorkerEvent::Step(Step {
        step,
        samples: step,
        loss: Some(1.0),
        lr: Some(0.1),
        grad_norm: Some(1.0),
        micro_batches: 1,
        compute_ms: 1.0,
        ..Step::default()
    }))
}

pub(super) fn failed(class: FailureClass) -> Event {
    Event::Worker(WorkerEvent::Failed(Failed {
        class,
        message: "x".to_owned(),
        step: Some(1),
        thread: None,
        injected: false,
    }))
}

pub(super) const KILLED: Event = Event::Exited(Exit::by_signal(9), Cause::new(FailureClass::Killed, Vec::new()));

/// A process that was ended after it reported this class.
pub(super) fn ended_with(class: FailureClass) -> Event {
    Event::Exited(Exit::by_signal(15), Cause::new(class, Vec::new()))
}

pub(super) fn exited(code: i32) -> Event {
    let exit = Exit::with_code(code);
    Event::Exited(exit, Cause::new(class_of(exit), vec![exit.to_string()]))
}

/// Returns triage's class for an exit without any other evidence.
pub(super) fn class_of(exit: Exit) -> FailureClass {
    match exit {
        Exit { signal: Some(_), .. } if exit.is_crash() => FailureClass::Crash,
        Exit { signal: Some(_), .. } => FailureClass::Killed,
        Exit { code: Some(0 | 3), .. } => FailureClass::EarlyExit,
        Exit { code, .. } => code.and_then(FailureClass::from_exit_code).unwrap_or(FailureClass::Unknown),
    }
}

pub(super) fn starts(effects: &[Effect]) -> Vec<usize> {
    effects
        .iter()
        .filter_map(|effect| if let Effect::Start(start) = effect { Some(start.rung) } else { None })
        .collect()
}

fn training(policy: &mut Policy) {
    policy.decide(Event::Begin, seconds(0));
    policy.decide(hello("cpu"), seconds(1));
    policy.decide(Event::Worker(WorkerEvent::Phase { phase: Phase::Training }), seconds(1));
}

#[test]
fn a_shift_saves_stops_and_starts_on_the_next_rung() {
    let mut policy = policy();
    training(&mut policy);
    let effects = policy.decide(Event::Request(Request::Shift { to: Target::Down }), seconds(2));
    assert!(effects.contains(&Effect::Order(Order::Stop { checkpoint: true })), "{effects:?}");
    assert!(starts(&effects).is_empty(), "no start while the old worker lives");
    assert_eq!(starts(&policy.decide(exited(3), seconds(3))), [1]);
}

#[test]
fn shifts_beyond_the_ladder_are_refused_with_a_reason() {
    let mut policy = policy();
    training(&mut policy);
    let unknown = |name: &str| {
        let ladder = ["full", "plain", "safe"].map(str::to_owned).to_vec();
        Refusal::UnknownRung { name: name.to_owned(), ladder }
    };
    for (to, refusal) in [
        (Target::Up, Refusal::FastestRung("full".to_owned())),
        (Target::Rung("full".to_owned()), Refusal::SameRung("full".to_owned())),
        (Target::Rung("none".to_owned()), unknown("none")),
        (Target::Rung("3".to_owned()), unknown("3")),
    ] {
        let effects = policy.decide(Event::Request(Request::Shift { to }), seconds(2));
        assert_eq!(effects, [Effect::Reply(Err(refusal))]);
    }
    assert_eq!(unknown("none").to_string(), "no rung `none`; the ladder has full, plain, safe");
}

#[test]
fn a_second_shift_while_stopping_goes_one_rung_further() {
    let mut policy = policy();
    training(&mut policy);
    policy.decide(Event::Request(Request::Shift { to: Target::Down }), seconds(2));
    policy.decide(Event::Request(Request::Shift { to: Target::Down }), seconds(2));
    assert_eq!(starts(&policy.decide(exited(3), seconds(3))), [2]);
}

#[test]
fn deaths_are_restarted_within_the_budget_and_progress_renews_it() {
    let mut policy = policy();
    training(&mut policy);
    assert_eq!(starts(&policy.decide(KILLED, seconds(2))), [0], "the first restart is immediate");
    assert!(starts(&policy.decide(KILLED, seconds(3))).is_empty());
    assert!(starts(&policy.decide(Event::Tick, Duration::from_millis(3_999))).is_empty());
    assert_eq!(starts(&policy.decide(Event::Tick, seconds(4))), [0]);
    policy.decide(saved(50), seconds(5));
    assert_eq!(starts(&policy.decide(KILLED, seconds(6))), [0], "a durable step opens a fresh budget");
    for at in [10, 20, 30] {
        policy.decide(KILLED, seconds(at));
        policy.decide(Event::Tick, seconds(at + 9));
    }
    assert!(matches!(policy.life(), Lifecycle::Over(Outcome::NeedsPerson(_))), "{:?}", policy.life());
}

#[test]
fn faults_that_no_restart_mends_fail_with_their_exit_code() {
    for class in [FailureClass::Config, FailureClass::Data, FailureClass::Checkpoint] {
        let mut policy = policy();
        training(&mut policy);
        policy.decide(failed(class), seconds(2));
        let effects = policy.decide(exited(i32::from(class.exit_code())), seconds(2));
        let [Effect::Finish(outcome)] = &effects[..] else { panic!("{effects:?}") };
        assert_eq!(outcome.exit_code(), class.exit_code());
    }
}

#[test]
fn the_same_failure_twice_right_after_a_load_goes_one_checkpoint_back() {
    let deaths = |exit: &Event, at: u64| {
        let mut policy = policy();
        policy.decide(Event::Begin, seconds(0));
        let mut all = Vec::new();
        for life in 1..=2 {
            policy.decide(hello_from("cpu", Some(100)), seconds(life));
            policy.decide(step(at), seconds(life));
            all.extend(policy.decide(exit.clone(), seconds(life)));
            all.extend(policy.decide(Event::Tick, seconds(life + 2)));
        }
        let back: Vec<_> = all.iter().filter(|effect| matches!(effect, Effect::GoBack(_))).cloned().collect();
        assert_eq!(starts(&all).len(), 2, "it is started again anyway: {all:?}");
        if let Some(at) = all.iter().position(|effect| matches!(effect, Effect::GoBack(_))) {
            assert!(starts(&all[at..]).len() == 1, "set aside before the next start: {all:?}");
        }
        back
    };
    assert_eq!(deaths(&exited(101), 103), [Effect::GoBack(100)]);
    assert_eq!(deaths(&exited(12), 120), [Effect::GoBack(100)]);
    assert_eq!(deaths(&exited(101), 121), [], "that far it was fine");
    assert_eq!(deaths(&KILLED, 103), [], "a kill comes from outside");
    assert_eq!(deaths(&exited(10), 103), [], "out of memory does not depend on the data");
}

#[test]
fn the_keeper_shifts_to_the_nearest_rung_that_relieves_the_cause_unless_it_may_not() {
    for (class, autopilot, rung) in [
        (FailureClass::DeviceOutOfMemory, true, 2),
        (FailureClass::DeviceFault, true, 1),
        (FailureClass::NonFinite, true, 0),
        (FailureClass::Panic, true, 0),
        (FailureClass::DeviceOutOfMemory, false, 0),
    ] {
        let mut policy = policy();
        training(&mut policy);
        policy.decide(Event::Request(Request::Autopilot { on: autopilot }), seconds(1));
        policy.decide(failed(class), seconds(2));
        let effects = policy.decide(exited(i32::from(class.exit_code())), seconds(2));
        assert_eq!(starts(&effects), [rung], "{class}");
    }
}

#[test]
fn a_rung_of_another_shape_is_refused_with_a_reason() {
    let mut policy = policy();
    policy.limits.barriers.insert((0, 1), "another shape".to_owned());
    training(&mut policy);
    let effects = policy.decide(Event::Request(Request::Shift { to: Target::Down }), seconds(2));
    assert_eq!(effects, [Effect::Reply(Err(Refusal::OtherShape("another shape".to_owned())))]);
}

#[test]
fn without_restarts_the_first_fault_ends_the_run_with_its_own_code() {
    let mut policy = policy();
    policy.limits.watch.restarts_without_progress = 0;
    training(&mut policy);
    policy.decide(failed(FailureClass::DeviceOutOfMemory), seconds(2));
    let effects = policy.decide(exited(10), seconds(2));
    assert!(matches!(&effects[..], [Effect::Finish(outcome)] if outcome.exit_code() == 10), "{effects:?}");
}

#[test]
fn an_early_exit_is_a_failure() {
    let mut policy = policy();
    training(&mut policy);
    assert_eq!(starts(&policy.decide(exited(0), seconds(2))), [0]);
}

#[test]
fn a_hang_is_ended_by_force_and_an_unkillable_worker_ends_everything() {
    let mut policy = policy();
    training(&mut policy);
    for number in 1..=30 {
        policy.decide(step(number), seconds(2));
    }
    assert!(policy.decide(Event::Tick, seconds(11)).is_empty());
    let ended = policy.decide(Event::Tick, seconds(12));
    assert!(matches!(&ended[..], [Effect::Journal(..), Effect::Signal(Signal::Terminate)]), "{ended:?}");
    let killed = policy.decide(Event::Tick, seconds(17));
    assert!(matches!(&killed[..], [Effect::Journal(..), Effect::Signal(Signal::Kill)]), "{killed:?}");
    let effects = policy.decide(Event::Tick, seconds(27));
    assert_eq!(effects, [Effect::Finish(Outcome::NeedsPerson(Reason::Unkillable(None)))]);
}

#[test]
fn time_that_the_keeper_missed_is_given_back() {
    let mut policy = policy();
    training(&mut policy);
    for number in 1..=30 {
        policy.decide(step(number), seconds(2));
    }
    policy.decide(Event::StoodStill(seconds(98)), seconds(100));
    assert!(policy.decide(Event::Tick, seconds(105)).is_empty());
}

#[test]
fn on_a_gpu_the_next_start_waits_for_the_baseline() {
    let mut policy = policy();
    policy.decide(Event::Vram(Some(3 << 30)), seconds(0));
    policy.decide(Event::Begin, seconds(0));
    policy.decide(hello("cuda:0 X"), seconds(1));
    policy.decide(Event::Vram(Some(20 << 30)), seconds(2));
    assert!(starts(&policy.decide(KILLED, seconds(3))).is_empty());
    assert!(starts(&policy.decide(Event::Vram(Some(9 << 30)), seconds(4))).is_empty());
    assert_eq!(starts(&policy.decide(Event::Vram(Some((3 << 30) + (64 << 20))), seconds(5))), [0]);
    policy.decide(Event::Vram(Some(20 << 30)), seconds(6));
    policy.decide(saved(9), seconds(6));
    policy.decide(KILLED, seconds(7));
    policy.decide(Event::Tick, seconds(57));
    let life = policy.life();
    assert!(matches!(life, Lifecycle::Over(Outcome::NeedsPerson(Reason::MemoryInUse { .. }))), "{life:?}");
}

#[test]
fn a_card_that_cannot_be_read_costs_the_time_of_its_driver() {
    for wait in [2, 0] {
        let limits = Limits { release_time: seconds(wait), ..limits() };
        let mut policy = Policy::new(limits, 0, Ledger::default(), None);
        policy.decide(Event::Begin, seconds(0));
        policy.decide(hello("cuda:0 X"), seconds(1));
        assert!(starts(&policy.decide(KILLED, seconds(3))).is_empty());
        assert_eq!(policy.next_wake(), Some(seconds(3 + wait)));
        assert_eq!(starts(&policy.decide(Event::Tick, seconds(3 + wait))), [0]);
    }
}

#[test]
fn a_resume_by_the_user_opens_a_fresh_budget() {
    let mut policy = policy();
    training(&mut policy);
    policy.decide(KILLED, seconds(2));
    policy.decide(KILLED, seconds(2));
    assert!(matches!(policy.life(), Lifecycle::BackingOff { .. }));
    let resumed = policy.decide(Event::Request(Request::Resume), seconds(2));
    assert_eq!(starts(&resumed), [0], "at once");
    let told = |effect: &Effect| matches!(effect, Effect::Asked(.., text) if text.starts_with("resume on "));
    assert!(resumed.iter().any(told), "the journal names the author: {resumed:?}");
    assert_eq!(starts(&policy.decide(KILLED, seconds(3))), [0], "and the next fault is the first one");
}

#[test]
fn stop_asked_twice_does_not_wait() {
    let mut policy = policy();
    training(&mut policy);
    policy.decide(Event::Request(Request::Stop), seconds(2));
    assert_eq!(policy.decide(Event::Request(Request::Stop), seconds(3)).len(), 1, "two who ask at once ask once");
    let effects = policy.decide(Event::Request(Request::Stop), seconds(4));
    assert!(effects.contains(&Effect::Signal(Signal::Terminate)));
    assert_eq!(policy.decide(exited(3), seconds(3)), [Effect::Finish(Outcome::Stopped)]);
}

#[test]
fn a_finished_run_that_is_resumed_and_stopped_without_a_new_step_stays_finished() {
    let mut first = policy();
    training(&mut first);
    first.decide(step(9), seconds(2));
    first.decide(saved(9), seconds(2));
    first.decide(Event::Worker(WorkerEvent::Done { reason: DoneReason::Finished, step: 9 }), seconds(3));
    assert_eq!(first.decide(exited(0), seconds(3)), [Effect::Finish(Outcome::Finished)]);
    let mut ledger = first.ledger().clone();
    ledger.refresh();
    let ends = |resumed_from: u64, steps: &[u64]| {
        let mut again = Policy::new(limits(), 0, ledger.clone(), None);
        again.set_durable_step(Some(resumed_from));
        again.decide(Event::Begin, seconds(0));
        again.decide(hello_from("cpu", Some(resumed_from)), seconds(1));
        for taken in steps {
            again.decide(step(*taken), seconds(2));
        }
        again.decide(Event::Request(Request::Stop), seconds(3));
        again.decide(exited(3), seconds(4))
    };
    assert_eq!(ends(9, &[]), [Effect::Finish(Outcome::Finished)]);
    assert_eq!(ends(4, &[5]), [Effect::Finish(Outcome::Stopped)], "rolled back");
    assert_eq!(ends(9, &[10]), [Effect::Finish(Outcome::Stopped)], "trained on");
}
