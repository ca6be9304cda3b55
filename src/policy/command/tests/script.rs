//! Commands of every kind.

use crate::policy::command::{COMPANION_WAIT, CommandTimes, StartedBy};
use crate::policy::event::Limits;
use crate::policy::tests::limits;
use crate::protocol::capability::{Capability, Resumption};
use std::time::Duration;

/// A command, as its run file and its origin describe it.
#[derive(Clone, Copy)]
pub struct Script {
    pub resumes: bool,
    pub from_start: bool,
    pub started_by: StartedBy,
    pub save_within: Option<Duration>,
    pub old_after: Option<Duration>,
    pub companion_within: Option<Duration>,
}

impl Script {
    pub fn limits(self) -> Limits {
        let capability = Capability {
            resumes: if self.resumes { Resumption::Checkpoints } else { Resumption::Nothing },
            saves_on_signal: self.save_within.is_some(),
            may_start_over: self.from_start,
            may_end: true,
        };
        let Self { save_within, old_after, companion_within, .. } = self;
        Limits { capability, times: CommandTimes { save_within, old_after, companion_within }, ..limits() }
    }
}

pub const PLAIN: Script = Script {
    resumes: false,
    from_start: false,
    started_by: StartedBy::Run,
    save_within: None,
    old_after: None,
    companion_within: Some(COMPANION_WAIT),
};
pub const RESUMES: Script = Script { resumes: true, ..PLAIN };
pub const SAVES: Script = Script { save_within: Some(Duration::from_mins(1)), ..RESUMES };
pub const AGAIN: Script = Script { from_start: true, ..PLAIN };
