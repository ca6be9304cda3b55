//! Compares a run with faults with the uninterrupted one.

use crate::Failing;
use crate::place::Place;
use downshift::store::checkpoint::{self, FOLDER, OPTIMIZER, STEPS, aside};
use downshift::store::database::open_reader;
use downshift::store::reader::Reader;
use downshift::store::run_dir::RunDir;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;

/// The results of a finished run that must not depend on the faults.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// By step: the exported row of the highest attempt, without attempt and rung.
    curve: BTreeMap<u64, Value>,
    /// By step: the validation loss, as bits.
    evals: BTreeMap<u64, Option<u64>>,
    /// The exported weights.
    weights: Vec<u8>,
    /// The optimizer moments of the last checkpoint.
    moments: Vec<u8>,
}

/// One start of a worker.
#[derive(Debug)]
pub struct Attempt {
    /// Start time in Unix milliseconds.
    pub started_ms: i64,
    /// The step it started from.
    pub from: u64,
    /// The last step that any earlier attempt is known to have completed.
    pub before: u64,
}

/// Reads the trace of a finished run.
pub fn read_trace(place: &Place, run: &RunDir) -> Failing<Trace> {
    let mut curve = BTreeMap::new();
    let mut highest = BTreeMap::new();
    for line in String::from_utf8(place.output(&["export"])?.stdout)?.lines() {
        let mut row: Value = serde_json::from_str(line)?;
        let (step, attempt) = (row["step"].as_u64().unwrap_or(0), row["attempt"].as_u64().unwrap_or(0));
        let Some(fields) = row.as_object_mut() else { continue };
        fields.remove("attempt");
        fields.remove("rung");
        if highest.get(&step).is_none_or(|known| *known < attempt) {
            highest.insert(step, attempt);
            curve.insert(step, row);
        }
    }
    let evals = Reader::open(run)?.evals()?;
    let evals = evals.into_iter().map(|row| (row.eval.step, row.eval.loss.map(f64::to_bits))).collect();
    let out = place.file("weights.safetensors");
    place.output(&["checkpoints", "export", "--out", &out.display().to_string()])?;
    let mut newest = checkpoint::newest_valid(run.path()).0.ok_or("no checkpoint verifies")?;
    let moments = newest.files.remove(OPTIMIZER).ok_or("the newest checkpoint has no moments")?;
    Ok(Trace { curve, evals, weights: fs::read(out)?, moments })
}

impl Trace {
    /// Returns the number of steps, first to last.
    pub fn steps(&self) -> u64 {
        self.curve.keys().next_back().copied().unwrap_or(0)
    }

    /// Checks that this is the uninterrupted run, bit for bit.
    ///
    /// # Errors
    /// Returns the first difference.
    pub fn check(&self, unbroken: &Self) -> Failing<()> {
        self.difference(unbroken).map_or(Ok(()), |difference| Err(difference.into()))
    }

    /// Checks that weights, moments and the curve from this step on match the uninterrupted run. Rows of
    /// older steps are gone if the store was lost: only retained checkpoints carry theirs.
    ///
    /// # Errors
    /// Returns the first difference.
    pub fn check_from(mut self, step: u64, unbroken: &Self) -> Failing<()> {
        let curve = unbroken.curve.clone().split_off(&(step + 1));
        self.curve = self.curve.split_off(&(step + 1));
        let wanted = Self { curve, evals: self.evals.clone(), ..unbroken.clone() };
        self.check(&wanted)
    }

    fn difference(&self, unbroken: &Self) -> Option<String> {
        for (step, wanted) in &unbroken.curve {
            match self.curve.get(step) {
                None => {
                    let missing = unbroken.curve.keys().filter(|step| !self.curve.contains_key(step)).count();
                    return Some(format!("a hole in the curve: {missing} steps, the first of them {step}"));
                }
                Some(found) if found != wanted => return Some(format!("step {step}: {found} instead of {wanted}")),
                Some(_) => {}
            }
        }
        if self.curve.len() != unbroken.curve.len() {
            return Some(format!("{} steps instead of {}", self.curve.len(), unbroken.curve.len()));
        }
        if self.evals != unbroken.evals {
            let step = unbroken.evals.iter().find(|(step, loss)| self.evals.get(step) != Some(loss));
            return Some(format!("another evaluation at step {:?}", step.map(|(step, _)| step)));
        }
        let parts = [(&self.weights, &unbroken.weights, "weights"), (&self.moments, &unbroken.moments, "moments")];
        parts.into_iter().find(|(found, wanted, _)| found != wanted).map(|(.., name)| format!("other {name}"))
    }
}

