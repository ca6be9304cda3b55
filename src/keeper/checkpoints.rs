//! The keeper's work on checkpoints, which only the keeper may do: it marks proven ones, deletes those
//! that retention does not keep, and sets aside those that no start should find again.

use super::keeper_state::Keeper;
use super::retention;
use super::sentences::grouped;
use super::set_aside;
use crate::config::knobs;
use crate::format::counted;
use crate::policy;
use crate::policy::lifecycle::Back;
use crate::protocol::control::JournalKind;
use crate::protocol::worker::{Event, Hello, Level};
use crate::store::adopted;
use crate::store::checkpoint::{self, aside};
use crate::store::samples;
use std::collections::BTreeSet;

impl Keeper {
    fn checkpoint_knobs(&self) -> knobs::Checkpoint {
        self.run.rungs[self.recorder.attempt.rung].preset.checkpoint.clone()
    }

    /// Sets aside the checkpoints that a worker passed over. It loads the newest usable one: any newer ones are damaged.
    pub(super) fn set_aside_unusable(&mut self, hello: &Hello) {
        if let Some(step) = hello.resumed_from {
            self.set_aside_above(step, "it is unusable");
        }
    }

    /// Updates the checkpoints on disk after a worker event.
    pub(super) fn update_checkpoints(&mut self, event: &Event) {
        match event {
            Event::Hello(hello) => self.retire_abandoned_samples(hello.resumed_from.unwrap_or(0)),
            Event::Step(step) => {
                let proven_after = self.checkpoint_knobs().proven_after;
                if let Some(proven) = self.recorder.record_clean_step(step.step, proven_after) {
                    self.retire_checkpoints();
                    self.decide(policy::event::Event::Proven(proven), None);
                }
            }
            Event::Saved(_) => {
                self.retire_overwritten();
                self.retire_checkpoints();
            }
            // The files of a command's script are its own.
            Event::Samples { .. } if self.run.command.is_none() => self.retire_samples(),
            _ => {}
        }
    }

    /// Deletes the old samples, but not those of a checkpoint that is kept, such as the best one. One that cannot be
    /// deleted now is tried again with the next.
    fn retire_samples(&self) {
        samples::prune(self.run_dir.path(), &self.recorder.kept_steps()).ok();
    }

    /// Deletes the samples of steps after `step`, where training continues: it writes those steps again. Otherwise
    /// retention would take them for the newest. What a command's script wrote is the script's own.
    fn retire_abandoned_samples(&mut self, step: u64) {
        let dir = self.run_dir.path().to_owned();
        let gone = samples::sets_after(&dir, step);
        if gone.is_empty() || self.run.command.is_some() {
            return;
        }
        let sets = counted(gone.len() as u64, "sample set");
        let text = format!("deleting {sets} of steps after {}, which training repeats", grouped(step));
        self.recorder.note(Level::Info, JournalKind::Checkpoint, text);
        self.recorder.persist();
        if let Err(error) = samples::delete(&dir, &gone) {
            let text = format!("samples of abandoned steps cannot be deleted: {error}");
            self.recorder.note(Level::Warn, JournalKind::Checkpoint, text);
        }
    }

    /// Goes one checkpoint back, after all workers that loaded the one of `step` failed in the same way.
    pub(super) fn go_back(&mut self, step: u64) {
        let Some(older) = self.recorder.older_than(step) else {
            let text = format!(
                "two workers failed in the same way just after loading checkpoint {}, and there is no older one",
                grouped(step)
            );
            return self.recorder.note(Level::Warn, JournalKind::Checkpoint, text);
        };
        self.record_going_back(older);
        self.set_aside_above(older, "two workers failed in the same way just after loading it");
        self.recorder.status.durable_step = Some(older);
        self.policy.set_durable_step(Some(older));
        let text = format!("back to the checkpoint before, step {}", grouped(older));
        self.recorder.note(Level::Warn, JournalKind::Checkpoint, text);
    }

    /// Puts checkpoints back that were not to blame.
    pub(super) fn put_back(&mut self, steps: &[u64]) {
        let aside = set_aside::steps_aside(self.run_dir.path());
        for step in steps.iter().copied().filter(|step| aside.contains(step)) {
            // The last worker may have saved it again.
            if self.recorder.is_kept(step) {
                continue;
            }
            let name = grouped(step);
            let (level, text) = match set_aside::put_back(self.run_dir.path(), step) {
                Ok(()) => (Level::Info, format!("checkpoint {name} put back: an older one failed in the same way")),
                Err(error) => (Level::Error, format!("checkpoint {name} cannot be put back: {error}")),
            };
            self.recorder.note(level, JournalKind::Checkpoint, text);
        }
        if let Err(error) = self.recorder.import_checkpoints(&self.run_dir) {
            self.recorder.note(Level::Error, JournalKind::Checkpoint, error.to_string());
        }
        self.policy.set_durable_step(self.recorder.status.durable_step);
    }

