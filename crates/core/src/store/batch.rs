//! Rows waiting for the store: written in one transaction, or kept whole for the next try.

use super::rows::MOST_LAYERS;
use super::step_metrics;
use super::summary::{BLOCK, MetricNames};
use crate::protocol::cause::Cause;
use crate::protocol::control::{CheckpointRow, EvalRow, JournalRow, LayerRow, ReadingRow, StepRow};
use crate::protocol::worker::Eval;
use rusqlite::{Transaction, params};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Tables with rows of an attempt's steps.
const BY_STEP: [&str; 3] = ["steps", "evals", "layers"];

/// New rows for the store.
#[derive(Debug, Default)]
pub struct Batch {
    /// Attempts that went back, each to the step after which nothing stored so far counts.
    pub(super) went_back: BTreeMap<u64, u64>,
    /// Optimizer steps.
    pub steps: Vec<StepRow>,
    /// Evaluations.
    pub evals: Vec<EvalRow>,
    /// The state of the layers at evaluations.
    pub layers: Vec<LayerRow>,
    /// Probe readings.
    pub samples: Vec<ReadingRow>,
    /// Journal lines.
    pub journal: Vec<JournalRow>,
    /// Changed facts: JSON by name.
    pub facts: BTreeMap<String, String>,
    /// New or changed attempts, by number.
    pub attempts: BTreeMap<u64, AttemptRow>,
    /// Causes of ended attempts, by attempt number.
    pub causes: BTreeMap<u64, Cause>,
    /// New or changed checkpoints, by step.
    pub checkpoints: BTreeMap<u64, CheckpointRow>,
}

/// The record of an attempt.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct AttemptRow {
    /// Its number.
    pub id: u64,
    /// Its rung.
    pub rung: usize,
    /// The rung's name.
    pub rung_name: String,
    /// The reason for its start, as a sentence.
    pub reason: String,
    /// Start time, Unix milliseconds.
    pub started_ms: i64,
    /// Process id of its worker.
    pub pid: Option<u32>,
    /// The step it resumed from.
    pub from_step: Option<u64>,
    /// End time, Unix milliseconds.
    pub ended_ms: Option<i64>,
    /// How it ended, as a sentence.
    pub outcome: Option<String>,
}

impl Batch {
    /// Reports whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let rows = self.steps.is_empty() && self.evals.is_empty() && self.samples.is_empty() && self.journal.is_empty();
        let measured = self.layers.is_empty() && self.went_back.is_empty();
        let known = self.attempts.is_empty() && self.causes.is_empty() && self.checkpoints.is_empty();
        rows && measured && known && self.facts.is_empty()
    }

    /// Sets a fact: a small value under a name.
    pub fn put_fact<T: Serialize>(&mut self, key: &str, value: &T) {
        self.facts.insert(key.to_owned(), json(value));
    }

    /// Drops everything of an attempt after a step, here and in the store: another process of its command trains on
    /// from there.
    pub fn go_back(&mut self, attempt: u64, step: u64) {
        let stays = |of: u64, at: u64| of != attempt || at <= step;
        self.steps.retain(|row| stays(row.attempt, row.step));
        self.evals.retain(|row| stays(row.attempt, row.eval.step));
        self.layers.retain(|row| stays(row.attempt, row.stats.step));
        let lowest = self.went_back.entry(attempt).or_insert(step);
        *lowest = step.min(*lowest);
    }

    /// Writes everything. Steps and journal lines already in the store stay unchanged.
    pub(super) fn write(&self, transaction: &Transaction<'_>, names: &mut MetricNames) -> rusqlite::Result<()> {
        self.delete_abandoned(transaction)?;
        self.write_steps(transaction, names)?;
        self.write_layers(transaction)?;
        self.write_evals(transaction)?;
        let mut sample = transaction.prepare_cached("INSERT OR REPLACE INTO samples VALUES (?1, ?2)")?;
        for row in &self.samples {
            sample.execute(params![row.time_ms, json(&row.reading)])?;
        }
        let mut line = transaction.prepare_cached("INSERT OR IGNORE INTO journal VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?;
        for row in &self.journal {
            let step = row.step.map(|step| step as i64);
            line.execute(params![row.id, row.time_ms, step, json(&row.level), json(&row.kind), row.text])?;
        }
        let mut fact = transaction.prepare_cached("INSERT OR REPLACE INTO facts VALUES (?1, ?2)")?;
        for (key, value) in &self.facts {
            fact.execute(params![key, value])?;
        }
        let mut cause = transaction.prepare_cached("INSERT OR REPLACE INTO causes VALUES (?1, ?2, ?3)")?;
        for (attempt, known) in &self.causes {
            cause.execute(params![*attempt as i64, known.class.word(), json(known)])?;
        }
        self.write_attempts(transaction)?;
        self.checkpoints.values().try_for_each(|row| put_checkpoint(transaction, row))
    }

    /// Deletes what a dead process of the command did beyond the step from which the next one trains on.
    fn delete_abandoned(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        for (attempt, step) in &self.went_back {
            for table in BY_STEP {
                let beyond = format!("DELETE FROM {table} WHERE attempt = ?1 AND step > ?2");
                transaction.prepare_cached(&beyond)?.execute(params![*attempt as i64, *step as i64])?;
            }
            let blocks = "DELETE FROM summaries WHERE attempt = ?1 AND block >= ?2";
            transaction.execute(blocks, params![*attempt as i64, (step.saturating_add(1) / BLOCK) as i64])?;
        }
        Ok(())
    }

    /// Writes the evaluations. One at a step that has one already is a later report of it.
    fn write_evals(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        let mut insert = transaction.prepare_cached("INSERT OR IGNORE INTO evals VALUES (?1, ?2, ?3, ?4)")?;
        let mut read = transaction.prepare_cached("SELECT eval FROM evals WHERE attempt = ?1 AND step = ?2")?;
        let mut update = transaction.prepare_cached("UPDATE evals SET eval = ?3 WHERE attempt = ?1 AND step = ?2")?;
        for row in &self.evals {
            let (attempt, step) = (row.attempt as i64, row.eval.step as i64);
            if insert.execute(params![attempt, step, row.time_ms, json(&row.eval)])? > 0 {
                continue;
            }
            let known: String = read.query_row([attempt, step], |row| row.get(0))?;
            if let Ok(mut known) = serde_json::from_str::<Eval>(&known)
                && known.update(&row.eval)
            {
                update.execute(params![attempt, step, json(&known)])?;
            }
        }
        Ok(())
    }

    /// Writes the state of the layers, and deletes the oldest beyond the limit.
    fn write_layers(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        if self.layers.is_empty() {
            return Ok(());
        }
        let mut layers = transaction.prepare_cached("INSERT OR IGNORE INTO layers VALUES (?1, ?2, ?3, ?4)")?;
        for row in &self.layers {
            layers.execute(params![row.attempt as i64, row.stats.step as i64, row.time_ms, json(&row.stats)])?;
        }
        let oldest = "DELETE FROM layers WHERE (attempt, step) <
                      (SELECT attempt, step FROM layers ORDER BY attempt DESC, step DESC LIMIT 1 OFFSET ?1)";
        transaction.prepare_cached(oldest)?.execute([MOST_LAYERS - 1])?;
        Ok(())
    }

    fn write_steps(&self, transaction: &Transaction<'_>, names: &mut MetricNames) -> rusqlite::Result<()> {
        let known = names.len();
        // A step that a companion counted gets its loss once a line prints it.
        let mut step = transaction.prepare_cached(
            "INSERT INTO steps VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
             ON CONFLICT DO UPDATE SET loss = excluded.loss, epoch = max(epoch, excluded.epoch), lr = coalesce(lr, excluded.lr),
                 grad_norm = coalesce(grad_norm, excluded.grad_norm), metrics = coalesce(metrics, excluded.metrics)
             WHERE loss IS NULL AND NOT skipped AND NOT excluded.skipped",
        )?;
        for row in &self.steps {
            step.execute(params![
                row.attempt as i64,
                row.step as i64,
                row.rung as i64,
                row.samples as i64,
                row.epoch as i64,
                row.loss,
                row.lr,
                row.grad_norm,
                row.skipped,
                row.data_wait_ms,
                row.compute_ms,
                row.time_ms,
                step_metrics::encode(&row.metrics, names)
            ])?;
        }
        step_metrics::write_names(transaction, names, known)
    }

    fn write_attempts(&self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        let mut attempt = transaction
            .prepare_cached("INSERT OR REPLACE INTO attempts VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)")?;
        for row in self.attempts.values() {
            attempt.execute(params![
                row.id as i64,
                row.rung as i64,
                row.rung_name,
                row.reason,
                row.started_ms,
                row.pid,
                row.from_step.map(|step| step as i64),
                row.ended_ms,
                row.outcome
            ])?;
        }
        Ok(())
    }
}

