//! Outputs that `checkpoints.match` misses.

use super::{KILLED, RESUMES, Script, StartedBy, seconds, starts, trains};
use crate::policy::event::{Effect, Event};
use crate::policy::lifecycle::Outcome;
use crate::policy::reason::Reason;
use crate::protocol::worker::{CommandNews, Event as WorkerEvent};

#[test]
fn outputs_that_no_pattern_matches_are_not_overwritten() {
    let unmatched = || {
        let news = CommandNews::Unmatched { pattern: "out/step_*.pt".to_owned() };
        Event::Worker(WorkerEvent::Command { news })
    };
    let is_named = |why: &Reason| matches!(why, Reason::UnmatchedOutputs { pattern, .. } if pattern == "out/step_*.pt");
    let end = |limits: Script| {
        let mut policy = trains(limits);
        policy.decide(unmatched(), seconds(2));
        let effects = policy.decide(KILLED, seconds(2));
        (starts(&effects), matches!(effects.last(), Some(Effect::Finish(Outcome::NeedsPerson(why))) if is_named(why)))
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
    let Some(Effect::Finish(Outcome::NeedsPerson(why @ Reason::UnknownStart(_)))) = effects.last() else {
        panic!("{effects:?}")
    };
    assert!(starts(&effects).is_empty() && why.to_string().contains("--from CHECKPOINT"), "{why}");
    let over = Script { from_start: true, ..adopted };
    assert_eq!(starts(&trains(over).decide(KILLED, seconds(2))), [0], "the run file allows it");
    let mut own = trains(adopted);
    own.note_start(StartedBy::Run);
    assert_eq!(starts(&own.decide(KILLED, seconds(2))), [0], "the run started it");
}
