//! Watches the run directory while the run continues. If it is moved or deleted, the worker can no longer save, and the
//! run cannot be found.

use super::keeper_state::Keeper;
use crate::policy::event::Effect;
use crate::policy::lifecycle::Outcome;
use crate::protocol::control::JournalKind;
use crate::protocol::worker::Level;
use crate::store::run_dir::MAY_BE_MISSING;
use rustix::process::{Pid, getppid};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval between checks.
const RHYTHM: Duration = Duration::from_secs(1);

/// A directory that must stay in place.
#[derive(Debug)]
pub struct RunDirWatch {
    path: PathBuf,
    identity: Option<(u64, u64)>,
    looked: Instant,
    missing: Option<Instant>,
    /// The process that restarts the keeper when it dies.
    parent: Option<Pid>,
}

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Unchanged.
    Same,
    /// The directory has disappeared.
    Missing,
    /// The directory is back.
    Back,
    /// The directory has been missing for too long.
    Lost,
    /// The directory is there, but the keeper's parent is gone: no process would restart the keeper.
    Orphan,
}

impl RunDirWatch {
    /// Starts watching the directory at `path`, in its current state.
    #[must_use]
    pub fn new(path: &Path, now: Instant) -> Self {
        Self { path: path.to_owned(), identity: identity(path), looked: now, missing: None, parent: getppid() }
    }

    /// Checks the directory, if a check is due.
    pub fn check(&mut self, now: Instant) -> Presence {
        if now.duration_since(self.looked) < RHYTHM {
            return Presence::Same;
        }
        self.looked = now;
        if self.parent.is_some() && getppid() != self.parent {
            self.parent = None;
            return Presence::Orphan;
        }
        let there = identity(&self.path) == self.identity;
        match (there, self.missing) {
            (true, Some(_)) => {
                self.missing = None;
                Presence::Back
            }
            (false, None) => {
                self.missing = Some(now);
                Presence::Missing
            }
            (false, Some(since)) if now.duration_since(since) >= MAY_BE_MISSING => Presence::Lost,
            (true, None) | (false, Some(_)) => Presence::Same,
        }
    }
}

impl Keeper {
    /// Checks the run directory: without it, the run can neither be found nor continue.
    pub(super) fn check_run_dir(&mut self) {
        let path = self.run_dir.path().display();
        let (level, text) = match self.files.run_dir.check(Instant::now()) {
            Presence::Same => return,
            Presence::Back => (Level::Info, format!("{path} is back")),
            Presence::Orphan => {
                let text = "the process that restarts the keeper is gone: if this keeper dies, resume the run yourself";
                (Level::Warn, text.to_owned())
            }
            Presence::Missing => {
                (Level::Error, format!("{path} was moved or deleted; move it back within a minute, or the run ends"))
            }
            Presence::Lost => {
                // The worker notices that its keeper is gone, and ends.
                let why = format!("{path} was moved or deleted during the run");
                return self.perform(vec![Effect::Finish(Outcome::NeedsPerson(why))], None);
            }
        };
        self.recorder.note(level, JournalKind::Health, text);
    }
}

/// Returns device and inode of the file behind a path.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let data = fs::metadata(path).ok()?;
    Some((data.dev(), data.ino()))
}

#[cfg(test)]
mod tests {
    use super::{MAY_BE_MISSING, Presence, RHYTHM, RunDirWatch};
    use std::fs;
    use std::time::Instant;
    use tempfile::TempDir;

    #[test]
    fn a_moved_directory_is_missed_and_may_come_back() {
        let folder = TempDir::new().unwrap();
        let (here, there) = (folder.path().join("run"), folder.path().join("elsewhere"));
        fs::create_dir(&here).unwrap();
        let mut now = Instant::now();
        let mut home = RunDirWatch::new(&here, now);
        let mut look = |later| {
            now += later;
            home.check(now)
        };
        assert_eq!(look(RHYTHM), Presence::Same);
        fs::rename(&here, &there).unwrap();
        assert_eq!(look(RHYTHM / 2), Presence::Same, "looked too often");
        assert_eq!(look(RHYTHM), Presence::Missing);
        assert_eq!(look(RHYTHM), Presence::Same, "said twice");
        fs::rename(&there, &here).unwrap();
        assert_eq!(look(RHYTHM), Presence::Back);
        fs::rename(&here, &there).unwrap();
        fs::create_dir(&here).unwrap();
        assert_eq!(look(RHYTHM), Presence::Missing, "another directory of that name is not it");
        assert_eq!(look(MAY_BE_MISSING), Presence::Lost);
    }
}
