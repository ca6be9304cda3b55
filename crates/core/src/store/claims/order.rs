//! The order of the queue: one list of run directories, in a file of the user. A run is added when it is queued, moves to
//! the front when it gets its devices, and leaves at its end, but not with the machine: so the order outlives a reboot.
//! Runs that are not alive stand in nobody's way.

use crate::store::run_dir::write_private;
use crate::untrusted::file::{self, Limit};
use std::io;
use std::path::{Path, PathBuf};

/// Length from which runs whose directory is gone are dropped. Before, it may be on a disk that is not mounted.
const LONG: usize = 200;

/// The list, as it was read.
pub struct Order {
    file: PathBuf,
    runs: Vec<PathBuf>,
    is_changed: bool,
}

impl Order {
    /// Reads the list in a folder. One that is lost or damaged is empty: each waiting run adds itself again.
    pub fn read(folder: &Path) -> Self {
        let file = folder.join("order.json");
        let text = file::read(&file, Limit::Handwritten).unwrap_or_default();
        Self { runs: serde_json::from_slice(&text).unwrap_or_default(), file, is_changed: false }
    }

    /// Returns the runs in their order.
    pub fn into_runs(self) -> Vec<PathBuf> {
        self.runs
    }

    /// Returns the place of a run in the list, from 1; 0 if it is not there.
    pub fn ticket(&self, run: &Path) -> u64 {
        self.place(run).map_or(0, |place| place as u64 + 1)
    }

    fn place(&self, run: &Path) -> Option<usize> {
        self.runs.iter().position(|listed| listed == run)
    }

    /// Adds a run at the end, unless it is in the list.
    pub fn append(&mut self, run: &Path) {
        if self.place(run).is_none() {
            self.insert(self.runs.len(), run);
        }
    }

    /// Moves a run to the front.
    pub fn put_first(&mut self, run: &Path) {
        if self.place(run) != Some(0) {
            self.remove(run);
            self.insert(0, run);
        }
    }

    /// Moves a run right behind one run, or else right before another.
    pub fn put_between(&mut self, run: &Path, after: Option<&Path>, before: Option<&Path>) {
        self.remove(run);
        let behind = after.and_then(|after| self.place(after)).map(|place| place + 1);
        let place = behind.or_else(|| before.and_then(|before| self.place(before)));
        self.insert(place.unwrap_or(self.runs.len()), run);
    }

    /// Takes a run out.
    pub fn remove(&mut self, run: &Path) {
        if let Some(place) = self.place(run) {
            self.runs.remove(place);
            self.is_changed = true;
        }
    }

    fn insert(&mut self, place: usize, run: &Path) {
        self.runs.insert(place, run.to_owned());
        self.is_changed = true;
    }

    /// Stores the list, if it has changed.
    pub fn write(mut self) -> io::Result<()> {
        if !self.is_changed {
            return Ok(());
        }
        if self.runs.len() > LONG {
            self.runs.retain(|run| run.is_dir());
        }
        write_private(&self.file, &serde_json::to_vec(&self.runs)?)
    }
}
