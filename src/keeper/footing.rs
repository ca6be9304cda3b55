//! Watches what the keeper depends on while the run continues: the run directory, and the process that restarts it.

use super::keeper_state::Keeper;
use crate::policy::event::Event;
use crate::policy::reason::Reason;
use crate::protocol::control::JournalKind;
use crate::protocol::worker::Level;
use crate::store::run_dir_watch::{Loss, Presence, RunDirWatch};
use rustix::process::{Pid, getppid};
use std::path::Path;
use std::time::{Duration, Instant};

/// Interval between checks.
const RHYTHM: Duration = Duration::from_secs(1);

/// The run directory and the keeper's parent.
#[derive(Debug)]
pub struct Footing {
    run_dir: RunDirWatch,
    looked: Instant,
    /// The process that restarts the keeper when it dies.
    parent: Option<Pid>,
}

impl Footing {
    /// Starts watching, in the current state.
    #[must_use]
    pub fn new(run_dir: &Path, now: Instant) -> Self {
        Self { run_dir: RunDirWatch::new(run_dir), looked: now, parent: getppid() }
    }

    /// Reports whether a check is due.
    fn is_due(&mut self, now: Instant) -> bool {
        let due = now.duration_since(self.looked) >= RHYTHM;
        if due {
            self.looked = now;
        }
        due
    }

    /// Reports, once, that no process would restart the keeper.
    fn has_lost_parent(&mut self) -> bool {
        let lost = self.parent.is_some() && getppid() != self.parent;
        if lost {
            self.parent = None;
        }
        lost
    }
}

impl Keeper {
    /// Checks the run directory: without it, the run can neither be found nor continue.
    pub(super) fn check_run_dir(&mut self) {
        let now = Instant::now();
        if !self.files.footing.is_due(now) {
            return;
        }
        if self.files.footing.has_lost_parent() {
            let text = "the process that restarts the keeper is gone: if this keeper dies, resume the run yourself";
            self.recorder.note(Level::Warn, JournalKind::Health, text.to_owned());
        }
        let path = self.run_dir.path().display();
        let (level, text) = match self.files.footing.run_dir.check(now) {
            Presence::Same => return,
            Presence::Back => (Level::Info, format!("{path} is back")),
            Presence::Missing(Loss::Moved) => {
                (Level::Error, format!("{path} was moved or deleted; move it back within a minute, or the run ends"))
            }
            Presence::Missing(Loss::Unmounted) => {
                (Level::Error, format!("the disk of {path} is not mounted; mount it within an hour, or the run ends"))
            }
            Presence::Lost(loss) => {
                let why = if loss == Loss::Moved { Reason::Moved } else { Reason::Unmounted };
                return self.decide(Event::Homeless(why(path.to_string())), None);
            }
        };
        self.recorder.note(level, JournalKind::Health, text);
    }
}
