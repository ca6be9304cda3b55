//! Decides which checkpoints to keep.

mod unmatched;

pub use unmatched::{Unmatched, find_unmatched, newest_evaluations};

use crate::config::best::Best;
use crate::config::knobs;
use crate::config::run::Run;
use crate::protocol::control::CheckpointRow;
use crate::protocol::worker::Eval;
use crate::store::adopted::{self, AdoptError};
use crate::store::checkpoint::{self, CheckpointError};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;

/// The retention of a run's checkpoints.
#[derive(Debug, Clone, PartialEq)]
pub struct Rules {
    /// For containers of ours.
    pub(super) containers: knobs::Checkpoint,
    /// For the files of a command; none if they are never deleted.
    pub(super) adopted: Option<knobs::Checkpoint>,
}

impl Rules {
    /// Returns the retention on a rung. The files of a command are its own, unless the run file says how many to keep.
    #[must_use]
    pub fn of_rung(run: &Run, rung: usize) -> Self {
        let containers = run.rungs[rung].preset.checkpoint.clone();
        let keep_last = run.command.as_ref().and_then(|command| command.checkpoints.as_ref()?.keep_last);
        let adopted = keep_last.map(|keep_last| knobs::Checkpoint { keep_last, ..containers.clone() });
        Self { containers, adopted }
    }

    /// Returns the steps of the checkpoints to delete. No files of a command are among them while one of these may hold the
    /// best weights.
    #[must_use]
    pub fn superfluous<'a>(&self, rows: &[CheckpointRow], evals: impl IntoIterator<Item = &'a Eval>) -> Superfluous {
        let (adopted, containers): (Vec<_>, Vec<_>) = rows.iter().cloned().partition(is_adopted);
        let mut steps = superfluous(&containers, &self.containers);
        let of_command: Vec<u64> = self.adopted.iter().flat_map(|knobs| superfluous(&adopted, knobs)).collect();
        let best = self.adopted.as_ref().filter(|knobs| knobs.keep_best && !of_command.is_empty());
        let unmatched = best.and_then(|knobs| find_unmatched(&adopted, evals, &knobs.best));
        let unmatched = unmatched.filter(|found| of_command.iter().any(|step| found.checkpoints.contains(step)));
        if unmatched.is_none() {
            steps.extend(of_command);
        }
        Superfluous { steps, unmatched }
    }
}

/// The checkpoints to delete.
#[derive(Debug, Clone, PartialEq)]
pub struct Superfluous {
    /// Their steps.
    pub steps: Vec<u64>,
    /// The evaluation because of which no files of the command are deleted.
    pub unmatched: Option<Unmatched>,
}

/// Reports whether a checkpoint consists of files of a command.
#[must_use]
pub fn is_adopted(row: &CheckpointRow) -> bool {
    Path::new(&row.path).starts_with(adopted::FOLDER)
}

/// Reason why a checkpoint was neither deleted nor moved.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// A container of ours.
    #[error(transparent)]
    Container(#[from] CheckpointError),
    /// Files of a command.
    #[error("checkpoint {step}: {source}")]
    Adopted {
        /// Its step.
        step: u64,
        /// The system's error.
        source: io::Error,
    },
    /// Files of a command that are not as they were.
    #[error("checkpoint {step}: {source}")]
    Unusable {
        /// Its step.
        step: u64,
        /// The first file that is missing or changed.
        source: AdoptError,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] rusqlite::Error),
}

/// Deletes a checkpoint: a container of ours, or the files of a command and their list.
///
/// # Errors
/// Returns an error that names what cannot be deleted.
pub fn delete(run_dir: &Path, step: u64) -> Result<(), KeptError> {
    // Where both hold one step, the files of the command stay.
    let is_container = run_dir.join(checkpoint::relative_path(step)).is_dir();
    if !is_container && adopted::find(run_dir, step).is_some() {
        return adopted::remove(run_dir, step).map_err(|source| KeptError::Adopted { step, source });
    }
    Ok(checkpoint::remove(run_dir, step)?)
}

/// Returns the steps of the checkpoints to delete: all but the newest `keep_last`, the newest proven
/// one, the next one to be proven, and with `keep_best` the best one.
fn superfluous(rows: &[CheckpointRow], knobs: &knobs::Checkpoint) -> Vec<u64> {
    let kept: BTreeSet<u64> = rows.iter().filter(|row| row.kept).map(|row| row.step).collect();
    let newest: BTreeSet<u64> = kept.iter().rev().take(knobs.keep_last.max(1) as usize).copied().collect();
    let best = best(rows, &knobs.best).filter(|_| knobs.keep_best);
    let wanted = |step: &u64| {
        newest.contains(step) || [best, newest_proven(rows), next_to_be_proven(rows)].contains(&Some(*step))
    };
    kept.into_iter().filter(|step| !wanted(step)).collect()
}

