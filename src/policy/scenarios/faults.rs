//! Faults: the rung that relieves each, and those that no rung relieves.

use super::{ASKED, Scenario};
use crate::config::knobs::Relief;
use crate::policy::event::{Effect, Event, Evidence, Signal};
use crate::policy::lifecycle::{Back, Lifecycle, Outcome};
use crate::policy::moves::Move;
use crate::policy::reason::Reason;
use crate::policy::tests::{KILLED, exited, failed, seconds, starts};
use crate::protocol::cause::Cause;
use crate::protocol::exit::Exit;
use crate::protocol::worker::{FailureClass, Order};

#[test]
fn five_skipped_steps_in_a_row_shift_to_a_rung_for_numerics() {
    let mut scenario = Scenario::begin(true);
    scenario.steps(100, 1.0);
    assert!(!scenario.skip(4).contains(&ASKED));
    assert!(scenario.skip(1).contains(&ASKED));
    assert_eq!(scenario.end(), [3]);
}

#[test]
fn a_device_fault_takes_the_rung_for_kernels_then_the_safest() {
    let mut scenario = Scenario::begin(true);
    assert_eq!(starts(&scenario.fail(FailureClass::DeviceFault)), [1]);
    scenario.steps(50, 1.0);
    scenario.save();
    assert_eq!(starts(&scenario.fail(FailureClass::DeviceFault)), [3]);
    scenario.steps(100, 1.0);
    scenario.save();
    assert_eq!(starts(&scenario.fail(FailureClass::DeviceFault)), [3], "there is none below");
}

#[test]
fn a_hang_is_restarted_unchanged_once() {
    let mut scenario = Scenario::begin(true);
    let hang = |scenario: &mut Scenario| {
        scenario.now += seconds(1000);
        let effects = scenario.tell(Event::Tick);
        let told = |text: &str| text.starts_with("hang: no progress for 10 s while training");
        assert!(
            matches!(&effects[..], [Effect::Journal(_, _, text), Effect::Signal(Signal::Terminate)] if told(text)),
            "{effects:?}"
        );
        assert!(scenario.policy.life().why().is_some_and(|why| told(&why)), "the state says why it stops");
        let started = starts(&scenario.tell(KILLED));
        scenario.resume(scenario.policy.position.durable);
        started
    };
    scenario.steps(100, 1.0);
    scenario.save();
    assert_eq!(hang(&mut scenario), [0]);
    scenario.steps(200, 1.0);
    scenario.save();
    assert_eq!(hang(&mut scenario), [1], "the second one: fewer kernels");
}

#[test]
fn faults_that_no_rung_relieves_stop_with_advice() {
    for (class, number, words) in [
        (FailureClass::GpuLost, None, "restart the machine"),
        (FailureClass::Xid, Some(79), "slot and firmware"),
        (FailureClass::Xid, Some(48), "replace the GPU"),
        (FailureClass::Xid, Some(119), "update the driver"),
    ] {
        let evidence = || Event::Evidence(Evidence { class, number, text: "seen".to_owned() });
        let mut living = Scenario::begin(true);
        let effects = living.tell(evidence());
        assert!(effects.contains(&ASKED), "it may still save: {effects:?}");
        living.tell(KILLED);
        let mut dying = Scenario::begin(true);
        dying.tell(failed(FailureClass::DeviceFault));
        let cause = Cause { xid: number, ..Cause::new(class, vec!["seen".to_owned()]) };
        dying.tell(Event::Exited(Exit::with_code(11), cause));
        for scenario in [living, dying] {
            let life = scenario.policy.life();
            let Lifecycle::Over(Outcome::NeedsPerson(Reason::NoRestartHelps { fault, unsaved: None })) = life else {
                panic!("{life:?}")
            };
            assert!(fault.class == class && fault.advice.contains(words), "{fault:?}");
        }
    }
    let mut note = Scenario::begin(true);
    note.tell(Event::Evidence(Evidence { class: FailureClass::Xid, number: Some(63), text: "seen".to_owned() }));
    assert!(matches!(note.policy.life(), Lifecycle::Running(_)), "a note");
    assert_eq!(starts(&note.tell(KILLED)), [0]);
}

#[test]
fn out_of_host_memory_loads_sparingly_once_then_needs_attention() {
    let mut scenario = Scenario::begin(true);
    let kill = |scenario: &mut Scenario| {
        let cause = Cause::new(FailureClass::HostOutOfMemory, vec!["Killed process 7".to_owned()]);
        let effects = scenario.tell(Event::Exited(Exit::by_signal(9), cause));
        scenario.resume(scenario.policy.position.durable);
        effects
    };
    assert!(!scenario.policy.ledger().is_lean());
    assert_eq!(starts(&kill(&mut scenario)), [0], "no rung of the ladder");
    assert!(scenario.policy.ledger().is_lean());
    let effects = kill(&mut scenario);
    assert!(matches!(effects.last(), Some(Effect::Finish(Outcome::NeedsPerson(Reason::HostMemory(_))))), "{effects:?}");
    let mut plain = Scenario::begin(true);
    plain.tell(KILLED);
    assert!(!plain.policy.ledger().is_lean(), "a kill without evidence says nothing about memory");
}

