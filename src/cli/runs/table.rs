//! The rows of `downshift runs`, as text and as JSON.

use super::describe_unknown;
use crate::cli::status::troubles;
use crate::cockpit::run_cells as cell;
use crate::format::count;
use crate::protocol::claim::{Place, Wait};
use crate::protocol::control::{RunState, Status};
use crate::store::run_dir::RunDir;
use crate::store::run_summary::RunSummary;
use crate::untrusted::text;
use serde_json::{Value, json};
use unicode_width::UnicodeWidthStr;

/// Characters of a reason in a row.
const LONGEST_REASON: usize = 120;

/// Returns the cells of a row. A run without a readable status says why in place of them.
pub fn row(dir: &RunDir, run: &RunSummary, now_ms: i64) -> Vec<String> {
    let Some(status) = &run.status else { return vec![describe_unknown(dir)] };
    let offset_s = jiff::Zoned::now().offset().seconds();
    let progress = format!("step {} {}", count(status.step), cell::done_text(run));
    let mut cells = vec![
        run.name.clone(),
        cell::state(run, now_ms),
        cell::started(run, now_ms, offset_s),
        cell::duration(run, now_ms),
        cell::useful(run),
        progress.trim_end().to_owned(),
        cell::best(run),
        cell::device(run),
        describe_rung(status),
        cell::overrides(run),
        cell::tags(run),
    ];
    let why = status.why.as_ref().map(|why| shorten(why, status.state));
    let remarks: Vec<String> = troubles(status).into_iter().chain(why).collect();
    if !remarks.is_empty() {
        cells.push(format!("({})", remarks.join("; ")));
    }
    cells.iter().map(|cell| text::escape_line(cell).into_owned()).collect()
}

/// Cuts a reason after its first characters. That of an ended run ends with its first clause, which names the cause; JSON
/// and `status` have all of it.
fn shorten(why: &str, state: RunState) -> String {
    let has_ended = state.is_over() || state == RunState::NeedsPerson;
    let why = why.split("; ").next().filter(|_| has_ended).unwrap_or(why);
    if why.chars().count() <= LONGEST_REASON {
        return why.to_owned();
    }
    let kept: String = why.chars().take(LONGEST_REASON - 1).collect();
    format!("{}…", kept.trim_end())
}

/// Returns the rung; for a command, also how much the keeper can do for it, and how well it resumes.
fn describe_rung(status: &Status) -> String {
    match status.describe_resume() {
        Some(level) => format!("{}, {level}", status.rung_name),
        None => status.rung_name.clone(),
    }
}

/// Columns that a narrow terminal leaves out, the least needed first: device, duration, start, rung, useful
/// time, overrides.
const SPARE: [usize; 6] = [7, 3, 2, 8, 4, 9];
/// Columns before that of the remarks, which may be cut.
const COLUMNS: usize = 11;

/// Empties columns until the rows fit into this width, without their remarks.
pub fn fit(rows: &mut [Vec<String>], width: usize) {
    for column in SPARE {
        let heads: Vec<Vec<String>> =
            rows.iter().filter(|row| row.len() > 1).map(|row| row[..row.len().min(COLUMNS)].to_vec()).collect();
        if align(&heads).iter().all(|row| row.width() <= width) {
            return;
        }
        rows.iter_mut().filter(|row| row.len() > 1).filter_map(|row| row.get_mut(column)).for_each(String::clear);
    }
}