/// Returns the step of the checkpoint on disk with the best evaluation; the older one when several share
/// the same value.
pub fn best(rows: &[CheckpointRow], ranking: &Best) -> Option<u64> {
    let value = |row: &CheckpointRow| ranking.value(row.eval_loss, &row.metrics);
    let measured = rows.iter().filter(|row| row.kept).filter_map(|row| Some((value(row)?, row.step)));
    measured.min_by(|a, b| ranking.compare(a.0, b.0).then(a.1.cmp(&b.1))).map(|(_, step)| step)
}

/// Returns the step of the newest proven checkpoint on disk.
pub fn newest_proven(rows: &[CheckpointRow]) -> Option<u64> {
    rows.iter().filter(|row| row.kept && row.proven).map(|row| row.step).max()
}

/// Returns the step of the oldest checkpoint on disk above the newest proven one. It stays until
/// training has proven it: when saves come faster than proofs, keeping only the newest would let no
/// checkpoint live long enough to be proven.
pub fn next_to_be_proven(rows: &[CheckpointRow]) -> Option<u64> {
    let proven = newest_proven(rows);
    rows.iter().filter(|row| row.kept && Some(row.step) > proven).map(|row| row.step).min()
}

#[cfg(test)]
mod tests {
    use super::{Rules, best, newest_proven, next_to_be_proven, superfluous};
    use crate::config::best::{Best, Goal};
    use crate::config::knobs;
    use crate::keeper::proving::Proving;
    use crate::protocol::control::CheckpointRow;
    use crate::protocol::worker::Eval;
    use proptest::prelude::*;

    fn row(step: u64, eval_loss: Option<f64>) -> CheckpointRow {
        CheckpointRow { step, eval_loss, kept: true, ..CheckpointRow::default() }
    }

    fn keep(keep_last: u64, keep_best: bool) -> knobs::Checkpoint {
        knobs::Checkpoint { keep_last, keep_best, ..knobs::Checkpoint::default() }
    }

    #[test]
    fn the_newest_and_the_best_stay() {
        let mut rows = vec![row(1, None), row(2, Some(0.2)), row(3, Some(0.5)), row(4, Some(0.2)), row(5, Some(0.4))];
        assert_eq!(best(&rows, &Best::default()), Some(2));
        rows[0].proven = true;
        rows[2].proven = true;
        assert_eq!(superfluous(&rows, &keep(2, true)), [1]);
        rows[2].proven = false;
        rows[3].proven = true;
        assert_eq!(superfluous(&rows, &keep(2, true)), [1, 3]);
        assert_eq!(superfluous(&rows, &keep(2, false)), [1, 2, 3]);
        rows[4].proven = true;
        assert_eq!(superfluous(&rows, &keep(0, false)), [1, 2, 3, 4], "the newest always stays");
        rows[1].kept = false;
        assert_eq!(best(&rows, &Best::default()), Some(4));
    }

    #[test]
    fn the_files_of_a_command_are_kept_unless_the_run_file_says_how_many() {
        let at = |step, folder: &str| CheckpointRow { path: format!("{folder}/step-{step}"), ..row(step, None) };
        let mut rows: Vec<_> = (1..=5).map(|step| at(step, "checkpoints")).collect();
        rows.extend((6..=9).map(|step| at(step, "adopted")));
        let rules = |adopted| Rules { containers: keep(2, false), adopted };
        assert_eq!(rules(None).superfluous(&rows, &[]).steps, [2, 3], "1 is the next to be proven");
        assert_eq!(rules(Some(keep(1, false))).superfluous(&rows, &[]).steps, [2, 3, 7, 8]);
        // The best weights may be those of 7 or 8.
        let eval = Eval { step: 7, samples: 7, loss: Some(0.1), ..Eval::default() };
        let found = rules(Some(keep(1, true))).superfluous(&rows, [&eval]);
        assert_eq!((found.steps, found.unmatched.map(|found| found.step)), (vec![2, 3], Some(7)));
        rows[6].eval_loss = Some(0.1);
        assert_eq!(rules(Some(keep(1, true))).superfluous(&rows, [&eval]).steps, [2, 3, 8], "7 is the best");
    }

