//! The curve of a run: for a step that was redone, the row of the attempt that led to the newest one.
//!
//! An attempt counts up to the step where a later one began; its work beyond that was redone. One that
//! begins from a checkpoint of an earlier attempt, which had been set aside, continues that attempt. Its
//! steps come as whole leaves (see [`summary`](super::summary)) where those lie entirely within its
//! stretch. They come as rows at the ends of the stretch, where a block has not been written, and for
//! the newest steps.

use super::reader::Reader;
use super::rows::{StepReader, count};
use super::summary::{BLOCK, Bucket, Point, bytes, leaves};
use crate::protocol::control::StepRow;
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::collections::BTreeMap;
use std::ops::Range;

/// Newest steps that come as rows.
pub const NEWEST: u64 = 4096;

/// A stretch of the curve from one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    /// The attempt.
    pub attempt: u64,
    /// Its rung.
    pub rung: usize,
    /// Its steps on the curve.
    pub steps: Range<u64>,
}

/// A piece of the curve.
#[derive(Debug, Clone)]
pub enum Piece {
    /// A summary of neighbouring steps.
    Leaf(Bucket),
    /// One of the newest steps.
    Row(StepRow),
}

const WITHIN: &str = "WHERE attempt = ?1 AND step >= ?2 AND step < ?3 ORDER BY step";

impl Reader {
    /// Returns the stretches of the curve, oldest first.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn stretches(&self) -> rusqlite::Result<Vec<Stretch>> {
        self.stretches_up_to(u64::MAX, &mut BTreeMap::new())
    }

    /// Returns the stretches of the curve as it was after an attempt; `known` are those found so far, by attempt.
    fn stretches_up_to(&self, newest: u64, known: &mut BTreeMap<u64, Vec<Stretch>>) -> rusqlite::Result<Vec<Stretch>> {
        let mut found: Vec<Stretch> = Vec::new();
        let mut attempt = 0;
        while let Some((first, rung, step)) = self.first_after(attempt)?.filter(|(first, ..)| *first <= newest) {
            attempt = first;
            let last = self.connection.query_row(
                "SELECT step FROM steps WHERE attempt = ?1 ORDER BY step DESC LIMIT 1",
                [attempt as i64],
                |row| row.get::<_, i64>(0),
            )?;
            if let Some((origin, from)) = self.origin(attempt)?
                && self.first_after(origin - 1)?.is_some_and(|(with_rows, ..)| with_rows == origin)
                && !leads_to(&found, origin, from)
            {
                found = match known.get(&origin) {
                    Some(there) => there.clone(),
                    None => self.stretches_up_to(origin, known)?,
                };
            }
            found.retain(|earlier| earlier.steps.start < step);
            if let Some(earlier) = found.last_mut() {
                earlier.steps.end = earlier.steps.end.min(step);
            }
            found.push(Stretch { attempt, rung, steps: step..last.unsigned_abs() + 1 });
        }
        known.insert(newest, found.clone());
        Ok(found)
    }

    /// Returns the attempt that wrote the checkpoint from which this one began, and the checkpoint's step.
    fn origin(&self, attempt: u64) -> rusqlite::Result<Option<(u64, u64)>> {
        let origin = "SELECT from_step, (SELECT id FROM attempts AS earlier
                                         WHERE earlier.id < attempts.id AND earlier.started_ms <= checkpoints.time_ms
                                         ORDER BY earlier.id DESC LIMIT 1)
                      FROM attempts JOIN checkpoints ON checkpoints.step = attempts.from_step WHERE attempts.id = ?1";
        let row = |row: &Row<'_>| Ok((count(row, 0)?, row.get::<_, Option<i64>>(1)?));
        let found = self.connection.query_row(origin, [attempt as i64], row).optional()?;
        Ok(found.and_then(|(from, origin)| Some((origin?.unsigned_abs(), from))))
    }

    /// Calls `each` with the curve from first to last step, in few pieces: whole leaves, and the newest steps as
    /// rows. Metrics in leaves have the ids of [`Reader::metric_names`].
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn curve(&self, mut each: impl FnMut(&Stretch, Piece)) -> rusqlite::Result<()> {
        let stretches = self.stretches()?;
        let newest = stretches.last().map_or(0, |last| last.steps.end.saturating_sub(NEWEST));
        let rows = CurveRows::new(&self.connection)?;
        for stretch in &stretches {
            let whole = stretch.steps.start..stretch.steps.end.min(newest).max(stretch.steps.start);
            rows.read_leaves(stretch.attempt, whole.clone(), |leaf| each(stretch, Piece::Leaf(leaf)))?;
            rows.read(stretch.attempt, whole.end..stretch.steps.end, |row| each(stretch, Piece::Row(row)))?;
        }
        Ok(())
    }

    /// Returns the curve's rows within a range of steps, in order.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn curve_rows(&self, steps: &Range<u64>) -> rusqlite::Result<Vec<StepRow>> {
        let reader = CurveRows::new(&self.connection)?;
        let mut rows = Vec::new();
        for stretch in self.stretches()? {
            let within = stretch.steps.start.max(steps.start)..stretch.steps.end.min(steps.end);
            reader.read(stretch.attempt, within, |row| rows.push(row))?;
        }
        Ok(rows)
    }

    /// Calls `each` with every row of a stretch, in order.
    ///
    /// # Errors
    /// Returns an error when `SQLite` fails.
    pub fn each_row(&self, stretch: &Stretch, mut each: impl FnMut(&StepRow)) -> rusqlite::Result<()> {
        let rows = CurveRows::new(&self.connection)?;
        rows.read(stretch.attempt, stretch.steps.clone(), |row| each(&row))
    }

    /// Returns attempt, rung and step of the first row of the first attempt after this one.
    fn first_after(&self, attempt: u64) -> rusqlite::Result<Option<(u64, usize, u64)>> {
        let first = "SELECT attempt, rung, step FROM steps WHERE attempt > ?1 ORDER BY attempt, step LIMIT 1";
        let row = |row: &Row<'_>| Ok((count(row, 0)?, count(row, 1)? as usize, count(row, 2)?));
        self.connection.query_row(first, [attempt as i64], row).optional()
    }
}

