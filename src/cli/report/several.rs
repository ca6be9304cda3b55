//! One report over several runs: those that lived in the last hours, with how each of them ended.

use crate::cli::runs::{align, summarize_all};
use crate::cli::{Failure, line};
use crate::cockpit::run_cells as cell;
use crate::export::report::Taken;
use crate::export::report::several::{Overview, Row, write_overview};
use crate::format::{count, counted, took};
use crate::protocol::control::{RunState, Status};
use crate::protocol::time_spent::Part;
use crate::store::run_dir::RunDir;
use crate::store::run_summary::RunSummary;
use crate::untrusted::text::{self, clip_line};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Most characters of a clause of a remark.
const CLAUSE: usize = 100;

/// Prints the runs of a folder that lived since then, and returns the page.
pub(super) fn report(runs: &Path, since: Duration, taken: &Taken) -> Result<String, Failure> {
    let begin_ms = taken.now_ms.saturating_sub(i64::try_from(since.as_millis()).unwrap_or(i64::MAX));
    let mut lived: Vec<(RunDir, RunSummary)> = summarize_all(RunDir::all(runs));
    lived.retain(|(_, run)| run.status.is_some() && (run.is_alive() || last_ms(run) >= Some(begin_ms)));
    if lived.is_empty() {
        let (runs, hours) = (text::path(runs), crate::format::age(taken.now_ms - begin_ms));
        return Err(Failure::new(1, format!("no run in {runs} has lived in the last {hours}; write a longer --since")));
    }
    // In the order of the night: by their first step, then those that still wait.
    lived.sort_by_key(|(_, run)| {
        let begun = run.times.started_ms;
        (begun.is_none(), begun, run.place.map(|place| place.rank))
    });
    let rows: Vec<Row> = lived.iter().filter_map(|(dir, run)| row(dir, run, taken.now_ms)).collect();
    let title = format!("since {}: {}", taken.moment(begin_ms), tally(&rows));
    line!("{title}");
    let cells: Vec<Vec<String>> = rows.iter().map(Row::cells).collect();
    for (cells, row) in align(&cells).iter().zip(&rows) {
        line!("{cells}");
        if !row.remark.is_empty() {
            line!("    {}", text::escape_line(&row.remark));
        }
    }
    Ok(write_overview(&Overview { title: &title, rows: &rows, run: &lived[0].0, taken }))
}

/// Returns when the run last did anything.
fn last_ms(run: &RunSummary) -> Option<i64> {
    run.times.last_ms.or(run.created_ms)
}

fn row(dir: &RunDir, run: &RunSummary, now_ms: i64) -> Option<Row> {
    let status = run.status.as_ref()?;
    Some(Row {
        name: run.name.clone(),
        state: status.state,
        state_text: cell::state(run, now_ms),
        remark: remark(dir, status),
        started_ms: run.times.started_ms,
        worked: cell::duration(run, now_ms),
        useful: cell::useful(run),
        lost: lost(status),
        steps: cell::steps(run),
        best: cell::best(run),
        curve: run.curve.clone(),
    })
}

/// Returns what a reader in the morning must know: why the run was set aside and what to do, or what it took to finish.
fn remark(dir: &RunDir, status: &Status) -> String {
    let mut parts = Vec::new();
    match status.state {
        RunState::NeedsPerson | RunState::Failed => {
            // It begins with the cause; the way out is in `triage`.
            parts.extend(status.why.as_deref().map(|why| clip_line(why, 2 * CLAUSE)));
            parts.push(format!("`{}`", dir.command("triage")));
        }
        _ => parts.extend(status.why.clone()),
    }
    if status.shifts > 0 {
        let first = status.rungs.iter().find_map(|rung| rung.fault.as_ref());
        let cause = first.map(|(fault, step)| format!(": {} at step {}", clip_line(fault, CLAUSE), count(*step)));
        let shifts = format!("{}, now on {}", counted(status.shifts, "shift"), status.rung_name);
        parts.push(shifts + &cause.unwrap_or_default());
    } else if status.restarts > 0 {
        parts.push(counted(status.restarts, "restart"));
    }
    parts.join("; ")
}

/// Returns the longest part of the time that was not spent on kept steps.
fn lost(status: &Status) -> String {
    let parts = [Part::Start, Part::Compile, Part::Evaluation, Part::Save, Part::Repeated, Part::Hung, Part::Card];
    let parts = parts.into_iter().chain([Part::BackOff, Part::Stop, Part::Paused, Part::Other]);
    let longest = parts.map(|part| (status.time.ms(part), part)).max_by_key(|(ms, _)| *ms);
    longest.filter(|(ms, _)| *ms >= 1000).map(|(ms, part)| format!("{} {}", part.name(), took(ms))).unwrap_or_default()
}

/// Counts the runs by state: `3 finished, 1 set aside`.
fn tally(rows: &[Row]) -> String {
    let mut counts: BTreeMap<(u8, &str), usize> = BTreeMap::new();
    for row in rows {
        let word = match row.state {
            RunState::Finished => (0, "finished"),
            RunState::NeedsPerson | RunState::Failed => (1, "set aside"),
            state => (2, state.word()),
        };
        *counts.entry(word).or_default() += 1;
    }
    counts.into_iter().map(|((_, word), count)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
}