    /// Rolls back to a checkpoint from well before an unwanted step, and leaves out the data around that step.
    pub(super) fn roll_back(&mut self, back: Back) {
        let Some((step, samples)) = self.recorder.checkpoint_for(back.before, back.steps) else {
            let text = match self.recorder.status.durable_step {
                Some(_) => "no checkpoint is old enough; continuing from the newest",
                None => "no checkpoint to go back to; starting over",
            };
            return self.recorder.note(Level::Warn, JournalKind::Checkpoint, text.to_owned());
        };
        self.record_going_back(step);
        self.set_aside_above(step, "the run rolled back");
        self.recorder.status.durable_step = Some(step);
        self.policy.set_durable_step(Some(step));
        let end = self.recorder.status.total_samples.unwrap_or(u64::MAX);
        let again = self.recorder.status.step.saturating_sub(step);
        let text = format!("back to the checkpoint of step {}, {} ago", grouped(step), counted(again, "step"));
        self.recorder.note(Level::Warn, JournalKind::Checkpoint, text);
        // A return to another rung counts as a shift.
        self.recorder.status.rollbacks += u64::from(self.policy.rung() == self.recorder.status.rung);
        if let Some((from, to)) =
            back.skip.map(|(from, to)| (from.max(samples), to.min(end))).filter(|(from, to)| from < to)
        {
            self.skip_data(from, to - from);
        }
    }

    /// Skips a part of the data from the next start on.
    pub(super) fn skip_data(&mut self, from: u64, units: u64) {
        self.stored.left_out.push((from, from.saturating_add(units)));
        self.recorder.put_fact("left_out", &self.stored.left_out);
        self.recorder.persist();
        let (unit, from, to) = (&self.recorder.status.unit, grouped(from), grouped(from.saturating_add(units)));
        let text = format!("skipping the {unit} from {from} to {to}; the run is shorter by them");
        self.recorder.note(Level::Warn, JournalKind::Skip, text);
    }

    /// Handles a prune request while a worker runs. Retention runs after every save, so only set-aside
    /// checkpoints are left to delete.
    pub(super) fn prune_checkpoints(&mut self) -> String {
        self.retire_checkpoints();
        let dir = self.run_dir.path().to_owned();
        let count = (aside::list_aside(&dir).len() + adopted::copies_aside(&dir).len()) as u64;
        std::thread::spawn(move || (aside::delete_all(&dir), adopted::delete_copies_aside(&dir)));
        let text = format!("pruning {} set aside; retention keeps the others", counted(count, "checkpoint"));
        self.recorder.note(
            Level::Info,
            JournalKind::Checkpoint,
            format!("{text}, requested by {}", self.describe_author()),
        );
        text
    }

    /// Records the return to `step` for the next start, which adopts checkpoints that no list names yet.
    fn record_going_back(&mut self, step: u64) {
        if let Err(error) = adopted::record_going_back(self.run_dir.path(), step) {
            let text = format!("the return to step {} cannot be stored: {error}", grouped(step));
            self.recorder.note(Level::Error, JournalKind::Checkpoint, text);
        }
    }

    fn set_aside_above(&mut self, step: u64, why: &str) {
        self.forget_deleted_checkpoints();
        let samples = self.recorder.samples_at(step);
        self.forget_quality_above(step, samples);
        // The store may not know all of them: damaged ones were not imported.
        let mut above: BTreeSet<u64> = self.recorder.give_up_above(step).into_iter().collect();
        let there = checkpoint::list(self.run_dir.path());
        above.extend(there.iter().map(|entry| entry.step).filter(|there| *there > step));
        let adopted = adopted::list(self.run_dir.path());
        above.extend(adopted.iter().map(|adopted| adopted.step).filter(|there| *there > step));
        for newer in above {
            let name = grouped(newer);
            let (level, text) = match set_aside::set_aside(self.run_dir.path(), newer) {
                Ok(path) => (Level::Warn, format!("checkpoint {name} set aside: {why}; now in {}", path.display())),
                Err(error) => (Level::Error, format!("checkpoint {name} cannot be set aside: {error}")),
            };
            self.recorder.note(level, JournalKind::Checkpoint, text);
        }
    }

    /// Forgets containers that something else deleted.
    fn forget_deleted_checkpoints(&mut self) {
        let there = checkpoint::list(self.run_dir.path()).into_iter().map(|entry| entry.step).collect();
        for step in self.recorder.give_up_deleted(&there) {
            self.note_deleted_checkpoint(step);
        }
    }

    /// Notes a container that was there and is not any more.
    pub(super) fn note_deleted_checkpoint(&mut self, step: u64) {
        let text = format!("checkpoint {} is gone; it was deleted, but not by downshift", grouped(step));
        self.recorder.note(Level::Warn, JournalKind::Checkpoint, text);
    }

    /// Forgets checkpoints that the command has overwritten, whose lists are gone, or removed.
    fn retire_overwritten(&mut self) {
        if self.run.command.is_some() {
            self.recorder.give_up_unlisted(&adopted::forget_removed(self.run_dir.path()));
        }
    }

    /// Deletes the checkpoints beyond retention, but not the one that a planned or proposed rollback goes to.
    pub(super) fn retire_checkpoints(&mut self) {
        let rules = retention::Rules::of_rung(&self.run, self.recorder.attempt.rung);
        let spared = self.policy.way_back().and_then(|back| self.recorder.checkpoint_for(back.before, back.steps));
        let steps = self.recorder.retire_superfluous(&rules, &spared.iter().map(|(step, _)| *step).collect());
        if !steps.is_empty() {
            let dir = self.run_dir.path().to_owned();
            // Deleting gigabytes takes a while; only the keeper's end waits for it, not the loop.
            let delete = move || steps.into_iter().for_each(|step| drop(retention::delete(&dir, step)));
            self.deletions.retain(|deletion| !deletion.is_finished());
            self.deletions.push(std::thread::spawn(delete));
        }
    }
}