    #[test]
    fn any_metric_of_an_evaluation_ranks() {
        let accurate = |step, accuracy| CheckpointRow {
            metrics: [("accuracy".to_owned(), accuracy)].into(),
            ..row(step, Some(1.0 / accuracy))
        };
        let rows = vec![accurate(1, 0.5), accurate(2, 0.9), row(3, Some(0.01)), accurate(4, 0.9)];
        let ranking = |goal| Best { metric: "accuracy".to_owned(), goal };
        assert_eq!(best(&rows, &ranking(Goal::Max)), Some(2));
        assert_eq!(best(&rows, &ranking(Goal::Min)), Some(1));
        let knobs = knobs::Checkpoint { best: ranking(Goal::Max), ..keep(1, true) };
        assert_eq!(superfluous(&rows, &knobs), [3], "1 is the next to be proven, 2 the best, 4 the newest");
    }

    #[test]
    fn the_newest_proven_checkpoint_is_kept_at_any_age() {
        let mut rows: Vec<_> = (1..=6).map(|step| row(step, None)).collect();
        (rows[0].proven, rows[1].proven) = (true, true);
        assert_eq!((newest_proven(&rows), next_to_be_proven(&rows)), (Some(2), Some(3)));
        assert_eq!(superfluous(&rows, &keep(2, true)), [1, 4]);
        rows[2].proven = true;
        assert_eq!(superfluous(&rows, &keep(2, true)), [1, 2], "a newer one takes its place");
        rows[0].proven = false;
        assert_eq!(superfluous(&rows, &keep(2, true)), [1, 2], "older than a proven one: nothing to wait for");
    }

    /// Saves every `interval` steps, with retention after each save. Returns the newest proven checkpoint
    /// at the end and the largest number kept.
    fn play(interval: u64, proven_after: u64, steps: u64, knobs: &knobs::Checkpoint) -> (Option<u64>, usize) {
        let (mut rows, mut proving, mut most) = (Vec::new(), Proving::default(), 0);
        for step in 1..=steps {
            for proven in proving.stepped(step, proven_after) {
                rows.iter_mut().filter(|row: &&mut CheckpointRow| row.step == proven).for_each(|row| row.proven = true);
            }
            if step % interval == 0 {
                rows.push(row(step, Some(1.0 / step as f64)));
                proving.saved(step);
            }
            most = most.max(rows.len());
            let gone = superfluous(&rows, knobs);
            rows.retain(|row| !gone.contains(&row.step));
        }
        (newest_proven(&rows), most)
    }

    proptest! {
        #[test]
        fn no_rule_deletes_the_last_proven_one_or_the_newest(
            rows in prop::collection::vec((prop::option::of(0.0f64..1.0), any::<bool>(), any::<bool>()), 1..20),
            keep_last in 0u64..5, keep_best: bool,
        ) {
            let mut all: Vec<_> = (1..).zip(rows).map(|(step, (loss, kept, proven))| CheckpointRow {
                proven, kept, ..row(step, loss)
            }).collect();
            let (newest, proven) = (all.iter().rfind(|row| row.kept).map(|row| row.step), newest_proven(&all));
            for step in superfluous(&all, &keep(keep_last, keep_best)) {
                prop_assert!(Some(step) != newest && Some(step) != proven);
                all.iter_mut().find(|row| row.step == step).unwrap().kept = false;
            }
            prop_assert_eq!(newest_proven(&all), proven);
            prop_assert!(superfluous(&all, &keep(keep_last, keep_best)).is_empty(), "it settles in one go");
        }

        #[test]
        fn however_fast_saves_come_one_of_the_last_two_proofs_is_there_and_the_plan_holds(
            interval in 1u64..40, proven_after in 1u64..200, keep_last in 1u64..5, keep_best: bool, beyond in 0u64..300,
        ) {
            let knobs = keep(keep_last, keep_best);
            let steps = interval + proven_after + beyond;
            let (proven, most) = play(interval, proven_after, steps, &knobs);
            // A proof takes at most the wait for the next save plus its own clean steps.
            let oldest = steps.saturating_sub(2 * (interval + proven_after)).max(interval);
            prop_assert!(proven.is_some_and(|step| step >= oldest), "{proven:?} after {steps}");
            prop_assert!(most as u64 <= knobs.max_on_disk());
        }
    }
}
