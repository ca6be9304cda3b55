//! Shared by `trial` and `drill`: starts a run and follows it until it is over.

use super::environment::NextStart;
use super::run::{has_room, launch_keeper, load_run_file};
use super::{Failure, line};
use crate::config::run::Run;
use crate::keeper::Launch;
use crate::protocol::control::Status;
use crate::store::owners;
use crate::store::reader::{Reader, live_status};
use crate::store::run_dir::RunDir;
use crate::trainer::Trainer;
use crate::untrusted::poll::poll;
use std::path::Path;
use std::time::{Duration, Instant};

/// Interval between two polls.
const INTERVAL: Duration = Duration::from_millis(100);
/// Time a run without a keeper gets to have one again.
const PATIENCE: Duration = Duration::from_secs(20);

/// A run being followed.
pub struct Watched {
    /// Its run directory.
    pub dir: RunDir,
    /// Id of the last journal line that was printed.
    printed: i64,
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
        let next = NextStart::first(&dir);
        launch_keeper(&dir, Some(launch), next)?;
        Ok(Self { dir, printed: 0, alone_since: None })
    }

    /// Prints the journal and calls `each` with every status until the run is over; returns its last status.
    ///
    /// # Errors
    /// Returns an error of `each`, or an error once the run has no keeper any more.
    pub fn follow(mut self, mut each: impl FnMut(&RunDir, &Status) -> Result<(), Failure>) -> Result<Status, Failure> {
        poll(INTERVAL, || self.observe(&mut each).transpose())
    }

    /// Returns the status of a run that is over.
    fn observe(
        &mut self,
        each: &mut impl FnMut(&RunDir, &Status) -> Result<(), Failure>,
    ) -> Result<Option<Status>, Failure> {
        let status = live_status(&self.dir);
        self.print_journal();
        self.check_keeper(status.as_ref())?;
        let Some(status) = status else { return Ok(None) };
        if status.state.has_end() && status.pid_keeper.is_none() {
            return Ok(Some(status));
        }
        each(&self.dir, &status)?;
        Ok(None)
    }

    fn print_journal(&mut self) {
        let rows = Reader::open(&self.dir).and_then(|reader| reader.journal(1000)).unwrap_or_default();
        for row in rows.iter().filter(|row| row.id > self.printed) {
            line!("  {}", row.text);
        }
        self.printed = rows.last().map_or(self.printed, |row| row.id);
    }

    fn check_keeper(&mut self, status: Option<&Status>) -> Result<(), Failure> {
        let alone = !owners::is_kept(&self.dir) && !status.is_some_and(|status| status.state.has_end());
        self.alone_since = self.alone_since.filter(|_| alone).or(alone.then(Instant::now));
        if self.alone_since.is_some_and(|since| since.elapsed() > PATIENCE) {
            let name = self.dir.name();
            return Err(Failure::new(1, format!("the keeper of {name} is gone; see its keeper.log")));
        }
        Ok(())
    }
}
