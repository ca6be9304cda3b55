//! Shared by `trial` and `drill`: starts a run and polls it until it is over.

use super::Failure;
use super::run::{has_room, load_run_file, start_keeper};
use crate::config::run::Run;
use crate::keeper::Launch;
use crate::protocol::control::{JournalRow, Status};
use crate::store::owners;
use crate::store::reader::{Reader, live_status};
use crate::store::run_dir::RunDir;
use crate::trainer::Trainer;
use std::path::Path;
use std::time::{Duration, Instant};

/// Interval between two polls.
const LOOK: Duration = Duration::from_millis(100);
/// Time a run without a keeper gets to have one again.
const PATIENCE: Duration = Duration::from_secs(20);

/// A run being polled.
pub struct Watched {
    /// Its run directory.
    pub dir: RunDir,
    heard: i64,
    alone_since: Option<Instant>,
}

/// Loads a run file and checks that it can work.
pub fn prepare(
    config: Option<&Path>,
    overrides: &[(String, String)],
    device: &str,
    runs: &Path,
    trainer: &dyn Trainer,
) -> Result<Run, Failure> {
    let run = load_run_file(config, overrides, device, trainer)?;
    let prospect = trainer.look_ahead(&run, device).map_err(Failure::of)?;
    has_room(runs, &run, prospect.parameters)?;
    Ok(run)
}

impl Watched {
    /// Starts a run in a directory that was made for it.
    pub fn start(dir: RunDir, launch: &Launch) -> Result<Self, Failure> {
        start_keeper(&dir, Some(launch))?;
        Ok(Self { dir, heard: 0, alone_since: None })
    }

    /// Waits for the next poll and returns the status and the journal lines since the last one. Returns
    /// an error once the run has no keeper any more.
    pub fn poll(&mut self) -> Result<(Option<Status>, Vec<JournalRow>), Failure> {
        std::thread::sleep(LOOK);
        let status = live_status(&self.dir);
        let mut rows = Reader::open(&self.dir).and_then(|reader| reader.journal(1000)).unwrap_or_default();
        rows.retain(|row| row.id > self.heard);
        self.heard = rows.iter().map(|row| row.id).max().unwrap_or(self.heard);
        let alone = is_alone(&self.dir) && !status.as_ref().is_some_and(|status| status.state.is_over());
        self.alone_since = self.alone_since.filter(|_| alone).or(alone.then(Instant::now));
        if self.alone_since.is_some_and(|since| since.elapsed() > PATIENCE) {
            let name = self.dir.name();
            return Err(Failure::new(1, format!("the keeper of {name} is gone; see its keeper.log")));
        }
        Ok((status, rows))
    }
}

/// Reports whether the run has no keeper and no parent that will start one again.
fn is_alone(dir: &RunDir) -> bool {
    owners::keeper(dir).is_none() && owners::parent_record(dir).is_none()
}
