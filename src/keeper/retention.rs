//! Which checkpoints stay.

use crate::protocol::control::CheckpointRow;
use std::collections::BTreeSet;

/// The steps of the checkpoints to delete: all but the newest `keep_last`, and the best one where
/// `keep_best` says so.
pub fn superfluous(rows: &[CheckpointRow], keep_last: u64, keep_best: bool) -> Vec<u64> {
    let kept: BTreeSet<u64> = rows.iter().filter(|row| row.kept).map(|row| row.step).collect();
    let newest: BTreeSet<u64> = kept.iter().rev().take(keep_last.max(1) as usize).copied().collect();
    let best = best(rows).filter(|_| keep_best);
    kept.into_iter().filter(|step| !newest.contains(step) && Some(*step) != best).collect()
}

/// The step of the checkpoint with the lowest evaluation loss among those on disk; the older one
/// where several saw the same evaluation.
pub fn best(rows: &[CheckpointRow]) -> Option<u64> {
    let measured = rows.iter().filter(|row| row.kept).filter_map(|row| Some((row.eval_loss?, row.step)));
    measured.min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))).map(|(_, step)| step)
}

#[cfg(test)]
mod tests {
    use super::{best, superfluous};
    use crate::protocol::control::CheckpointRow;

    fn row(step: u64, eval_loss: Option<f64>) -> CheckpointRow {
        let (path, time_ms) = (String::new(), 0);
        CheckpointRow {
            step,
            samples: 0,
            path,
            bytes: 0,
            time_ms,
            pause_ms: 0.0,
            total_ms: 0.0,
            eval_loss,
            best: false,
            kept: true,
        }
    }

    #[test]
    fn the_newest_and_the_best_stay() {
        let mut rows = vec![row(1, None), row(2, Some(0.2)), row(3, Some(0.5)), row(4, Some(0.2)), row(5, Some(0.4))];
        assert_eq!(best(&rows), Some(2));
        assert_eq!(superfluous(&rows, 2, true), [1, 3]);
        assert_eq!(superfluous(&rows, 2, false), [1, 2, 3]);
        assert_eq!(superfluous(&rows, 0, false), [1, 2, 3, 4], "the newest always stays");
        rows[1].kept = false;
        assert_eq!(best(&rows), Some(4));
    }
}