/// Inserts or updates the record of a checkpoint.
fn put_checkpoint(transaction: &Transaction<'_>, row: &CheckpointRow) -> rusqlite::Result<()> {
    let mut put = transaction.prepare_cached(
        "INSERT OR REPLACE INTO checkpoints
         (step, samples, path, bytes, time_ms, pause_ms, total_ms, eval_loss, best, kept, proven, metrics)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
    )?;
    put.execute(params![
        row.step as i64,
        row.samples as i64,
        row.path,
        row.bytes as i64,
        row.time_ms,
        row.pause_ms,
        row.total_ms,
        row.eval_loss,
        row.best,
        row.kept,
        row.proven,
        (!row.metrics.is_empty()).then(|| json(&row.metrics))
    ])?;
    Ok(())
}

fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::Batch;
    use crate::protocol::control::EvalRow;
    use crate::protocol::worker::Eval;
    use crate::store::writer::Writer;

    #[test]
    fn a_later_report_replaces_and_completes_the_evaluation_of_its_step() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(&dir.path().join("run.db")).unwrap();
        let mut evaluate = |attempt, loss, metrics: &[(&str, f64)]| {
            let metrics = metrics.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
            let eval = Eval { step: 7, samples: 70, loss, metrics, ..Eval::default() };
            let batch = Batch { evals: vec![EvalRow { attempt, time_ms: 1, eval }], ..Batch::default() };
            writer.append(&batch).unwrap();
            let rows = writer.evals().unwrap();
            rows.into_iter().map(|row| (row.attempt, row.eval.loss, row.eval.metrics)).next_back().unwrap()
        };
        evaluate(1, Some(0.5), &[("accuracy", 0.9)]);
        let (_, loss, metrics) = evaluate(1, Some(0.7), &[("hard/accuracy", 0.4)]);
        assert_eq!(loss, Some(0.7), "an evaluation that prints its progress ends with its last line");
        assert_eq!(metrics, [("accuracy".to_owned(), 0.9), ("hard/accuracy".to_owned(), 0.4)].into());
        let (attempt, loss, metrics) = evaluate(2, None, &[("fid", 3.0)]);
        assert_eq!((attempt, loss, metrics.len()), (2, None, 1), "another attempt measured other weights");
    }
}