/// Reports whether the curve has the steps of an attempt up to this one. A command may not print each of them.
fn leads_to(curve: &[Stretch], attempt: u64, step: u64) -> bool {
    let Some(place) = curve.iter().position(|stretch| stretch.attempt == attempt) else { return false };
    curve.get(place + 1).is_none_or(|next| next.steps.start > step)
}

/// Reads parts of an attempt's curve.
struct CurveRows<'a> {
    connection: &'a Connection,
    steps: StepReader<'a>,
}

impl<'a> CurveRows<'a> {
    fn new(connection: &'a Connection) -> rusqlite::Result<Self> {
        Ok(Self { connection, steps: StepReader::new(connection)? })
    }

    fn read(&self, attempt: u64, steps: Range<u64>, mut each: impl FnMut(StepRow)) -> rusqlite::Result<()> {
        if steps.is_empty() {
            return Ok(());
        }
        let mut query = self.steps.query(WITHIN)?;
        let mut rows = query.query(params![attempt as i64, steps.start as i64, steps.end as i64])?;
        while let Some(row) = rows.next()? {
            each(self.steps.row(row)?);
        }
        Ok(())
    }

    /// Calls `each` with the leaves of a range of an attempt's steps: from `summaries`, or else computed from rows.
    fn read_leaves(&self, attempt: u64, steps: Range<u64>, mut each: impl FnMut(Bucket)) -> rusqlite::Result<()> {
        if steps.is_empty() {
            return Ok(());
        }
        let mut known = self.read_blocks(attempt, steps.start / BLOCK..steps.end.div_ceil(BLOCK))?;
        for block in steps.start / BLOCK..steps.end.div_ceil(BLOCK) {
            let part = steps.start.max(block * BLOCK)..steps.end.min((block + 1) * BLOCK);
            let Some(leaves) = known.remove(&block) else {
                self.sum_rows(attempt, part)?.into_iter().for_each(&mut each);
                continue;
            };
            for leaf in leaves {
                let (first, last) = (leaf.first.step, leaf.last.step);
                if first >= part.start && last < part.end {
                    each(leaf);
                } else if last >= part.start && first < part.end {
                    let cut = first.max(part.start)..(last + 1).min(part.end);
                    self.sum_rows(attempt, cut)?.into_iter().for_each(&mut each);
                }
            }
        }
        Ok(())
    }

    /// Computes the leaves of a range of an attempt's steps from rows.
    fn sum_rows(&self, attempt: u64, steps: Range<u64>) -> rusqlite::Result<Vec<Bucket>> {
        // Rows hold known names only, so none is added here.
        let (mut points, mut names) = (Vec::new(), self.steps.names.clone());
        self.read(attempt, steps, |row| points.push(Point::of(&row, &mut names)))?;
        Ok(leaves(&points))
    }

    /// Reads the leaves of an attempt's summarized blocks.
    fn read_blocks(&self, attempt: u64, blocks: Range<u64>) -> rusqlite::Result<BTreeMap<u64, Vec<Bucket>>> {
        let asked = "SELECT block, leaves FROM summaries WHERE attempt = ?1 AND block >= ?2 AND block < ?3";
        // Older stores have no summaries.
        let Ok(mut query) = self.connection.prepare_cached(asked) else { return Ok(BTreeMap::new()) };
        let mut rows = query.query(params![attempt as i64, blocks.start as i64, blocks.end as i64])?;
        let mut known = BTreeMap::new();
        while let Some(row) = rows.next()? {
            if let Some(leaves) = bytes::decode(row.get_ref(1)?.as_blob()?) {
                known.insert(row.get::<_, i64>(0)?.unsigned_abs(), leaves);
            }
        }
        Ok(known)
    }
}

/// Summarizes a block of an attempt and replaces its stored summary.
///
/// # Errors
/// Returns an error when `SQLite` fails.
pub fn sum_up(connection: &Connection, attempt: u64, block: u64) -> rusqlite::Result<()> {
    let rows = CurveRows::new(connection)?;
    let leaves = rows.sum_rows(attempt, block.saturating_mul(BLOCK)..(block + 1).saturating_mul(BLOCK))?;
    let mut insert = connection.prepare_cached("INSERT OR REPLACE INTO summaries VALUES (?1, ?2, ?3)")?;
    insert.execute(params![attempt as i64, block as i64, bytes::encode(&leaves)])?;
    Ok(())
}

#[cfg(test)]
mod tests;
