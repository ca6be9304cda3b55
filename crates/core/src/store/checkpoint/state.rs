//! The small files of a checkpoint: the training state, and the curve rows since the previous checkpoint.

use super::classes::PictureClasses;
use super::{CheckpointError, CheckpointFolder, STATE, STEPS, list};
use crate::config::best::Best;
use crate::protocol::control::{EvalRow, StepRow};
use crate::protocol::line;
use crate::protocol::worker::Eval;
use crate::recipe::batch::Position;
use crate::recipe::loss_scale::LossScale;
use crate::recipe::plateau::PlateauState;
use crate::untrusted::file::{Limit, read};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// The training state without tensors: the content of `state.json`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct TrainState {
    /// Optimizer steps attempted.
    pub step: u64,
    /// Position of the run in its data: the clock.
    pub position: Position,
    /// Warm-up in force, as a share of the run; none in checkpoints older than this field.
    #[serde(default)]
    pub warmup: Option<f64>,
    /// Clock at the start of that warm-up.
    #[serde(default)]
    pub warmup_from: u64,
    /// Optimizer updates: Adam's t. Skipped steps do not count.
    pub optimizer_time: u64,
    /// Updates of the architecture, in a search; those of the weights are [`TrainState::optimizer_time`].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub architecture_time: u64,
    /// Steps skipped by the guard.
    pub skipped: u64,
    /// Steps skipped in a row at the time of the save.
    pub skips_in_a_row: u64,
    /// Loss scale, when training computes in f16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// The rule for plateaus, and its factor on the learning rate; none until a rung with the rule has trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plateau: Option<PlateauState>,
    /// The run's seed.
    pub seed: u64,
    /// Length of a run whose length is given in optimizer steps: a different batch does not change it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<Length>,
    /// Hash of the data, if the task computes one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// The classes that a picture classifier learns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub classes: Option<PictureClasses>,
    /// SIMD level of the processor that trained, by which sums differ in their last bits; none on a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub simd: Option<String>,
    /// The rung that wrote this checkpoint, 0 = fastest.
    pub rung: usize,
    /// That rung's name.
    pub rung_name: String,
    /// Another run wrote this checkpoint, maybe with a model of another shape: `rung` is the one that begins with it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_foreign: bool,
    /// The attempt that wrote this checkpoint.
    pub attempt: u64,
    /// The newest evaluation.
    pub eval: Option<Eval>,
    /// Lowest loss of all evaluations, whether or not their weights were saved.
    pub best_eval_loss: Option<f64>,
    /// Seconds of training, over all attempts whose work is kept.
    pub trained_s: f64,
    /// [`TrainState::trained_s`] at the newest evaluation.
    pub evaluated_at_s: f64,
}

/// A run's length in optimizer steps, and its equivalent on the run's clock with the initial batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Length {
    /// The knob `training.steps`.
    pub steps: u64,
    /// Clock units.
    pub units: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl TrainState {
    /// Reads the state among the files of a checkpoint.
    #[must_use]
    pub fn in_files(files: &BTreeMap<String, Vec<u8>>) -> Option<Self> {
        serde_json::from_slice(files.get(STATE)?).ok()
    }

    /// Returns the evaluation of exactly these weights, if there was one.
    #[must_use]
    pub fn own_eval(&self) -> Option<&Eval> {
        self.eval.as_ref().filter(|eval| eval.step == self.step)
    }

    /// Returns the validation loss of exactly these weights, if it was measured.
    #[must_use]
    pub fn own_eval_loss(&self) -> Option<f64> {
        self.own_eval().and_then(|eval| eval.loss)
    }
}

/// Returns the best value among the checkpoints on disk up to `step`, each measured on its own weights.
#[must_use]
pub fn best_value_on_disk(run_dir: &Path, step: u64, ranking: &Best) -> Option<f64> {
    let entries = list(run_dir).into_iter().filter(|entry| entry.step <= step);
    let value = |entry: CheckpointFolder| {
        let text = read(&entry.path.join(STATE), Limit::Record).ok()?;
        let state: TrainState = serde_json::from_slice(&text).ok()?;
        let eval = state.own_eval()?;
        ranking.value(eval.loss, &eval.metrics)
    };
    entries.filter_map(value).min_by(|a, b| ranking.compare(*a, *b))
}

/// A line of `steps.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "row", rename_all = "snake_case")]
pub enum Row {
    /// An optimizer step, taken or skipped.
    Step(StepRow),
    /// An evaluation.
    Eval(EvalRow),
}

impl Row {
    /// Formats rows as the text of `steps.jsonl`.
    #[must_use]
    pub fn write_all(rows: &[Self]) -> String {
        rows.iter().filter_map(|row| line::encode(row).ok()).collect()
    }

    /// Parses the rows of a `steps.jsonl`; skips lines that hold anything else.
    pub fn read_all(text: &[u8]) -> Vec<Self> {
        String::from_utf8_lossy(text).lines().filter_map(line::decode).collect()
    }
}

/// Reads and verifies the rows of the checkpoint at `path`, and nothing else of it.
///
/// # Errors
/// Returns an error when the rows are missing, unreadable, or differ from what was written.
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
    entry
        .compare(text.len() as u64, &blake3::hash(&text))
        .map_err(|damage| CheckpointError::damaged(&file, damage.to_string()))?;
    Ok(Row::read_all(&text))
}

#[cfg(test)]
mod tests {
    use super::Row;
    use crate::protocol::control::{EvalRow, StepRow};
    use crate::protocol::metrics::Metrics;
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
            lr: Some(1e-3),
            grad_norm: None,
            skipped: true,
            data_wait_ms: 0.1,
            compute_ms: 12.0,
            time_ms: 1_700_000_000_000,
            metrics: Metrics::from([("fid".to_owned(), 12.5)]),
        };
        let eval = Eval {
            step: 7,
            samples: 224,
            loss: Some(0.3),
            metrics: Metrics::from([("accuracy".to_owned(), 0.9), ("top-5".to_owned(), 0.99)]),
            ..Eval::default()
        };
        let rows = vec![Row::Step(step), Row::Eval(EvalRow { attempt: 2, time_ms: 5, eval })];
        let text = Row::write_all(&rows) + "not a row\n{\"row\":\"other\"}\n";
        assert_eq!(Row::read_all(text.as_bytes()), rows);
    }
}
