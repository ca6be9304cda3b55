//! The actions on a run or one of its checkpoints, and why one of them is not possible now.

use super::State;
use super::requests::Refusal;
use crate::outlook::continuation::How;
use crate::protocol::claim::Wait;
use crate::protocol::control::{CheckpointRow, Status};
use crate::store::labels::Labels;

/// The run, and perhaps the checkpoint, that an open box is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Subject {
    /// Name of the run.
    pub run: String,
    /// Step of the checkpoint.
    pub checkpoint: Option<u64>,
    /// Whether the runs were listed since the box opened: older labels must not overwrite those that changed meanwhile.
    pub is_listed: bool,
    /// The entry that was chosen before that: performed once the labels are known.
    pub awaited: Option<MenuItem>,
}

impl Subject {
    /// Returns the subject of a box that opens now.
    #[must_use]
    pub fn new(run: impl Into<String>, checkpoint: Option<u64>) -> Self {
        Self { run: run.into(), checkpoint, is_listed: false, awaited: None }
    }
}

/// An entry of the menu.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MenuItem {
    /// Open the cockpit on the run.
    Open,
    /// Move the waiting run before all others.
    First,
    /// Let others pass the waiting run.
    Hold,
    /// Let the held run wait again.
    Release,
    /// Take the waiting run out of the queue.
    Remove,
    /// Continue the run, from the checkpoint if there is one.
    Resume,
    /// Start a new run from the checkpoint.
    Branch,
    /// Write the weights of the checkpoint to a file.
    Export,
    /// Measure the run's checkpoints and rank them.
    Compare,
    /// Copy the path.
    CopyPath,
    /// Edit the tags.
    Tags,
    /// Edit the note.
    Note,
    /// Archive the run, or bring it back.
    Archive,
    /// List archived runs, or hide them.
    ShowArchived,
    /// Delete the run.
    Delete,
}

impl State {
    /// Returns the entries of the menu, and why some of them are refused now.
    #[must_use]
    pub fn menu_items(&self) -> Vec<(MenuItem, Option<Refusal>)> {
        use MenuItem::{Archive, Branch, Compare, CopyPath, Delete, Export, Note, Open, Resume, ShowArchived, Tags};
        use MenuItem::{First, Hold, Release, Remove};
        let wait = self.runs.row(&self.subject.run).and_then(|row| row.place).map(|place| place.wait);
        let items: &[MenuItem] = match self.subject.checkpoint {
            // A run that waits has nothing to resume or to branch.
            None if wait == Some(Wait::Held) => &[Open, Release, First, Remove, CopyPath, Tags, Note],
            None if wait.is_some() => &[Open, First, Hold, Remove, CopyPath, Tags, Note],
            Some(_) => &[Resume, Branch, Export, Compare, CopyPath],
            None if self.subject.run == self.run_name() => {
                &[Resume, Branch, Compare, CopyPath, Tags, Note, Archive, ShowArchived, Delete]
            }
            None => &[Open, Resume, Branch, Compare, CopyPath, Tags, Note, Archive, ShowArchived, Delete],
        };
        items.iter().map(|item| (*item, self.item_refusal(*item))).collect()
    }

