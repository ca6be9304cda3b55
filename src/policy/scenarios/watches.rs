//! The keeper's watches over a live worker: an idle GPU, an old checkpoint and planned restarts; and a
//! GPU shared with other processes.

use super::{ASKED, Scenario};
use crate::config::knobs::Relief;
use crate::config::units::{Every, Time};
use crate::policy::event::{Effect, Event, Limits, Signal};
use crate::policy::ledger::Ledger;
use crate::policy::lifecycle::{Lifecycle, Outcome};
use crate::policy::machine::Policy;
use crate::policy::reason::Reason;
use crate::policy::room::{CardUse, Holder};
use crate::policy::spill::GpuLoad;
use crate::policy::tests::{KILLED, exited, failed, hello_from, limits, saved, seconds, starts};
use crate::protocol::capability::Resumption;
use crate::protocol::worker::{Event as WorkerEvent, FailureClass, Order, Step};

fn watched(change: impl FnOnce(&mut Limits)) -> Scenario {
    let mut limits = limits();
    // No test here is about silence.
    limits.watch.hang_min = Time::seconds(1e6);
    limits.watch.hang.first_steps = Time::seconds(1e6);
    change(&mut limits);
    Scenario::with_policy(Policy::new(limits, 0, Ledger::default(), None))
}

/// Passes time and returns all resulting effects. With `steps`, one step per second.
fn wait(scenario: &mut Scenario, time: u64, steps: bool) -> Vec<Effect> {
    let mut effects = Vec::new();
    for _ in 0..time {
        scenario.now += seconds(1);
        if steps {
            effects.extend(scenario.steps(scenario.step + 1, 1.0));
        }
        effects.extend(scenario.tell(Event::Tick));
    }
    effects
}

fn alarms(effects: &[Effect]) -> Vec<&str> {
    let text = |effect: &Effect| matches!(effect, Effect::Alarm { .. });
    let told = effects.iter().filter(|effect| text(effect));
    told.map(|effect| if let Effect::Alarm { text, .. } = effect { text.as_str() } else { "" }).collect()
}

const SAVE: Effect = Effect::Order(Order::Checkpoint);
const TERMINATE: Effect = Effect::Signal(Signal::Terminate);

#[test]
fn an_overdue_checkpoint_is_requested_and_its_absence_is_a_hang() {
    let age = |limits: &mut Limits| limits.watch.checkpoint_age = Every::Seconds(100.0);
    let mut scenario = watched(age);
    assert_eq!(wait(&mut scenario, 99, true).iter().filter(|effect| **effect == SAVE).count(), 0);
    let effects = wait(&mut scenario, 2, true);
    assert!(effects.contains(&SAVE), "{effects:?}");
    assert!(alarms(&effects)[0].contains("there is no checkpoint after"), "{effects:?}");
    let effects = scenario.tell(saved(scenario.step));
    assert_eq!(effects, [Effect::AlarmOver("checkpoint age")]);
    assert!(wait(&mut scenario, 101, true).contains(&SAVE), "a hundred seconds later again");
    let effects = wait(&mut scenario, 421, true);
    assert_eq!(effects.iter().filter(|effect| **effect == SAVE).count(), 0, "asked once");
    assert!(effects.contains(&TERMINATE), "seven minutes without an answer: {effects:?}");
}

#[test]
fn a_failed_save_is_a_hang_unless_the_disk_is_full() {
    // The probe's reading of free space may come late, so the worker's word counts too.
    for (probed, of_disk) in [(false, false), (true, false), (false, true)] {
        let low = probed || of_disk;
        let mut scenario = watched(|limits| limits.watch.checkpoint_age = Every::Seconds(100.0));
        scenario.tell(Event::DiskLow(probed));
        let fails = |scenario: &mut Scenario| {
            let message = "cannot write".to_owned();
            scenario.tell(Event::Worker(WorkerEvent::SaveFailed { step: 1, message, of_disk }))
        };
        assert_eq!(fails(&mut scenario), [], "a save of the worker's own rhythm costs nothing but its age");
        wait(&mut scenario, 101, true);
        let effects = fails(&mut scenario);
        assert_eq!(effects.contains(&TERMINATE), !low, "{effects:?}");
        assert!(low || matches!(scenario.policy.life(), Lifecycle::Stopping { .. }));
        assert!(!low || alarms(&effects)[0].contains("free some space"), "{effects:?}");
        assert!(!low || wait(&mut scenario, 101, true).contains(&SAVE), "and it is asked again");
        if low {
            fails(&mut scenario);
            let effects = scenario.tell(saved(scenario.step));
            assert_eq!(effects, [Effect::AlarmOver("checkpoint age")], "the alarm ends once a save works");
        }
    }
}