/// Pads the cells of each column to the same width. Empty columns are left out.
pub fn align(rows: &[Vec<String>]) -> Vec<String> {
    // A row of one cell is a sentence of any length.
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let in_columns = || rows.iter().filter(|row| row.len() > 1);
    let width = |column: usize| in_columns().filter_map(|row| row.get(column)).map(|cell| cell.width()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths).filter(|(cell, width)| **width > 0 || !cell.is_empty()) {
            if !line.is_empty() {
                line.push_str("  ");
            }
            line.push_str(cell);
            line.push_str(&" ".repeat(width.saturating_sub(cell.width())));
        }
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Returns a place in the queue: a number, `later` or `held`.
fn queue_value(place: Place) -> Value {
    match place.wait {
        Wait::Number(number) => json!(number),
        Wait::Later => json!("later"),
        Wait::Held => json!("held"),
    }
}

/// Returns a run as JSON: its cells as numbers, its labels, and the whole status.
pub fn json(dir: &RunDir, run: &RunSummary, now_ms: i64) -> Value {
    let status = run.status.as_ref();
    json!({
        "name": run.name,
        "run_dir": dir.path().display().to_string(),
        "state": status.map(|status| status.state),
        "alive": run.is_alive(),
        "queue": run.place.map(queue_value),
        "stalled_ms": status.and_then(|status| status.stalled_ms(now_ms)),
        "started_ms": run.times.started_ms,
        "duration_ms": run.duration_ms(now_ms),
        "useful": status.and_then(|status| status.time.useful()),
        "steps": status.map(|status| status.step),
        "done": status.and_then(cell::done),
        "best": status.and_then(|status| status.best.as_ref()),
        "device": status.and_then(|status| status.device.as_ref()),
        "rung": status.map(|status| &status.rung_name),
        "overrides": run.overrides,
        "tags": run.labels.tags,
        "note": run.labels.note,
        "archived": run.labels.archived,
        "labels_error": run.labels_error,
        "status": status,
    })
}

#[cfg(test)]
mod tests {
    use super::{LONGEST_REASON, align, fit, row};
    use crate::cockpit::fixture;
    use crate::protocol::control::{RunState, Status};
    use crate::protocol::progress::Progress;
    use crate::store::run_dir::RunDir;
    use crate::store::run_summary::RunSummary;

    #[test]
    fn columns_line_up_and_a_sentence_widens_none() {
        let rows =
            [&["a", "finished", "", "1"][..], &["long sentence about a damaged run"], &["bcd", "x", "", "22", "(why)"]];
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect();
        assert_eq!(align(&rows), ["a    finished  1", "long sentence about a damaged run", "bcd  x         22  (why)"]);
    }

    #[test]
    fn a_narrow_terminal_leaves_out_the_device_before_the_evaluation() {
        let cells = [
            "digits-20261127-223742",
            "training",
            "22:37",
            "12 s",
            "91.2 %",
            "step 300 60 %",
            "loss 0.21",
            "cpu",
            "full",
            "lr=0.004",
            "a",
        ];
        let row: Vec<String> = cells.iter().map(|cell| (*cell).to_owned()).collect();
        let shown = |width: usize| {
            let mut rows = vec![row.clone()];
            fit(&mut rows, width);
            align(&rows).swap_remove(0)
        };
        assert_eq!(shown(200).split("  ").count(), 11);
        let narrow = shown(76);
        assert!(narrow.contains("loss 0.21  lr=0.004  a") && !narrow.contains("cpu"), "{narrow}");
        assert_eq!(shown(20), "digits-20261127-223742  training  step 300 60 %  loss 0.21  a");
    }

    #[test]
    fn a_run_without_progress_is_listed_as_stalled() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("run.yaml"), "").unwrap();
        let dir = RunDir::open(place.path()).unwrap();
        let state = |still_ms: i64| {
            let mut status = fixture::status(RunState::Training, 1204);
            status.progress = Some(Progress { since_ms: fixture::NOW - still_ms, patience_ms: 4_000 });
            row(&dir, &RunSummary { status: Some(status), ..RunSummary::default() }, fixture::NOW).swap_remove(1)
        };
        assert_eq!([state(1_000), state(47_000)], ["training", "stalled 47 s"]);
    }

    #[test]
    fn losses_that_are_not_finite_stand_before_the_reason() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("run.yaml"), "").unwrap();
        let dir = RunDir::open(place.path()).unwrap();
        let mut status = fixture::status(RunState::Stopped, 1204);
        (status.why, status.unguarded) = (Some("stopped by you".to_owned()), 12);
        let last = |status: &Status| {
            let run = RunSummary { status: Some(status.clone()), ..RunSummary::default() };
            row(&dir, &run, fixture::NOW).pop().unwrap()
        };
        assert_eq!(last(&status), "(12 steps not finite; stopped by you)");
        status.why = None;
        assert_eq!(last(&status), "(12 steps not finite)");
    }

    #[test]
    fn the_reason_of_a_failed_run_is_shortened() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("run.yaml"), "").unwrap();
        let dir = RunDir::open(place.path()).unwrap();
        let mut status = fixture::status(RunState::Failed, 1204);
        let mut cells = |why: String| {
            status.why = Some(why);
            row(&dir, &RunSummary { status: Some(status.clone()), ..RunSummary::default() }, fixture::NOW)
        };
        let short = cells("No module named 'torch'".to_owned());
        assert_eq!(short.last().unwrap(), "(No module named 'torch')");
        assert!(short.iter().any(|cell| cell.starts_with("step 1 204")), "{short:?}");
        assert_eq!(cells("No module named 'torch'; start it again".to_owned()), short);
        let long = cells(format!("No module named '{}", "x".repeat(500)));
        let last = long.last().unwrap();
        assert!(last.starts_with("(No module named 'x") && last.ends_with("x…)"), "{last}");
        assert_eq!(last.chars().count(), LONGEST_REASON + 2);
    }
}