    /// Returns the label of an entry.
    #[must_use]
    pub fn item_label(&self, item: MenuItem) -> &'static str {
        let archived = self.runs.row(&self.subject.run).is_some_and(|row| row.labels.archived);
        match (item, self.subject.checkpoint) {
            (MenuItem::Open, _) => "open",
            (MenuItem::First, _) => "first in the queue",
            (MenuItem::Hold, _) => "hold: let others pass",
            (MenuItem::Release, _) => "release: wait again",
            (MenuItem::Remove, _) => "remove from the queue",
            (MenuItem::Resume, Some(_)) => "resume here; newer ones are set aside",
            (MenuItem::Resume, None) => "resume",
            (MenuItem::Branch, _) => "branch as a new run",
            (MenuItem::Export, _) => "export the weights …",
            (MenuItem::Compare, _) => "compare the checkpoints",
            (MenuItem::CopyPath, _) => "copy the path",
            (MenuItem::Tags, _) => "tags …",
            (MenuItem::Note, _) => "note …",
            (MenuItem::Archive, _) if archived => "bring back from the archive",
            (MenuItem::Archive, _) => "archive",
            (MenuItem::ShowArchived, _) if self.runs.archived => "hide archived runs",
            (MenuItem::ShowArchived, _) => "show archived runs",
            (MenuItem::Delete, _) => "delete …",
        }
    }

    /// Returns why an entry is not possible now. Commands check again what changes meanwhile.
    fn item_refusal(&self, item: MenuItem) -> Option<Refusal> {
        let begun = || self.subject_step().is_none().then_some(Refusal::NeverStarted);
        let alive = || self.subject_lives().then_some(Refusal::Alive);
        let owned = || self.read_only.then_some(Refusal::ReadOnly);
        let is_open = self.subject.run == self.run_name();
        let has_saved = || self.status().is_some_and(|status| status.durable_step.is_some());
        let unsaved = || (is_open && !has_saved()).then_some(Refusal::NoCheckpoint);
        let lost = || (is_open && self.continuation().how == How::RunAgain).then_some(Refusal::NothingResumes);
        let stored = || self.has_own_files().then_some(Refusal::OwnFiles);
        let is_done = || self.subject.checkpoint.is_none() && self.subject_status().is_some_and(Status::is_trained);
        let done = || is_done().then_some(Refusal::TrainedToItsEnd);
        match item {
            MenuItem::Open if is_open => Some(Refusal::AlreadyOpen),
            MenuItem::Open => begun(),
            MenuItem::First | MenuItem::Hold | MenuItem::Release | MenuItem::Remove => owned(),
            MenuItem::Resume => owned().or_else(alive).or_else(lost).or_else(done),
            MenuItem::Delete => owned().or_else(alive),
            MenuItem::Branch => owned().or_else(begun).or_else(stored).or_else(unsaved),
            MenuItem::Export => owned().or_else(stored),
            MenuItem::Compare => owned().or_else(begun).or_else(unsaved),
            MenuItem::CopyPath | MenuItem::ShowArchived => None,
            MenuItem::Tags | MenuItem::Note | MenuItem::Archive => owned().or_else(|| self.subject_labels().err()),
        }
    }

    /// Returns the labels of the subject's run.
    ///
    /// # Errors
    /// Returns the reason why they are not known.
    pub fn subject_labels(&self) -> Result<&Labels, Refusal> {
        if !self.subject.is_listed {
            return Err(Refusal::ReadingLabels);
        }
        self.runs.row(&self.subject.run).map(|row| &row.labels).ok_or(Refusal::NotListed)
    }

    /// Returns the path of the subject, if its run has begun.
    #[must_use]
    pub fn subject_path(&self) -> Option<String> {
        let open = self.status().filter(|status| status.run == self.subject.run);
        let status = open.or_else(|| self.runs.row(&self.subject.run)?.status.as_ref())?;
        let row = self.subject.checkpoint.and_then(|step| self.facts.checkpoints.get(&step));
        Some(row.map_or_else(|| status.run_dir.clone(), |row| format!("{}/{}", status.run_dir, row.path)))
    }

    /// Returns the newest step of the subject's run, if it ever began.
    fn subject_step(&self) -> Option<u64> {
        self.subject_status().map(|status| status.step)
    }

    fn subject_status(&self) -> Option<&Status> {
        if self.subject.run == self.run_name() {
            return self.status();
        }
        self.runs.row(&self.subject.run)?.status.as_ref()
    }

    /// Reports whether processes of the subject's run are alive.
    fn subject_lives(&self) -> bool {
        if self.subject.run == self.run_name() {
            return !self.is_over() && !self.is_orphaned();
        }
        self.runs.row(&self.subject.run).is_some_and(crate::store::run_summary::RunSummary::is_alive)
    }

    /// Reports whether the checkpoints are files of the command, as far as the open run tells.
    fn has_own_files(&self) -> bool {
        let own = |row: &&CheckpointRow| row.kept && !row.path.starts_with("checkpoints/");
        self.subject.run == self.run_name() && self.facts.checkpoints.values().any(|row| own(&row))
    }

    /// Returns the checkpoints of the list, newest first: those on disk, or in a state of the past all that were
    /// saved by then, since the record does not say which of them existed.
    #[must_use]
    pub fn listed_checkpoints(&self) -> Vec<&CheckpointRow> {
        let past = self.moment.is_some();
        self.facts.checkpoints.values().rev().filter(|row| row.kept || past).collect()
    }

    /// Returns the checkpoint under the cursor.
    #[must_use]
    pub fn chosen_checkpoint(&self) -> Option<&CheckpointRow> {
        let listed = self.listed_checkpoints();
        let place = self.screen.chosen_checkpoint.min(listed.len().checked_sub(1)?);
        Some(listed[place])
    }
}
