//! The other runs of the same folder, as far as a person asked for them.

use super::RungView;
use crate::cockpit::series::Series;
use crate::config::knobs::Watch;
use crate::protocol::control::Status;
use std::collections::BTreeMap;

/// A run in the list.
#[derive(Debug, Clone, PartialEq)]
pub struct RunRow {
    /// Its name.
    pub name: String,
    /// Where it stands; none where it never began.
    pub status: Option<Status>,
}

/// What was read of another run.
#[derive(Debug, Clone, Default)]
pub struct OtherRun {
    /// Its rungs, fastest first.
    pub ladder: Vec<RungView>,
    /// What its keeper watches, where that is known.
    pub watch: Option<Watch>,
    /// Its curve, where it was asked for.
    pub series: Option<Series>,
}

/// The list, and what was read of its runs.
#[derive(Debug, Clone, Default)]
pub struct Runs {
    /// Newest first; none before they were listed.
    pub rows: Option<Vec<RunRow>>,
    /// Which one the cursor is on.
    pub chosen: usize,
    /// Those whose losses are overlaid, in the order of their colours.
    pub marked: Vec<String>,
    /// What was read, or why it could not be.
    pub read: BTreeMap<String, Result<OtherRun, String>>,
}

/// So many runs are overlaid at most, beside this one.
pub const MARKS: usize = 5;

impl Runs {
    /// The run under the cursor.
    #[must_use]
    pub fn chosen(&self) -> Option<&RunRow> {
        self.rows.as_ref()?.get(self.chosen)
    }

    /// A new list; the cursor stays on its run.
    pub fn list(&mut self, rows: Vec<RunRow>, here: &str) {
        let name = self.chosen().map_or(here, |row| &row.name).to_owned();
        self.chosen = rows.iter().position(|row| row.name == name).unwrap_or(0);
        self.marked.retain(|marked| rows.iter().any(|row| row.name == *marked));
        self.rows = Some(rows);
    }

    /// Marks a run or takes the mark away; true where its curve is needed now.
    pub fn toggle(&mut self, name: &str) -> bool {
        if let Some(place) = self.marked.iter().position(|marked| marked == name) {
            self.marked.remove(place);
            return false;
        }
        if self.marked.len() < MARKS {
            self.marked.push(name.to_owned());
        }
        !matches!(self.read.get(name), Some(Ok(OtherRun { series: Some(_), .. })))
    }

    /// What was read of a run; a curve that is here already stays.
    pub fn take(&mut self, name: String, mut run: Result<OtherRun, String>) {
        if let (Ok(run), Some(Ok(known))) = (&mut run, self.read.get_mut(&name))
            && run.series.is_none()
        {
            run.series = known.series.take();
        }
        self.read.insert(name, run);
    }
}