#[test]
fn the_age_has_its_limit_from_the_rhythm_or_none() {
    for (age, rhythm, limit) in [
        (Every::Auto, Every::Seconds(5.0), Some(1800)),
        (Every::Auto, Every::Seconds(3600.0), Some(7200)),
        (Every::Auto, Every::Epochs(1), Some(1800)),
        (Every::Auto, Every::Never, None),
        (Every::Seconds(60.0), Every::Never, Some(60)),
        (Every::Never, Every::Seconds(5.0), None),
    ] {
        let mut limits = limits();
        limits.watch.checkpoint_age = age;
        assert_eq!(limits.watch.checkpoint_limit(rhythm), limit.map(seconds), "{age} with {rhythm}");
    }
}

#[test]
fn a_planned_restart_saves_and_uses_no_budget() {
    let hourly = |limits: &mut Limits| {
        (limits.watch.restart_every, limits.watch.checkpoint_age) = (Every::Seconds(3600.0), Every::Never);
    };
    let mut scenario = watched(hourly);
    for _ in 0..10 {
        scenario.save();
        assert!(!wait(&mut scenario, 3500, true).contains(&ASKED));
        assert!((0..100).any(|_| wait(&mut scenario, 1, true).contains(&ASKED)));
        scenario.save();
        assert_eq!(scenario.end(), [0], "on the same rung");
    }
    assert_eq!(scenario.policy.ledger().budget.faults, 0);
    assert!(scenario.policy.ledger().budget.recent.is_empty(), "{:?}", scenario.policy.ledger().budget);
    let mut scenario = watched(|_| {});
    assert!(!wait(&mut scenario, 100_000, false).contains(&ASKED), "off unless it is set");
}

#[test]
fn an_idle_gpu_is_explained_and_never_restarts_a_run_that_steps() {
    let mut scenario = watched(|_| {});
    let mut effects = Vec::new();
    for _ in 0..600 {
        effects.extend(wait(&mut scenario, 1, true));
        effects.extend(scenario.tell(Event::Utilisation(Some(0.01))));
    }
    let told = alarms(&effects);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("the GPU has been below 5 % for 60 s: ") && told[0].contains("host"), "{told:?}");
    assert!(matches!(scenario.policy.life(), Lifecycle::Running(_)));
    let effects = scenario.tell(Event::Utilisation(Some(0.9)));
    assert!(effects.contains(&Effect::AlarmOver("utilisation")), "{effects:?}");
    let mut effects = Vec::new();
    for _ in 0..70 {
        effects.extend(wait(&mut scenario, 1, false));
        effects.extend(scenario.tell(Event::Utilisation(Some(0.0))));
    }
    assert!(alarms(&effects)[0].contains("a suspected hang; it counts as a hang after"), "{effects:?}");
}

#[test]
fn a_cause_that_no_rung_relieves_is_reported_once_with_the_fix() {
    let mut scenario = watched(|limits| limits.relieves = vec![Vec::new(); 4]);
    scenario.steps(10, 1.0);
    scenario.save();
    let mut effects = scenario.fail(FailureClass::DeviceOutOfMemory);
    assert_eq!(starts(&effects), [0], "as it was");
    scenario.steps(30, 1.0);
    scenario.save();
    effects.extend(scenario.fail(FailureClass::DeviceOutOfMemory));
    let told: Vec<&str> = effects
        .iter()
        .filter_map(|effect| if let Effect::Journal(_, _, text) = effect { Some(text.as_str()) } else { None })
        .filter(|text| text.starts_with("no rung below full helps against lack of memory"))
        .collect();
    let [told] = told[..] else { panic!("{effects:?}") };
    assert!(told.contains("relieves: [memory]") && told.contains("micro_batch") && told.contains("resume"), "{told}");
    for _ in 0..3 {
        scenario.tell(failed(FailureClass::DeviceOutOfMemory));
        scenario.tell(exited(10));
        scenario.now += seconds(60);
        scenario.tell(Event::Tick);
    }
    let Lifecycle::Over(Outcome::NeedsPerson(why @ Reason::NoProgress { unrelieved, .. })) = scenario.policy.life()
    else {
        panic!("{:?}", scenario.policy.life())
    };
    assert!(unrelieved.as_ref().is_some_and(|it| it.relief == Relief::Memory && it.why.is_none()), "{why:?}");
    assert!(why.to_string().contains("no rung below full helps against lack of memory: add a rung"), "{why}");
    let mut scenario = watched(|limits| limits.relieves = vec![Vec::new(); 4]);
    scenario.steps(10, 1.0);
    let effects = scenario.skip(30);
    let told = effects
        .iter()
        .filter(|effect| matches!(effect, Effect::Journal(_, _, text) if text.contains("helps against NaN losses")));
    assert_eq!(told.count(), 1, "{effects:?}");
}