#[test]
fn data_that_fail_twice_are_left_out() {
    let mut scenario = Scenario::begin(true);
    scenario.steps(50, 1.0);
    scenario.save();
    let mut last = Vec::new();
    for _ in 0..2 {
        scenario.steps(149, 1.0);
        last = scenario.fail(FailureClass::Panic);
        scenario.tell(Event::Tick);
        scenario.now += seconds(5);
        scenario.tell(Event::Tick);
        scenario.resume(Some(50));
    }
    assert!(last.contains(&Effect::LeaveOut { from: 149 * 32, units: 32 }), "{last:?}");
    let mut kills = Scenario::begin(true);
    for _ in 0..2 {
        kills.steps(149, 1.0);
        last = kills.tell(KILLED);
        kills.resume(None);
    }
    assert!(!last.iter().any(|effect| matches!(effect, Effect::LeaveOut { .. })), "a kill does not blame the data");
}

#[test]
fn a_loss_that_jumps_goes_back_and_leaves_the_data_out() {
    let mut scenario = Scenario::begin(true);
    scenario.steps(50, 1.0);
    scenario.save();
    assert!(scenario.steps(300, 1.0).is_empty());
    let effects = scenario.steps(303, 9.0);
    assert!(effects.contains(&Effect::Order(Order::Stop { checkpoint: false })), "not worth saving: {effects:?}");
    let effects = scenario.tell(exited(3));
    let back = Back { before: 301, steps: 100, skip: Some((200 * 32, 400 * 32)) };
    assert!(matches!(&effects[..], [Effect::RollBack(found), Effect::Start(_)] if *found == back), "{effects:?}");
}

#[test]
fn a_loss_that_jumps_each_time_ends_on_a_rung_that_relieves_numerics() {
    let rungs_after_jumps = |saved: bool, skip: u64| {
        let mut scenario = Scenario::begin(true);
        scenario.policy.limits.watch.spike.skip = skip;
        if saved {
            scenario.steps(50, 1.0);
            scenario.save();
        }
        let mut jump = || {
            scenario.steps(300, 1.0);
            scenario.steps(303, 9.0);
            let effects = scenario.tell(exited(3));
            scenario.resume(saved.then_some(50));
            effects.iter().find_map(|effect| if let Effect::Start(start) = effect { Some(start.rung) } else { None })
        };
        [jump(), jump(), jump(), jump()]
    };
    let safe = Scenario::begin(true).policy.nearest_rung(Relief::Numerics);
    assert_eq!(rungs_after_jumps(true, 200), [Some(0), Some(0), Some(0), safe]);
    assert_eq!(rungs_after_jumps(false, 200)[0], safe, "without a checkpoint the same steps would follow");
    assert_eq!(rungs_after_jumps(true, 0)[..2], [Some(0), safe], "the same data led to the same jump");
}

#[test]
fn a_way_back_that_is_proposed_stays_when_a_shift_is_proposed() {
    let mut scenario = Scenario::begin(false);
    scenario.steps(50, 1.0);
    scenario.save();
    scenario.steps(300, 1.0);
    scenario.steps(303, 9.0);
    let safe = scenario.policy.nearest_rung(Relief::Numerics).unwrap();
    let open = |scenario: &Scenario| scenario.policy.ledger().proposal.as_ref().map(|proposal| proposal.what);
    assert!(matches!(open(&scenario), Some(Move::RollBack { to: 0, .. })));
    scenario.skip(5);
    assert!(matches!(open(&scenario), Some(Move::RollBack { to, .. }) if to == safe), "{:?}", open(&scenario));
}

#[test]
fn the_losses_of_a_searchs_phases_are_not_compared() {
    let mut scenario = Scenario::begin(true);
    for cycle in 0..20 {
        let begin = cycle * 100;
        assert!(scenario.steps_of_phase(begin + 70, 1.0, false).is_empty(), "cycle {cycle}");
        assert!(scenario.steps_of_phase(begin + 100, 9.0, true).is_empty(), "cycle {cycle}");
    }
    // Each phase is watched on its own.
    scenario.steps_of_phase(2010, 9.0, true);
    let effects = scenario.steps_of_phase(2013, 50.0, true);
    assert!(effects.contains(&Effect::Order(Order::Stop { checkpoint: false })), "{effects:?}");
}

#[test]
fn divergence_is_only_ever_proposed() {
    let mut scenario = Scenario::begin(true);
    scenario.policy.limits.watch.spike.sigma = 0.0;
    scenario.steps(1000, 1.0);
    let effects = scenario.steps(2000, 3.0);
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Order(_))), "{effects:?}");
    assert!(scenario.proposal().contains("above 2 times its best"), "{}", scenario.proposal());
    assert!(scenario.proposal().ends_with("on to safe"), "{}", scenario.proposal());
}
