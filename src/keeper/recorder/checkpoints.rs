//! Tracks checkpoints: which are on disk, which are proven, which is the best.

use super::{Recorder, now_ms};
use crate::config::run::Run;
use crate::format::counted;
use crate::keeper::retention::{self, Rules, Superfluous, is_adopted};
use crate::keeper::sentences;
use crate::protocol::control::{Best, CheckpointRow, FailedSaves, JournalKind, RunState, StageName, Update};
use crate::protocol::worker::{Level, Saved};
use std::collections::BTreeSet;
use std::time::Duration;

impl Recorder {
    /// Reports whether this is the step of a checkpoint that no worker reported.
    pub fn is_unknown_checkpoint(&self, step: Option<u64>) -> bool {
        step.is_some_and(|step| !self.is_kept(step))
    }

    /// Reports whether there is a checkpoint of this step.
    pub fn is_kept(&self, step: u64) -> bool {
        self.checkpoints.iter().any(|row| row.kept && row.step == step)
    }

    pub(super) fn record_checkpoint(&mut self, saved: &Saved, now: Duration) {
        self.status.durable_step = self.status.durable_step.max(Some(saved.step));
        self.checkpoints.retain(|row| row.step != saved.step);
        let mut row = CheckpointRow {
            step: saved.step,
            samples: saved.samples,
            path: saved.path.clone(),
            bytes: saved.bytes,
            time_ms: now_ms(),
            pause_ms: saved.pause_ms,
            total_ms: saved.total_ms,
            eval_loss: saved.eval_loss,
            metrics: saved.metrics.clone(),
            best: false,
            kept: true,
            proven: false,
        };
        self.measured.remove(&saved.step);
        if let Some(eval) = self.evals.get(&saved.step) {
            eval.add_missing_to(&mut row.eval_loss, &mut row.metrics);
        }
        self.checkpoints.push(row);
        self.proving.saved(saved.step);
        if let Some(row) = self.checkpoints.last().cloned() {
            self.refill_from(&row);
        }
        self.mark_best();
        // In one transaction with the rows it holds, because the next keeper does not import a checkpoint
        // that the store already knows.
        self.put_checkpoint(saved.step);
        self.persist();
        self.note(Level::Info, JournalKind::Checkpoint, sentences::saved(saved));
        if let Some(failed) = self.status.failed_saves.take() {
            let text = format!("checkpoints are saved again, after {}", counted(failed.count, "failed save"));
            self.note(Level::Info, JournalKind::Checkpoint, text);
        }
        if self.status.state == RunState::Stopping {
            self.passage_part(StageName::Stop, now);
        }
    }

    /// Counts a save that failed. Only the first failure of a streak is noted; the status shows how long it lasts.
    pub(super) fn record_failed_save(&mut self, step: u64, why: &str) {
        let first = self.status.failed_saves.take();
        let (since, failed) = first.map_or((step, 0), |first| (first.step, first.count));
        self.status.failed_saves = Some(FailedSaves { step: since, count: failed + 1, why: why.to_owned() });
        if failed == 0 {
            self.note(Level::Error, JournalKind::Checkpoint, sentences::save_failed(step, why));
        }
    }

    /// Returns the steps of checkpoints to delete, and records them as gone, so that the store never lists a checkpoint
    /// that was deleted. If the store refuses, they are deleted anyway: the disk may be full, and the next keeper
    /// compares the store with the disk. Those of `spared` neither count for retention nor get deleted; one that is
    /// measured goes later.
    pub fn retire_superfluous(&mut self, rules: &Rules, spared: &BTreeSet<u64>) -> Vec<u64> {
        let counted: Vec<CheckpointRow> =
            self.checkpoints.iter().filter(|row| !spared.contains(&row.step)).cloned().collect();
        let evals = self.evaluations_for_retention();
        let Superfluous { mut steps, unmatched } = rules.superfluous(&counted, &evals);
        if let Some(unmatched) = unmatched {
            self.note_unmatched(&unmatched);
        }
        steps.retain(|step| Some(*step) != self.under_measurement);
        for step in &steps {
            self.mark_deleted(*step);
        }
        self.mark_best();
        if !steps.is_empty() {
            self.persist();
        }
        steps
    }

