//! Outputs that `checkpoints.match` misses.

use super::{KILLED, RESUMES, Script, StartedBy, seconds, starts, trains};
use crate::policy::event::Event;
use crate::protocol::worker::{CommandNews, Event as WorkerEvent};

#[test]
fn outputs_that_no_pattern_matches_are_not_overwritten() {
    let unmatched = || {
        let news = CommandNews::Unmatched { pattern: "out/step_*.pt".to_owned() };
        Event::Worker(WorkerEvent::Command { news })
    };
    let end = |limits: Script| {
        let mut policy = trains(limits);
        policy.decide(unmatched(), seconds(2));
        let effects = policy.decide(KILLED, seconds(2));
        (
            starts(&effects),
            effects.iter().any(|effect| format!("{effect:?}").contains("overwrite the outputs `out/step_*.pt`")),
        )
    };
    assert_eq!(end(RESUMES), (vec![], true));
    assert_eq!(end(Script { from_start: true, ..RESUMES }), (vec![0], false), "the run file allows it");
    assert_eq!(starts(&trains(RESUMES).decide(KILLED, seconds(2))), [0], "it wrote none");
}

#[test]
fn what_an_adopted_command_had_is_not_overwritten_by_a_start_from_the_beginning() {
    let started_by = StartedBy::User { may_end: true };
    let adopted = Script { started_by, companion_within: None, ..RESUMES };
    let effects = trains(adopted).decide(KILLED, seconds(2));
    assert!(starts(&effects).is_empty() && format!("{effects:?}").contains("--from CHECKPOINT"), "{effects:?}");
    let over = Script { from_start: true, ..adopted };
    assert_eq!(starts(&trains(over).decide(KILLED, seconds(2))), [0], "the run file allows it");
    let mut own = trains(adopted);
    own.note_start(StartedBy::Run);
    assert_eq!(starts(&own.decide(KILLED, seconds(2))), [0], "the run started it");
}
