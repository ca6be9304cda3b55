//! The other runs in the same folder, as far as the user has requested them.

use super::ladder::RungView;
use crate::cockpit::read_error::ReadError;
use crate::config::knobs::Watch;
use crate::protocol::control::{EvalRow, Status};
use crate::series::Series;
use std::collections::BTreeMap;

/// A run in the list.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRow {
    /// Name.
    pub name: String,
    /// Status; `None` if the run never started.
    pub status: Option<Status>,
}

/// Data read from another run.
#[derive(Debug, Clone, Default)]
pub struct OtherRun {
    /// Rungs, fastest first.
    pub ladder: Vec<RungView>,
    /// Thresholds of its keeper, if known.
    pub watch: Option<Watch>,
    /// Curve, if requested.
    pub series: Option<Series>,
    /// Evaluations, read with the curve.
    pub evals: Vec<EvalRow>,
}

/// The list, and the data read from its runs.
#[derive(Debug, Clone, Default)]
pub struct Runs {
    /// Runs, newest first; `None` until they are listed.
    pub rows: Option<Vec<RunRow>>,
    /// Index under the cursor.
    pub chosen: usize,
    /// Runs whose curves are overlaid, in colour order.
    pub marked: Vec<String>,
    /// Data read, or the reason why it could not be.
    pub read: BTreeMap<String, Result<OtherRun, ReadError>>,
}

/// Maximum number of runs overlaid beside this one.
pub const MARKS: usize = 5;

impl Runs {
    /// Returns the run under the cursor.
    #[must_use]
    pub fn chosen(&self) -> Option<&RunRow> {
        self.rows.as_ref()?.get(self.chosen)
    }

    /// Replaces the list; the cursor stays on its run.
    pub fn replace_list(&mut self, rows: Vec<RunRow>, here: &str) {
        let name = self.chosen().map_or(here, |row| &row.name).to_owned();
        self.chosen = rows.iter().position(|row| row.name == name).unwrap_or(0);
        self.marked.retain(|marked| rows.iter().any(|row| row.name == *marked));
        self.rows = Some(rows);
    }

    /// Marks or unmarks a run; returns true if its curve is needed now.
    pub fn toggle_mark(&mut self, name: &str) -> bool {
        if let Some(place) = self.marked.iter().position(|marked| marked == name) {
            self.marked.remove(place);
            return false;
        }
        if self.marked.len() < MARKS {
            self.marked.push(name.to_owned());
        }
        !matches!(self.read.get(name), Some(Ok(OtherRun { series: Some(_), .. })))
    }

    /// Stores the data of a run; a curve already present stays.
    pub fn store_run(&mut self, name: String, mut run: Result<OtherRun, ReadError>) {
        if let (Ok(run), Some(Ok(known))) = (&mut run, self.read.get_mut(&name))
            && run.series.is_none()
        {
            run.series = known.series.take();
            run.evals = std::mem::take(&mut known.evals);
        }
        self.read.insert(name, run);
    }
}
