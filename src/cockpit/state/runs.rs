//! The runs of the folder as a table: sorted, filtered, some of them marked for comparison.

use super::ladder::RungView;
use crate::cockpit::read_error::ReadError;
use crate::cockpit::run_cells as cell;
use crate::config::knobs::Watch;
use crate::protocol::control::EvalRow;
use crate::series::Series;
use crate::store::run_summary::RunSummary;
use crate::store::run_summary::column::{Column, sort_runs};
use std::collections::BTreeMap;
use std::sync::Arc;

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

/// The order of the table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sort {
    /// The column.
    pub column: Column,
    /// Whether its order is reversed.
    pub reverse: bool,
}

/// The table, and the data read from its runs.
#[derive(Debug, Clone, Default)]
pub struct Runs {
    /// When the rows were read, Unix milliseconds.
    pub listed_ms: i64,
    /// Runs in the order of the table; `None` until they are listed.
    pub rows: Option<Vec<RunSummary>>,
    /// Name of the run under the cursor, if the user chose one.
    chosen: Option<String>,
    /// Name of the run that the last click was on, until the cursor moves by other means.
    clicked: Option<String>,
    /// Order of the rows.
    pub sort: Sort,
    /// Words that a row must contain.
    pub filter: String,
    /// Whether archived runs are listed.
    pub archived: bool,
    /// Runs whose curves are overlaid, in colour order.
    pub marked: Vec<String>,
    /// Data read, or the reason why it could not be; shared with the past of a replay.
    pub read: BTreeMap<String, Result<Arc<OtherRun>, ReadError>>,
}

/// Maximum number of runs overlaid beside this one.
pub const MARKS: usize = 5;

impl Runs {
    /// Returns the rows that filter and archive leave, in order.
    pub fn shown(&self) -> impl Iterator<Item = &RunSummary> {
        self.rows.iter().flatten().filter(|row| (self.archived || !row.labels.archived) && self.matches_filter(row))
    }

    /// Returns the number of rows shown.
    #[must_use]
    pub fn shown_count(&self) -> usize {
        self.shown().count()
    }

    /// Returns the number of archived runs that are not shown.
    #[must_use]
    pub fn hidden_count(&self) -> usize {
        self.rows.iter().flatten().filter(|row| row.labels.archived && !self.archived).count()
    }

    /// Returns the row of a run.
    #[must_use]
    pub fn row(&self, name: &str) -> Option<&RunSummary> {
        self.rows.as_ref()?.iter().find(|row| row.name == name)
    }

    /// Returns the run under the cursor: the first one while the chosen one is not shown.
    #[must_use]
    pub fn chosen(&self) -> Option<&RunSummary> {
        self.shown().nth(self.cursor())
    }

    /// Returns the index of the run under the cursor among those shown.
    #[must_use]
    pub fn cursor(&self) -> usize {
        self.shown().position(|row| Some(&row.name) == self.chosen.as_ref()).unwrap_or(0)
    }

    /// Puts the cursor on the run at an index among those shown, or on the last one.
    pub fn move_cursor_to(&mut self, place: usize) {
        self.clicked = None;
        let last = self.shown_count().saturating_sub(1);
        let chosen = self.shown().nth(place.min(last)).map(|row| row.name.clone());
        self.chosen = chosen;
    }

    /// Puts the cursor on the clicked run; returns true for the second click on the same one.
    pub fn click(&mut self, place: usize) -> bool {
        let before = self.clicked.take();
        self.move_cursor_to(place);
        self.clicked.clone_from(&self.chosen);
        before.is_some() && before == self.clicked
    }

    /// Forgets the last click: the next one is the first again.
    pub fn forget_click(&mut self) {
        self.clicked = None;
    }

    /// Replaces the rows; the cursor starts on the run that is open.
    pub fn replace_list(&mut self, rows: Vec<RunSummary>, here: &str, now_ms: i64) {
        self.chosen.get_or_insert_with(|| here.to_owned());
        self.marked.retain(|marked| rows.iter().any(|row| row.name == *marked));
        self.rows = Some(rows);
        self.listed_ms = now_ms;
        self.sort_by(self.sort, now_ms);
    }

    /// Sorts the rows.
    pub fn sort_by(&mut self, sort: Sort, now_ms: i64) {
        self.sort = sort;
        if let Some(rows) = &mut self.rows {
            // Rows that the column does not tell apart are sorted by their start.
            sort_runs(rows, |row| row, Column::Started, false, now_ms);
            sort_runs(rows, |row| row, sort.column, sort.reverse, now_ms);
        }
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
        !matches!(self.read.get(name), Some(Ok(run)) if run.series.is_some())
    }