/// Returns the newest step of all checkpoints the keeper acknowledged and did not retire; an error if
/// one of them is not intact on disk.
pub fn newest_acknowledged(run: &RunDir) -> Failing<Option<u64>> {
    // A run killed right after its start has no store yet.
    let kept = || -> Vec<u64> {
        let rows = Reader::open(run).and_then(|reader| reader.checkpoints()).unwrap_or_default();
        rows.into_iter().filter(|row| row.kept).map(|row| row.step).collect()
    };
    let steps = kept();
    for step in &steps {
        let path = run.path().join(checkpoint::relative_path(*step));
        if let Err(error) = checkpoint::verify(&path) {
            // It may have been retired since the store was read.
            if kept().contains(step) {
                return Err(format!("acknowledged checkpoint {step} is lost: {error}").into());
            }
        }
    }
    Ok(steps.into_iter().max())
}

/// Returns the step after which the checkpoints on disk hold every row of the curve up to the newest one. Rows of
/// retired checkpoints are only in the store.
pub fn rows_held_from(run: &RunDir) -> Failing<u64> {
    let mut entries = checkpoint::list(run.path());
    entries.sort_by_key(|entry| std::cmp::Reverse(entry.step));
    let mut from = entries.first().ok_or("there is no checkpoint")?.step;
    for entry in entries.iter().filter(|entry| entry.step > 0) {
        if entry.step != from {
            break;
        }
        for line in fs::read_to_string(entry.path.join(STEPS))?.lines() {
            let row: Value = serde_json::from_str(line)?;
            if row["row"] == "step" {
                from = from.min(row["step"].as_u64().unwrap_or(from).saturating_sub(1));
            }
        }
    }
    Ok(from)
}

/// Returns every start after the first, with the steps it had to redo.
pub fn attempts(run: &RunDir) -> Failing<Vec<Attempt>> {
    let connection = open_reader(&run.file("run.db"))?;
    let mut query = connection.prepare(
        "SELECT started_ms, coalesce(from_step, 0),
                (SELECT coalesce(max(step), 0) FROM steps WHERE steps.attempt < attempts.id)
         FROM attempts WHERE id > 1 AND from_step IS NOT NULL ORDER BY id",
    )?;
    let rows = query.query_map([], |row| {
        let (from, before): (i64, i64) = (row.get(1)?, row.get(2)?);
        Ok(Attempt { started_ms: row.get(0)?, from: from.unsigned_abs(), before: before.unsigned_abs() })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Checks the invariants of the store and directory of any finished run.
pub fn check(run: &RunDir) -> Failing<()> {
    let connection = open_reader(&run.file("run.db"))?;
    // Rows carry their creation time: two workers at once would interleave.
    let overlaps: i64 = connection.query_row(
        "WITH spans AS (SELECT attempt, min(time_ms) AS first, max(time_ms) AS last FROM steps GROUP BY attempt)
         SELECT count(*) FROM spans a JOIN spans b ON b.attempt > a.attempt AND b.first < a.last",
        [],
        |row| row.get(0),
    )?;
    if overlaps > 0 {
        return Err(format!("{overlaps} pairs of attempts trained at the same time").into());
    }
    if let Some(pair) = attempts(run)?.windows(2).find(|pair| pair[0].from > pair[1].from) {
        return Err(format!("a worker began at step {}, the next one at {}", pair[0].from, pair[1].from).into());
    }
    newest_acknowledged(run)?;
    let rows = Reader::open(run)?.checkpoints()?;
    for entry in fs::read_dir(run.file(FOLDER))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        // Files the keeper set aside as unusable are kept for the user, not for the run.
        let known = name == aside::ASIDE || rows.iter().any(|row| row.kept && row.path.ends_with(&name));
        if !known {
            return Err(format!("{FOLDER}/{name} is left over: no row of the store knows it").into());
        }
    }
    Ok(())
}
