//! Finds the command's checkpoints and decides which are complete.
//!
//! A framework writes a checkpoint in place, file by file. It is complete once its last file exists and nothing in it
//! changed between two scans; after the command has ended, one scan is enough. Checkpoints from before the command
//! are ignored unless the command rewrites them.

use crate::store::adopted::{self, Original, epoch_in_name, find_complete, step_in_name, survey};
use crate::store::permissions::create_folder;
use crate::store::run_dir::write_whole;
use crate::untrusted::file::{self, Limit};
use crate::untrusted::glob::Glob;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

/// The list of ignored checkpoints, in the folder of adopted ones.
const IGNORED: &str = "ignored.json";

/// When the folder is scanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The command may be writing: a checkpoint must be unchanged since the last scan.
    Alive,
    /// The command has just ended.
    JustEnded,
    /// The command of this attempt has not started, and nothing has watched the folder since the last one ended.
    BeforeStart,
}

/// A checkpoint to adopt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Its folder, or its only file.
    pub path: PathBuf,
    /// The step in its name, if there is one; once it is chosen, its step.
    pub step: Option<u64>,
    /// The epoch in its name, if there is one.
    pub epoch: Option<u64>,
    /// When its newest file was written, in Unix nanoseconds.
    pub modified_ns: i64,
}

/// Watches the folder that the command saves to.
#[derive(Debug)]
pub struct CheckpointWatch {
    pattern: Glob,
    /// The file that the command writes last into each.
    last: Option<String>,
    directory: PathBuf,
    run_dir: PathBuf,
    /// The state at the last scan, by path.
    seen: HashMap<PathBuf, Original>,
    /// Paths that are settled: adopted or ignored.
    known: HashMap<PathBuf, Original>,
    ignored: Vec<Original>,
    /// When the newest of those was written that were adopted, in Unix nanoseconds.
    newest_ns: i64,
}

impl CheckpointWatch {
    /// Creates the watch. On the first attempt of a run, everything already there is ignored, except what was written since
    /// `begun_ns`, in Unix nanoseconds: when the process started that the run adopts.
    ///
    /// # Errors
    /// Returns the system's error when the run directory cannot be written.
    pub fn begin(
        pattern: Glob,
        last: Option<&str>,
        directory: &Path,
        run_dir: &Path,
        begun_ns: Option<i64>,
    ) -> io::Result<Self> {
        let text = file::read(&run_dir.join(adopted::FOLDER).join(IGNORED), Limit::Record).ok();
        let ignored: Option<Vec<Original>> = text.and_then(|text| serde_json::from_slice(&text).ok());
        let is_first = ignored.is_none();
        // A list that was set aside keeps its checkpoint from being adopted again until the command rewrites it.
        let mut lists = adopted::list_aside(run_dir);
        lists.extend(adopted::list(run_dir));
        // A command that saves to one path leaves several lists of it; the newest version counts.
        lists.sort_by_key(|adopted| adopted.time_ms);
        let listed: Vec<Original> = lists.iter().map(adopted::Adopted::original).collect();
        let known = ignored.iter().flatten().chain(&listed).map(|known| (known.path.clone(), known.clone())).collect();
        let mut watch = Self {
            pattern,
            last: last.map(str::to_owned),
            directory: directory.to_owned(),
            run_dir: run_dir.to_owned(),
            seen: HashMap::new(),
            known,
            ignored: ignored.unwrap_or_default(),
            newest_ns: 0,
        };
        if is_first {
            let is_older = |there: &Original| begun_ns.is_none_or(|begun_ns| there.modified_ns() < begun_ns);
            let there = watch.complete().into_iter().filter_map(|path| look_at(&path)).filter(is_older).collect();
            watch.ignore_all(there)?;
        }
        Ok(watch)
    }

    /// Scans once. Returns the checkpoints that are complete and not adopted yet, in the order in which they were written.
    pub fn look(&mut self, moment: Moment) -> Vec<Candidate> {
        let before = std::mem::take(&mut self.seen);
        let mut found = Vec::new();
        for path in self.complete() {
            let Some(now) = look_at(&path) else { continue };
            if self.known.get(&path).is_some_and(|known| !is_new(&now, known, moment)) {
                continue;
            }
            if moment != Moment::Alive || before.get(&path) == Some(&now) {
                let (step, epoch, modified_ns) = (step_in_name(&path), epoch_in_name(&path), now.modified_ns());
                found.push(Candidate { path: path.clone(), step, epoch, modified_ns });
            }
            self.seen.insert(path, now);
        }
        found.sort_by_key(|found| found.modified_ns);
        found
    }

    /// Reports whether a checkpoint is as it was found.
    #[must_use]
    pub fn is_unchanged(candidate: &Candidate) -> bool {
        look_at(&candidate.path).is_some_and(|now| now.modified_ns() == candidate.modified_ns)
    }

    /// Settles everything there before the command starts: without a number in its name, nothing says which step such
    /// a checkpoint holds, and a save that was cut off may have damaged it.
    #[must_use]
    pub fn settle(mut self) -> Self {
        let there: Vec<Original> = self.complete().iter().filter_map(|path| look_at(path)).collect();
        self.known.extend(there.into_iter().map(|original| (original.path.clone(), original)));
        self
    }

    /// Records that a checkpoint was adopted. Reports whether it is the newest of those that were.
    pub fn record_adopted(&mut self, adopted: &adopted::Adopted) -> bool {
        let original = adopted.original();
        let written = original.modified_ns();
        self.known.insert(original.path.clone(), original);
        self.newest_ns = self.newest_ns.max(written);
        written == self.newest_ns
    }

    /// Ignores this version of a checkpoint, in this attempt and in later ones.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn ignore(&mut self, path: &Path) -> io::Result<()> {
        self.ignore_all(look_at(path).into_iter().collect())
    }

    fn ignore_all(&mut self, more: Vec<Original>) -> io::Result<()> {
        self.known.extend(more.iter().map(|original| (original.path.clone(), original.clone())));
        self.ignored.extend(more);
        create_folder(&self.run_dir.join(adopted::FOLDER))?;
        let text = serde_json::to_vec(&self.ignored)?;
        write_whole(&self.run_dir.join(adopted::FOLDER).join(IGNORED), &text)
    }

    /// Returns the complete checkpoints that the pattern matches.
    pub fn complete(&self) -> Vec<PathBuf> {
        find_complete(&self.pattern, &self.directory, self.last.as_deref())
    }
}

/// Returns the files of a checkpoint as they are now.
pub(super) fn look_at(path: &Path) -> Option<Original> {
    Some(Original { path: path.to_owned(), files: survey(path).ok()? })
}

/// Reports whether a known checkpoint was rewritten. One that lost files is being deleted; one that changed while
/// nothing watched it may be damaged.
fn is_new(now: &Original, known: &Original, moment: Moment) -> bool {
    let lost = known.files.iter().any(|(name, _)| now.files.iter().all(|(other, _)| other != name));
    !now.has_content_of(known) && !lost && moment != Moment::BeforeStart
}

#[cfg(test)]
mod tests;
