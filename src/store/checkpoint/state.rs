//! The small files of a checkpoint: where training stands, and the rows of the curve since the
//! checkpoint before.

use super::{CheckpointError, STEPS};
use crate::protocol::control::{EvalRow, StepRow};
use crate::protocol::line;
use crate::protocol::worker::Eval;
use crate::recipe::batch::Position;
use crate::recipe::loss_scale::LossScale;
use crate::untrusted::file::{Limit, read};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Everything but tensors: the content of `state.json`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TrainState {
    /// Optimizer steps attempted.
    pub step: u64,
    /// Where the run stands in its data: the clock.
    pub position: Position,
    /// The warm-up in force, as a share of the run; none where a checkpoint is older than this field.
    #[serde(default)]
    pub warmup: Option<f64>,
    /// What the clock showed when that warm-up began.
    #[serde(default)]
    pub warmup_from: u64,
    /// Updates the optimizer has made: Adam's t. Skipped steps do not count.
    pub optimizer_time: u64,
    /// Steps the guard dropped.
    pub skipped: u64,
    /// How many of them just before this moment, without a good one in between.
    pub skips_in_a_row: u64,
    /// The scale of the loss, where training computes in f16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// The run's seed.
    pub seed: u64,
    /// How long the run is, where optimizer steps say it: another batch leaves it as long as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<Length>,
    /// A hash of the data, where the task computes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// The rung that wrote this, 0 = fastest.
    pub rung: usize,
    /// Its name.
    pub rung_name: String,
    /// The attempt that wrote this.
    pub attempt: u64,
    /// The newest evaluation.
    pub eval: Option<Eval>,
    /// The lowest loss of all evaluations, whether their weights were saved or not.
    pub best_eval_loss: Option<f64>,
    /// Seconds of training, in all attempts whose work is kept.
    pub trained_s: f64,
    /// [`TrainState::trained_s`] when the newest evaluation was made.
    pub evaluated_at_s: f64,
}

/// So many optimizer steps, and what they are on the run's clock with the batch they began with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Length {
    /// The knob `training.steps`.
    pub steps: u64,
    /// Units of the clock.
    pub units: u64,
}

impl TrainState {
    /// The validation loss of exactly these weights, where they were measured.
    #[must_use]
    pub fn own_eval_loss(&self) -> Option<f64> {
        self.eval.filter(|eval| eval.step == self.step).map(|eval| eval.loss)
    }
}

/// A line of `steps.jsonl`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "row", rename_all = "snake_case")]
pub enum Row {
    /// An optimizer step, taken or skipped.
    Step(StepRow),
    /// An evaluation.
    Eval(EvalRow),
}

impl Row {
    /// The text of `steps.jsonl`.
    #[must_use]
    pub fn write_all(rows: &[Self]) -> String {
        rows.iter().filter_map(|row| line::encode(row).ok()).collect()
    }

    /// The rows of a `steps.jsonl`; lines that hold something else are passed over.
    pub fn read_all(text: &[u8]) -> Vec<Self> {
        String::from_utf8_lossy(text).lines().filter_map(line::decode).collect()
    }
}

/// The rows of the checkpoint at `path`, verified; nothing else of it is read.
///
/// # Errors
/// When they are missing, unreadable, or not what was written.
pub fn rows_of(path: &Path) -> Result<Vec<Row>, CheckpointError> {
    let manifest = super::manifest(path)?;
    let file = path.join(STEPS);
    let entry = manifest.files.iter().find(|entry| entry.name == STEPS);
    let entry = entry.ok_or_else(|| CheckpointError::Missing(file.clone()))?;
    let text = read(&file, Limit::Memory).map_err(|error| CheckpointError::Io {
        file: file.clone(),
        action: "read",
        source: error.into(),
    })?;
    entry.compare(text.len() as u64, &blake3::hash(&text)).map_err(|reason| CheckpointError::damaged(&file, reason))?;
    Ok(Row::read_all(&text))
}

#[cfg(test)]
mod tests {
    use super::Row;
    use crate::protocol::control::{EvalRow, StepRow};
    use crate::protocol::worker::Eval;

    #[test]
    fn rows_survive_the_file() {
        let step = StepRow {
            attempt: 2,
            rung: 1,
            step: 7,
            samples: 224,
            epoch: 0,
            loss: None,
            lr: 1e-3,
            grad_norm: None,
            skipped: true,
            data_wait_ms: 0.1,
            compute_ms: 12.0,
            time_ms: 1_700_000_000_000,
        };
        let eval = Eval { step: 7, samples: 224, loss: 0.3, accuracy: Some(0.9), perplexity: None };
        let rows = vec![Row::Step(step), Row::Eval(EvalRow { attempt: 2, time_ms: 5, eval })];
        let text = Row::write_all(&rows) + "not a row\n{\"row\":\"other\"}\n";
        assert_eq!(Row::read_all(text.as_bytes()), rows);
    }
}
