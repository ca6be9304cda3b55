//! Outputs that `checkpoints.match` misses.

use super::{CommandLimits, KILLED, RESUMES, seconds, starts, trains};
use crate::policy::event::Event;
use crate::protocol::worker::{CommandNews, Event as WorkerEvent};

#[test]
fn outputs_that_no_pattern_matches_are_not_overwritten() {
    let unmatched = || {
        let news = CommandNews::Unmatched { pattern: "out/step_*.pt".to_owned() };
        Event::Worker(WorkerEvent::Command { news })
    };
    let end = |limits: CommandLimits| {
        let mut policy = trains(limits);
        policy.decide(unmatched(), seconds(2));
        let effects = policy.decide(KILLED, seconds(2));
        (
            starts(&effects),
            effects.iter().any(|effect| format!("{effect:?}").contains("overwrite the outputs `out/step_*.pt`")),
        )
    };
    assert_eq!(end(RESUMES), (vec![], true));
    assert_eq!(end(CommandLimits { from_start: true, ..RESUMES }), (vec![0], false), "the run file allows it");
    assert_eq!(starts(&trains(RESUMES).decide(KILLED, seconds(2))), [0], "it wrote none");
}