#[test]
fn losses_that_stay_nan_end_the_run_at_the_second_restart_and_saves_meanwhile_are_no_progress() {
    let mut scenario = watched(|limits| limits.relieves = vec![Vec::new(); 4]);
    scenario.steps(10, 1.0);
    scenario.save();
    assert_eq!(starts(&scenario.fail(FailureClass::NonFinite)), [0]);
    scenario.steps(20, 1.0);
    scenario.save();
    let effects = scenario.fail(FailureClass::NonFinite);
    assert_eq!(starts(&effects), [0], "steps were finite in between: {effects:?}");
    scenario.skip(30);
    scenario.save();
    scenario.fail(FailureClass::NonFinite);
    let Lifecycle::Over(Outcome::NeedsPerson(Reason::NoFiniteLoss { unrelieved, .. })) = scenario.policy.life() else {
        panic!("{:?}", scenario.policy.life())
    };
    assert_eq!((unrelieved.relief, &unrelieved.why), (Relief::Numerics, &None));
}

const GIB: u64 = 1 << 30;

fn others(ours: u64, free: u64) -> Event {
    let holders = vec![Holder { pid: 77, name: Some("blender".to_owned()), bytes: 14 * GIB }];
    Event::Card(Some(CardUse { ours, free: free * GIB, holders, peaks: vec![Some(6 * GIB), None, None, None] }))
}

/// A run on a GPU with 2 GiB in use before it; its worker was killed while other processes took 14 GiB.
fn on_a_shared_card() -> Scenario {
    let mut policy = Policy::new(limits(), 0, Ledger::default(), None);
    policy.decide(Event::Vram(Some(2 * GIB)), seconds(0));
    policy.decide(Event::Begin, seconds(0));
    policy.decide(hello_from("cuda:0 X", None), seconds(1));
    let mut scenario = Scenario { policy, now: seconds(2), step: 0 };
    scenario.tell(KILLED);
    scenario
}

#[test]
fn on_a_shared_card_the_next_worker_starts_when_ours_is_gone_and_the_rung_fits() {
    for (ours, free, wanted) in [(6 * GIB, 2, false), (0, 4, false), (6 * GIB, 8, false), (0, 8, true)] {
        let mut scenario = on_a_shared_card();
        scenario.tell(others(ours, free));
        let effects = scenario.tell(Event::Vram(Some(16 * GIB)));
        assert_eq!(!starts(&effects).is_empty(), wanted, "{ours} of ours, {free} GiB free");
    }
    let mut scenario = on_a_shared_card();
    scenario.tell(Event::Card(None));
    assert!(starts(&scenario.tell(Event::Vram(Some(16 * GIB)))).is_empty(), "unknown holders: as before the run");
    assert_eq!(starts(&scenario.tell(Event::Vram(Some(2 * GIB)))), [0]);
}

#[test]
fn a_rung_that_does_not_fit_names_the_holder_of_the_gpu() {
    for (card, words) in [
        (others(0, 4), &["rung full needs 6144 MiB", "4096 MiB are free", "blender (pid 77) holds 14336 MiB"][..]),
        (others(GIB, 4), &["was not released", "1024 MiB"]),
        (Event::Card(None), &["was not released", "nvidia-smi"]),
    ] {
        let mut scenario = on_a_shared_card();
        scenario.tell(card);
        scenario.tell(Event::Vram(Some(16 * GIB)));
        scenario.now += seconds(51);
        scenario.tell(Event::Tick);
        let Lifecycle::Over(Outcome::NeedsPerson(why)) = scenario.policy.life() else {
            panic!("{:?}", scenario.policy.life())
        };
        let why = why.to_string();
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
    }
}

#[test]
fn memory_that_spilled_is_answered_like_a_full_one_or_proposed() {
    for (autopilot, is_command) in [(true, false), (false, false), (true, true)] {
        let mut scenario = Scenario::begin(autopilot);
        if is_command {
            scenario = watched(|limits| limits.capability.resumes = Resumption::Checkpoints);
        }
        let is_alone = autopilot && !is_command;
        scenario.tell(Event::GpuLoad(GpuLoad { memory: Some(0.99), is_capped: false, busy: Some(1.0) }));
        let mut effects = scenario.steps(40, 1.0);
        scenario.save();
        assert_eq!(alarms(&effects), [""; 0]);
        for step in 41..=100 {
            scenario.now += seconds(1);
            let taken = Step { step, samples: step * 32, loss: Some(1.0), compute_ms: 900.0, ..Step::default() };
            effects.extend(scenario.tell(Event::Worker(WorkerEvent::Step(taken))));
        }
        assert_eq!(alarms(&effects).len(), 1, "told once");
        assert!(effects.iter().any(|effect| matches!(effect, Effect::Trouble(FailureClass::Spilled, _))));
        assert_eq!(effects.contains(&ASKED), is_alone, "longer sequences slow down the steps of a command as well");
        assert_eq!(scenario.policy.proposal().is_some(), !is_alone);
        if is_alone {
            scenario.save();
            assert_eq!(scenario.end(), [3], "safe helps against lack of memory");
        }
    }
}