    /// Returns the checkpoints on disk above `step`, newest first, and records them as gone.
    pub fn give_up_above(&mut self, step: u64) -> Vec<u64> {
        let newer: Vec<u64> =
            self.checkpoints.iter().filter(|row| row.kept && row.step > step).map(|row| row.step).collect();
        for step in &newer {
            self.mark_deleted(*step);
        }
        self.mark_best();
        if !newer.is_empty() {
            self.persist();
        }
        newer.into_iter().rev().collect()
    }

    /// Records the checkpoints of a command that no list names any more as gone.
    pub fn give_up_unlisted(&mut self, listed: &BTreeSet<u64>) {
        self.give_up(|row| is_adopted(row) && !listed.contains(&row.step));
    }

    /// Records the containers that are not on disk any more as gone, and returns their steps.
    pub fn give_up_deleted(&mut self, there: &BTreeSet<u64>) -> Vec<u64> {
        self.give_up(|row| !is_adopted(row) && !there.contains(&row.step))
    }

    fn give_up(&mut self, is_gone: impl Fn(&CheckpointRow) -> bool) -> Vec<u64> {
        let gone = self.checkpoints.iter().filter(|row| row.kept && is_gone(row));
        let gone: Vec<u64> = gone.map(|row| row.step).collect();
        for step in &gone {
            self.mark_deleted(*step);
        }
        if !gone.is_empty() {
            self.mark_best();
            self.persist();
        }
        gone
    }

    /// Reports whether this run ever had a checkpoint: then no worker may begin from scratch.
    pub fn had_checkpoints(&self) -> bool {
        !self.checkpoints.is_empty()
    }

    /// Returns the newest checkpoint on disk below `step`.
    pub fn older_than(&self, step: u64) -> Option<u64> {
        self.checkpoints.iter().filter(|row| row.kept && row.step < step).map(|row| row.step).max()
    }

    /// Records that a checkpoint is no longer on disk.
    fn mark_deleted(&mut self, step: u64) {
        if let Some(row) = self.checkpoints.iter_mut().find(|row| row.step == step) {
            row.kept = false;
            row.best = false;
        }
        self.put_checkpoint(step);
    }

    /// Recounts the clean steps beyond each checkpoint on the current line of training, from its start up
    /// to step `until`.
    pub(super) fn restart_proving(&mut self, until: u64) {
        self.flush();
        let unproven = self.checkpoints.iter().filter(|row| row.kept && !row.proven).map(|row| row.step);
        let unproven: Vec<u64> = unproven.collect();
        let mut clean = |step| self.read_store(|store| store.clean_steps(step, until)).unwrap_or(0);
        let counts: Vec<(u64, u64)> = unproven.into_iter().map(|step| (step, clean(step))).collect();
        self.proving.restart(until, counts);
    }

    /// Returns the step and the clock of the checkpoint about `steps` before step `before`, or of the
    /// oldest one if none is that old.
    pub fn checkpoint_for(&self, before: u64, steps: u64) -> Option<(u64, u64)> {
        let kept = self.checkpoints.iter().filter(|row| row.kept && row.step < before);
        let old = kept.clone().filter(|row| row.step <= before.saturating_sub(steps));
        let row = old.max_by_key(|row| row.step).or_else(|| kept.min_by_key(|row| row.step))?;
        Some((row.step, row.samples))
    }

