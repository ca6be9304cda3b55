//! Reads rows of `steps`, `evals` and `checkpoints`, of this schema and of those before it.

use super::database::schema_version;
use super::step_metrics::{self, read_names};
use super::summary::MetricNames;
use crate::protocol::control::{CheckpointRow, EvalRow, LayerRow, StepRow};
use crate::protocol::samples::LayerStats;
use crate::protocol::worker::Eval;
use crate::untrusted::database::TextBudget;
use rusqlite::{CachedStatement, Connection, Row};

/// Evaluations whose layers are kept, the newest: those of a large model take tens of kilobytes each.
pub const MOST_LAYERS: i64 = 1024;

/// Reads every evaluation, by attempt and step.
///
/// # Errors
/// Returns an error when `SQLite` fails.
pub fn evals(connection: &Connection) -> rusqlite::Result<Vec<EvalRow>> {
    let mut query = connection.prepare("SELECT attempt, time_ms, eval FROM evals ORDER BY attempt, step")?;
    let rows = query.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get(1)?, row.get::<_, String>(2)?)))?;
    let mut budget = TextBudget::default();
    rows.filter_map(|row| {
        row.and_then(|(attempt, time_ms, eval)| {
            budget.spend(&eval)?;
            let eval: Option<Eval> = serde_json::from_str(&eval).ok();
            Ok(eval.map(|eval| EvalRow { attempt: attempt.unsigned_abs(), time_ms, eval }))
        })
        .transpose()
    })
    .collect()
}

/// Reads the newest states of the layers after step `after`, by attempt and step. A store of before has no such table.
///
/// # Errors
/// Returns an error when `SQLite` fails.
pub fn layers(connection: &Connection, after: Option<u64>) -> rusqlite::Result<Vec<LayerRow>> {
    if !connection.table_exists(None, "layers")? {
        return Ok(Vec::new());
    }
    let mut query = connection.prepare_cached(
        "SELECT attempt, time_ms, layers FROM layers WHERE step > ?1 ORDER BY attempt DESC, step DESC LIMIT ?2",
    )?;
    let newest = [after.map_or(-1, |step| step as i64), MOST_LAYERS];
    let rows = query.query_map(newest, |row| Ok((count(row, 0)?, row.get(1)?, row.get::<_, String>(2)?)))?;
    let mut budget = TextBudget::default();
    let read = rows.filter_map(|row| {
        row.and_then(|(attempt, time_ms, stats)| {
            budget.spend(&stats)?;
            let stats: Option<LayerStats> = serde_json::from_str(&stats).ok();
            Ok(stats.map(|stats| LayerRow { attempt, time_ms, stats }))
        })
        .transpose()
    });
    let mut layers: Vec<LayerRow> = read.collect::<rusqlite::Result<_>>()?;
    layers.reverse();
    Ok(layers)
}

/// Reads rows of `steps`.
pub struct StepReader<'a> {
    connection: &'a Connection,
    columns: &'static str,
    /// Names of the run's metrics.
    pub names: MetricNames,
}

impl<'a> StepReader<'a> {
    /// Creates the reader, with the names known by now.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn new(connection: &'a Connection) -> rusqlite::Result<Self> {
        let (columns, names) = match schema_version(connection)? {
            ..3 => ("NULL", MetricNames::default()),
            _ => ("metrics", read_names(connection)?),
        };
        Ok(Self { connection, columns, names })
    }

    /// Prepares a query for rows that [`Self::row`] reads; `rest` follows the columns.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn query(&self, rest: &str) -> rusqlite::Result<CachedStatement<'a>> {
        self.connection.prepare_cached(&format!(
            "SELECT attempt, step, rung, samples, epoch, loss, lr, grad_norm, skipped, data_wait_ms, compute_ms,
                    time_ms, {} FROM steps {rest}",
            self.columns
        ))
    }

    /// Reads a row.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn row(&self, row: &Row<'_>) -> rusqlite::Result<StepRow> {
        let metrics = row.get_ref(12)?.as_blob_or_null()?;
        Ok(StepRow {
            attempt: count(row, 0)?,
            step: count(row, 1)?,
            rung: row.get::<_, i64>(2)?.unsigned_abs() as usize,
            samples: count(row, 3)?,
            epoch: count(row, 4)?,
            loss: row.get(5)?,
            lr: row.get(6)?,
            grad_norm: row.get(7)?,
            skipped: row.get(8)?,
            data_wait_ms: row.get(9)?,
            compute_ms: row.get(10)?,
            time_ms: row.get(11)?,
            metrics: metrics.map(|bytes| step_metrics::decode(bytes, &self.names)).unwrap_or_default(),
        })
    }
}

/// Returns all checkpoints in the store, oldest first.
///
/// # Errors
/// Returns an error when `SQLite` fails.
pub fn checkpoints(connection: &Connection) -> rusqlite::Result<Vec<CheckpointRow>> {
    let newer = match schema_version(connection)? {
        ..2 => "0, NULL",
        2 => "proven, NULL",
        _ => "proven, metrics",
    };
    let mut query = connection.prepare(&format!(
        "SELECT step, samples, path, bytes, time_ms, pause_ms, total_ms, eval_loss, best, kept, {newer}
         FROM checkpoints ORDER BY step"
    ))?;
    let rows = query.query_map([], |row| {
        Ok(CheckpointRow {
            step: count(row, 0)?,
            samples: count(row, 1)?,
            path: row.get(2)?,
            bytes: count(row, 3)?,
            time_ms: row.get(4)?,
            pause_ms: row.get(5)?,
            total_ms: row.get(6)?,
            eval_loss: row.get(7)?,
            best: row.get(8)?,
            kept: row.get(9)?,
            proven: row.get(10)?,
            metrics: row
                .get::<_, Option<String>>(11)?
                .and_then(|text| serde_json::from_str(&text).ok())
                .unwrap_or_default(),
        })
    })?;
    rows.collect()
}

/// Reads a number that is never negative.
///
/// # Errors
/// Returns an error when `SQLite` fails.
pub fn count(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(i64::unsigned_abs)
}
