//! Updates that a command leaves out, known by their number.

use super::super::super::event::{Effect, Event};
use super::super::super::tests::{KILLED, hello_from, saved, seconds, starts, step};
use super::{PLAIN, RESUMES, trains};
use crate::protocol::skips::UpdateCounts;
use crate::protocol::worker::{CommandNews, Event as WorkerEvent};

fn counts(due: u64, skipped: u64, rescaled: u64) -> Event {
    Event::Worker(WorkerEvent::Command { news: CommandNews::Updates(UpdateCounts { due, skipped, rescaled }) })
}

#[test]
fn a_lasting_share_of_skipped_updates_shifts_to_a_rung_that_relieves_numerics() {
    // 10 % of the batches dropped by the script, 12 % left out by a scaler.
    for (skipped, rescaled) in [(20, 0), (36, 36)] {
        let mut policy = trains(RESUMES);
        policy.decide(step(10), seconds(2));
        policy.decide(saved(10), seconds(2));
        assert_eq!(policy.decide(counts(1, 0, 0), seconds(3)), []);
        let effects = policy.decide(counts(300, skipped, rescaled), seconds(4));
        assert!(effects.iter().any(|effect| matches!(effect, Effect::Order(_))), "{effects:?}");
        assert_eq!(starts(&policy.decide(KILLED, seconds(5))), [3], "{skipped} of 300");
        policy.decide(hello_from("cpu", Some(10)), seconds(6));
        assert_eq!(policy.decide(counts(50, 1, 1), seconds(7)), [], "the next worker counts anew");
    }
}

#[test]
fn a_scaler_that_looks_for_its_scale_and_rare_skips_change_nothing() {
    let mut policy = trains(RESUMES);
    for (due, skipped) in [(20, 8), (60, 16), (2_060, 17), (4_060, 18)] {
        assert_eq!(policy.decide(counts(due, skipped, skipped), seconds(due)), [], "{due}");
    }
    let mut policy = trains(PLAIN);
    assert_eq!(policy.decide(counts(1_000, 10, 0), seconds(2)), []);
}

#[test]
fn a_command_that_would_lose_its_work_goes_on_and_that_is_noted() {
    let mut policy = trains(PLAIN);
    let effects = policy.decide(counts(200, 20, 0), seconds(2));
    let noted =
        |effect: &Effect| matches!(effect, Effect::Journal(_, _, text) if text.contains("20 of the last 200 updates"));
    assert!(effects.iter().any(noted), "{effects:?}");
    assert_eq!(starts(&effects), [0; 0]);
}
