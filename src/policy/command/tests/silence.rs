//! Commands that show no sign of life.

use super::{AGAIN, PLAIN, Script, StartedBy, seconds, trains};
use crate::policy::event::{Effect, Event};

#[test]
fn a_command_that_hangs_and_cannot_start_again_is_left_alone_with_the_way_out() {
    let alarm = |command| {
        trains(command).decide(Event::Tick, seconds(86_400)).into_iter().find_map(|effect| match effect {
            Effect::Alarm { text, .. } => Some(text),
            _ => None,
        })
    };
    let way = "with `restart: from_start` in a run file it would start over";
    assert!(alarm(PLAIN).is_some_and(|text| text.contains(way)));
    let watched = Script { started_by: StartedBy::User { may_end: false }, ..PLAIN };
    assert!(alarm(watched).is_some_and(|text| text.ends_with("left alone")), "the keeper did not start it");
    assert_eq!(alarm(AGAIN), None, "it is ended");
}