    /// Stores the data of a run; a curve already present stays.
    pub fn store_run(&mut self, name: String, mut run: Result<OtherRun, ReadError>) {
        if let (Ok(run), Some(Ok(known))) = (&mut run, self.read.remove(&name))
            && run.series.is_none()
        {
            let known = Arc::unwrap_or_clone(known);
            (run.series, run.evals) = (known.series, known.evals);
        }
        self.read.insert(name, run.map(Arc::new));
    }

    /// Reports whether a row contains every word of the filter, in any of its cells or its note.
    fn matches_filter(&self, row: &RunSummary) -> bool {
        let mut words = self.filter.split_whitespace().map(str::to_lowercase).peekable();
        if words.peek().is_none() {
            return true;
        }
        let cells = [
            &row.name,
            cell::state_word(row),
            &cell::device(row),
            &cell::rung(row),
            &cell::tags(row),
            &row.labels.note,
        ]
        .join("\n")
        .to_lowercase();
        words.all(|word| cells.contains(&word))
    }
}

#[cfg(test)]
mod tests {
    use super::{Runs, Sort};
    use crate::cockpit::fixture;
    use crate::protocol::control::{Best, RunState};
    use crate::store::labels::Tag;
    use crate::store::run_summary::column::Column;
    use crate::store::run_summary::{RunSummary, Times};

    fn row(name: &str, started_ms: i64, loss: f64, tag: &str) -> RunSummary {
        let mut status = fixture::status(RunState::Finished, started_ms.unsigned_abs());
        (status.run, status.pid_keeper) = (name.to_owned(), None);
        status.best = Some(Best { step: 1, eval_loss: Some(loss), metric: "loss".to_owned(), value: loss });
        let times = Times { started_ms: Some(started_ms), ..Times::default() };
        let mut run = RunSummary { name: name.to_owned(), status: Some(status), times, ..RunSummary::default() };
        run.labels.tags.insert(Tag::parse(tag).unwrap());
        run
    }

    fn table() -> Runs {
        let mut runs = Runs::default();
        let rows = vec![row("b", 30, 0.2, "base"), row("c", 20, 0.1, "wide"), row("a", 10, 0.3, "base")];
        runs.replace_list(rows, "c", 0);
        runs
    }

    fn names(runs: &Runs) -> Vec<&str> {
        runs.shown().map(|row| row.name.as_str()).collect()
    }

    #[test]
    fn the_cursor_stays_on_its_run_whatever_the_order() {
        let mut runs = table();
        for (column, reverse, wanted) in [
            (Column::Started, false, ["b", "c", "a"]),
            (Column::Started, true, ["a", "c", "b"]),
            (Column::Name, false, ["a", "b", "c"]),
            (Column::Steps, false, ["b", "c", "a"]),
            (Column::Best, false, ["c", "b", "a"]),
            (Column::Best, true, ["a", "b", "c"]),
            // Equal tags: the newest first.
            (Column::Tags, false, ["b", "a", "c"]),
            (Column::Rung, false, ["b", "c", "a"]),
        ] {
            runs.sort_by(Sort { column, reverse }, 0);
            assert_eq!(names(&runs), wanted, "{column:?}");
            assert_eq!(runs.chosen().unwrap().name, "c");
        }
    }

    #[test]
    fn every_word_of_the_filter_must_be_in_the_row() {
        let mut runs = table();
        runs.rows.as_mut().unwrap()[0].labels.note = "Longer warm-up".to_owned();
        for (filter, wanted) in [
            ("", &["b", "c", "a"][..]),
            ("base", &["b", "a"]),
            ("BASE warm", &["b"]),
            ("finished cpu", &["b", "c", "a"]),
            ("nothing", &[]),
        ] {
            filter.clone_into(&mut runs.filter);
            assert_eq!(names(&runs), wanted, "{filter}");
        }
        // The run under the cursor may be filtered away.
        runs.filter = "base".to_owned();
        assert_eq!(runs.chosen().unwrap().name, "b");
        runs.filter.clear();
        assert_eq!(runs.chosen().unwrap().name, "c");
    }

    #[test]
    fn archived_runs_are_hidden_until_asked_for() {
        let mut runs = table();
        runs.rows.as_mut().unwrap()[1].labels.archived = true;
        assert_eq!((names(&runs), runs.hidden_count()), (vec!["b", "a"], 1));
        runs.archived = true;
        assert_eq!((names(&runs), runs.hidden_count()), (vec!["b", "c", "a"], 0));
        runs.archived = false;
        runs.move_cursor_to(9);
        assert_eq!(runs.chosen().unwrap().name, "a");
    }
}
