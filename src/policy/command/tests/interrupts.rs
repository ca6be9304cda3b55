//! Commands that their users interrupt with Ctrl-C.

use super::{PLAIN, RESUMES, Script, StartedBy, seconds, starts, trains};
use crate::policy::event::{Effect, Event};
use crate::policy::lifecycle::Outcome;
use crate::protocol::cause::Cause;
use crate::protocol::exit::Exit;
use crate::protocol::worker::FailureClass;

#[test]
fn an_adopted_command_that_its_user_interrupts_has_stopped() {
    let interrupted = |command: Script, by_user: bool| {
        let cause = Cause { by_user, ..Cause::new(FailureClass::Killed, vec!["KeyboardInterrupt".to_owned()]) };
        trains(command).decide(Event::Exited(Exit::of_command(None, None), cause), seconds(2))
    };
    let adopted = Script { companion_within: None, started_by: StartedBy::User { may_end: false }, ..PLAIN };
    let ended = interrupted(adopted, true);
    assert!(ended.contains(&Effect::Finish(Outcome::Stopped)), "{ended:?}");
    let killed = interrupted(adopted, false);
    assert!(killed.iter().any(|effect| matches!(effect, Effect::Finish(Outcome::NeedsPerson(_)))), "{killed:?}");
    assert_eq!(starts(&interrupted(RESUMES, true)), [0], "nobody types into the terminal of a command of the run");
}