    /// Records a clean step. Returns the newest checkpoint it has proven.
    pub fn record_clean_step(&mut self, step: u64, proven_after: u64) -> Option<u64> {
        let proven = self.proving.stepped(step, proven_after);
        for step in &proven {
            if let Some(row) = self.checkpoints.iter_mut().find(|row| row.step == *step) {
                row.proven = true;
            }
            self.put_checkpoint(*step);
        }
        proven.into_iter().max()
    }

    /// Ranks checkpoints as a rung of the run says.
    pub fn rank_by(&mut self, run: &Run, rung: usize) {
        if let Some(rung) = run.rungs.get(rung) {
            self.ranking = rung.preset.checkpoint.best.clone();
        }
    }

    pub(super) fn mark_best(&mut self) {
        let best = retention::best(&self.checkpoints, &self.ranking);
        let changed: Vec<u64> = self
            .checkpoints
            .iter_mut()
            .filter(|row| row.best != (best == Some(row.step)))
            .map(|row| {
                row.best = !row.best;
                row.step
            })
            .collect();
        for step in changed {
            self.put_checkpoint(step);
        }
        let row = self.checkpoints.iter().find(|row| row.best);
        self.status.best = row.and_then(|row| {
            let value = self.ranking.value(row.eval_loss, &row.metrics)?;
            Some(Best { step: row.step, eval_loss: row.eval_loss, metric: self.ranking.metric.clone(), value })
        });
        self.dirty = true;
    }

