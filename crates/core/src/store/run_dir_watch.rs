//! Watches that the directory of a living run stays in place: without it the run can neither save nor be found. One rule for
//! the keeper, and for a harness without a keeper.

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a directory that was moved or deleted may be missing.
pub const MAY_BE_MISSING: Duration = Duration::from_mins(1);
/// How long its disk may be away: it was not deleted, and is the same once it is mounted again.
const MAY_BE_UNMOUNTED: Duration = Duration::from_hours(1);

/// A directory that must stay in place.
#[derive(Debug)]
pub struct RunDirWatch {
    path: PathBuf,
    /// The directory itself; none if it could not be opened.
    held: Option<File>,
    missing: Option<Instant>,
}

/// Why a directory is not at its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// It was moved or deleted.
    Moved,
    /// It has no path at all: its disk is not mounted.
    Unmounted,
}

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Unchanged.
    Same,
    /// The directory has disappeared.
    Missing(Loss),
    /// The directory is back.
    Back,
    /// The directory has been missing for too long.
    Lost(Loss),
}

impl Loss {
    fn patience(self) -> Duration {
        match self {
            Self::Moved => MAY_BE_MISSING,
            Self::Unmounted => MAY_BE_UNMOUNTED,
        }
    }
}

impl RunDirWatch {
    /// Starts watching the directory at `path`, in its current state.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        let held = open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        Self { path: path.to_owned(), held: held.ok().map(File::from), missing: None }
    }

    /// Checks the directory.
    pub fn check(&mut self, now: Instant) -> Presence {
        let loss = self.held.as_ref().and_then(|held| find_loss(&self.path, held));
        match (loss, self.missing) {
            (None, Some(_)) => {
                self.missing = None;
                Presence::Back
            }
            (Some(loss), None) => {
                self.missing = Some(now);
                Presence::Missing(loss)
            }
            (Some(loss), Some(since)) if now.duration_since(since) >= loss.patience() => Presence::Lost(loss),
            (None, None) | (Some(_), Some(_)) => Presence::Same,
        }
    }

    /// Forgets since when the directory is missing: another process watches it.
    pub fn forget(&mut self) {
        self.missing = None;
    }
}

/// Returns why a directory is not at its path; none if it is.
fn find_loss(path: &Path, held: &File) -> Option<Loss> {
    let (own, here) = (held.metadata(), fs::metadata(path));
    let is_deleted = match &own {
        Ok(own) if here.is_ok_and(|here| identity(&here) == identity(own)) => return None,
        Ok(own) => own.nlink() == 0,
        // The server of a shared folder knows it no more.
        Err(error) => error.raw_os_error() == Some(Errno::STALE.raw_os_error()),
    };
    // The kernel knows the path of an open directory, wherever it was moved to; one of a disk that is not mounted has none.
    let now = fs::read_link(format!("/proc/self/fd/{}", held.as_raw_fd())).and_then(fs::metadata);
    let is_elsewhere = now.is_ok_and(|now| own.is_ok_and(|own| identity(&now) == identity(&own)));
    Some(if is_elsewhere || is_deleted { Loss::Moved } else { Loss::Unmounted })
}

/// Returns device and inode.
fn identity(data: &fs::Metadata) -> (u64, u64) {
    (data.dev(), data.ino())
}

#[cfg(test)]
mod tests {
    use super::{Loss, MAY_BE_MISSING, MAY_BE_UNMOUNTED, Presence, RunDirWatch};
    use std::fs;
    use std::io::Write;
    use std::path::Path;
    use std::process::Command;
    use std::time::{Duration, Instant};
    use tempfile::TempDir;

    const SOON: Duration = Duration::from_secs(1);

    #[test]
    fn a_moved_directory_is_missed_and_may_come_back() {
        let folder = TempDir::new().unwrap();
        let (here, there) = (folder.path().join("run"), folder.path().join("elsewhere"));
        fs::create_dir(&here).unwrap();
        let mut now = Instant::now();
        let mut watch = RunDirWatch::new(&here);
        let mut look = |later| {
            now += later;
            watch.check(now)
        };
        assert_eq!(look(SOON), Presence::Same);
        fs::rename(&here, &there).unwrap();
        assert_eq!(look(SOON), Presence::Missing(Loss::Moved));
        assert_eq!(look(SOON), Presence::Same, "said twice");
        fs::rename(&there, &here).unwrap();
        assert_eq!(look(SOON), Presence::Back);
        fs::rename(&here, &there).unwrap();
        fs::create_dir(&here).unwrap();
        assert_eq!(look(SOON), Presence::Missing(Loss::Moved), "another directory of that name is not it");
        assert_eq!(look(MAY_BE_MISSING), Presence::Lost(Loss::Moved));
    }

    #[test]
    fn a_deleted_directory_is_lost_after_a_minute_that_nobody_else_watched_it() {
        let folder = TempDir::new().unwrap();
        let here = folder.path().join("run");
        fs::create_dir(&here).unwrap();
        let (now, mut watch) = (Instant::now(), RunDirWatch::new(&here));
        fs::remove_dir_all(&here).unwrap();
        assert_eq!(watch.check(now), Presence::Missing(Loss::Moved));
        watch.forget();
        assert_eq!(watch.check(now + MAY_BE_MISSING), Presence::Missing(Loss::Moved));
        assert_eq!(watch.check(now + 2 * MAY_BE_MISSING), Presence::Lost(Loss::Moved));
    }

    #[test]
    fn a_disk_that_is_away_for_some_minutes_ends_nothing() {
        let folder = TempDir::new().unwrap();
        let (disk, here) = (folder.path().join("disk"), folder.path().join("disk/run"));
        fs::create_dir(&disk).unwrap();
        let runs = |program: &str, words: &[&str], at: &Path| {
            Command::new(program).args(words).arg(at).output().is_ok_and(|said| said.status.success())
        };
        if !runs("mount", &["-t", "tmpfs", "-o", "size=1m", "tmpfs"], &disk) {
            let _ = writeln!(std::io::stderr(), "not tested here: a tmpfs cannot be mounted");
            return;
        }
        fs::create_dir(&here).unwrap();
        let (now, mut watch) = (Instant::now(), RunDirWatch::new(&here));
        let unmounted = runs("umount", &["-l"], &disk);
        assert!(unmounted && !here.exists());
        assert_eq!(watch.check(now), Presence::Missing(Loss::Unmounted));
        assert_eq!(watch.check(now + 10 * MAY_BE_MISSING), Presence::Same);
        assert_eq!(watch.check(now + MAY_BE_UNMOUNTED), Presence::Lost(Loss::Unmounted));
    }
}