    pub(super) fn put_checkpoint(&mut self, step: u64) {
        if let Some(row) = self.checkpoints.iter().find(|row| row.step == step) {
            self.batch.checkpoints.insert(step, row.clone());
            self.updates.push(Update::Checkpoint(row.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Recorder, Rules};
    use crate::config::best::{Best, Goal};
    use crate::config::knobs::Checkpoint;
    use crate::protocol::blank;
    use crate::protocol::worker::{Eval, Event, Saved};
    use crate::store::adopted;
    use crate::store::database::open_reader;
    use crate::store::writer::Writer;
    use std::collections::BTreeSet;
    use std::time::Duration;

    fn saved(step: u64) -> Event {
        let path = format!("checkpoints/step-{step:09}");
        Event::Saved(Saved { path, step, samples: step, bytes: 1, ..Saved::default() })
    }

    #[test]
    fn an_evaluation_ranks_the_checkpoint_of_its_step_whichever_comes_first() {
        let dir = tempfile::TempDir::new().unwrap();
        let mut recorder = Recorder::new(Writer::open(&dir.path().join("run.db")).unwrap(), blank::status()).unwrap();
        recorder.ranking = Best { metric: "fid".to_owned(), goal: Goal::Min };
        let eval = |step, fid| {
            Event::Eval(Eval {
                step,
                samples: step,
                loss: None,
                metrics: [("fid".to_owned(), fid)].into(),
                ..Eval::default()
            })
        };
        let best = |recorder: &Recorder| recorder.status.best.as_ref().map(|best| (best.step, best.value));
        recorder.begin_attempt(0, "full", "start", Duration::ZERO).unwrap();
        for event in [eval(1, 9.0), saved(1), saved(2), eval(2, 7.0), eval(3, 8.0), saved(3)] {
            recorder.record_event(&event, Duration::ZERO);
        }
        assert_eq!(best(&recorder), Some((2, 7.0)));
        // The next attempt evaluates other weights at a step of the last one, and has none saved there.
        recorder.checkpoints.iter_mut().for_each(|row| row.time_ms -= 10_000);
        recorder.begin_attempt(0, "full", "restart", Duration::ZERO).unwrap();
        for event in [saved(4), eval(3, 1.0)] {
            recorder.record_event(&event, Duration::ZERO);
        }
        assert_eq!(best(&recorder), Some((2, 7.0)));
        recorder.record_event(&eval(4, 6.0), Duration::ZERO);
        assert_eq!(best(&recorder), Some((4, 6.0)));
        // Several data sets are evaluated at one step, each reported on its own.
        let loss =
            Eval { step: 4, samples: 4, loss: Some(0.5), metrics: [("fid".to_owned(), 5.0)].into(), ..Eval::default() };
        recorder.record_event(&Event::Eval(loss), Duration::ZERO);
        assert_eq!(recorder.status.best.as_ref().and_then(|best| best.eval_loss), Some(0.5));
        recorder.flush();
        let rows = recorder.store.checkpoints().unwrap();
        let stored: Vec<(u64, Option<f64>, bool)> =
            rows.iter().map(|row| (row.step, row.metrics.get("fid").copied(), row.best)).collect();
        let expected = [(1, Some(9.0), false), (2, Some(7.0), false), (3, Some(8.0), false), (4, Some(5.0), true)];
        assert_eq!(stored, expected);
    }

    #[test]
    fn a_keeper_that_takes_over_ranks_a_checkpoint_by_an_evaluation_that_it_did_not_see() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("run.db");
        let mut first = Recorder::new(Writer::open(&path).unwrap(), blank::status()).unwrap();
        let id = first.begin_attempt(0, "full", "start", Duration::ZERO).unwrap();
        first.keep_attempt(0);
        let eval = Eval { step: 7, samples: 7, loss: Some(0.25), ..Eval::default() };
        first.record_event(&Event::Eval(eval), Duration::ZERO);
        first.flush();
        drop(first);
        let mut second = Recorder::new(Writer::open(&path).unwrap(), blank::status()).unwrap();
        assert!(second.continue_attempt(id).is_some());
        second.record_event(&saved(7), Duration::ZERO);
        assert_eq!(second.status.best.as_ref().and_then(|best| best.eval_loss), Some(0.25));
    }

    #[test]
    fn the_store_forgets_checkpoints_before_they_are_deleted() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("run.db");
        let mut recorder = Recorder::new(Writer::open(&path).unwrap(), blank::status()).unwrap();
        (1..=6).for_each(|step| recorder.record_event(&saved(step), Duration::ZERO));
        let listed = || -> Vec<u64> {
            let connection = open_reader(&path).unwrap();
            let mut query = connection.prepare("SELECT step FROM checkpoints WHERE kept ORDER BY step").unwrap();
            query
                .query_map([], |row| row.get(0))
                .unwrap()
                .map(|step: rusqlite::Result<i64>| step.unwrap().cast_unsigned())
                .collect()
        };
        assert_eq!(listed(), [1, 2, 3, 4, 5, 6]);
        let rules = Rules { containers: Checkpoint::default(), adopted: None };
        assert!(!recorder.retire_superfluous(&rules, &BTreeSet::from([2])).contains(&2), "it is spared");
        let deleted = recorder.retire_superfluous(&rules, &BTreeSet::new());
        assert!(deleted.contains(&2), "{deleted:?}");
        assert!(listed().iter().all(|step| !deleted.contains(step)), "{deleted:?} and {:?}", listed());
        assert_eq!(recorder.give_up_above(5), [6]);
        assert!(!listed().contains(&6));
    }

    #[test]
    fn checkpoints_of_a_command_that_no_list_names_are_not_kept() {
        let dir = tempfile::TempDir::new().unwrap();
        let mut recorder = Recorder::new(Writer::open(&dir.path().join("run.db")).unwrap(), blank::status()).unwrap();
        let adopted = |step| Saved { path: adopted::relative_path(step), step, samples: step, ..Saved::default() };
        recorder.record_event(&saved(1), Duration::ZERO);
        for step in [2, 3] {
            recorder.record_event(&Event::Saved(adopted(step)), Duration::ZERO);
        }
        recorder.give_up_unlisted(&BTreeSet::from([3]));
        let rows = recorder.store.checkpoints().unwrap();
        let kept: Vec<u64> = rows.iter().filter(|row| row.kept).map(|row| row.step).collect();
        assert_eq!((rows.len(), kept), (3, vec![1, 3]), "a container has no list");
    }
}
