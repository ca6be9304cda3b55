//! `runs`: lists the runs.

mod table;

use super::client::current_status;
use super::occupied::living_runs;
use super::output::terminal_width;
use super::status;
use super::{Failure, Format, Outcome, line};
use crate::cockpit::ui::cut;
use crate::protocol::claim::{Stage, Wait};
use crate::store::claims::Registry;
use crate::store::labels::Tag;
use crate::store::reader::unreadable;
use crate::store::run_dir::RunDir;
use crate::store::run_summary::column::{Column, sort_runs};
use crate::store::run_summary::{RunSummary, find_places, summarize_run};
use crate::untrusted::text;
use clap::Args;
use std::path::Path;
pub use table::align;

/// Arguments of `runs`.
#[derive(Debug, Args)]
pub struct RunsArgs {
    /// Every living run of yours on this machine, whatever its runs directory
    #[arg(long, conflicts_with_all = ["archived", "tag", "sort", "reverse"])]
    all: bool,
    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Archived runs too
    #[arg(long)]
    archived: bool,
    /// Only runs with this tag; repeat it for runs with several
    #[arg(long, value_name = "TAG", value_parser = Tag::parse)]
    tag: Vec<Tag>,
    /// Order of the rows: started, name, state, duration, steps, best, device, rung or tags
    #[arg(long, value_name = "COLUMN", default_value = "started", value_parser = Column::parse)]
    sort: Column,
    /// Reverse the order
    #[arg(long)]
    reverse: bool,
}

pub fn print_list(args: &RunsArgs, runs: &Path) -> Outcome {
    if args.all {
        return print_living(args.format, runs);
    }
    if runs.exists() && !runs.is_dir() {
        return Err(Failure::new(2, format!("--runs-dir {}: this is a file, not a folder of runs", text::path(runs))));
    }
    let all = RunDir::all(runs);
    let found = summarize_all(all);
    let (hidden, mut shown): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|(_, run)| run.labels.archived && !args.archived);
    shown.retain(|(_, run)| args.tag.iter().all(|tag| run.labels.tags.contains(tag)));
    let now_ms = jiff::Timestamp::now().as_millisecond();
    sort_runs(&mut shown, |(_, run)| run, args.sort, args.reverse, now_ms);
    if args.format == Format::Json {
        return print_json(&shown, now_ms);
    }
    if shown.is_empty() && hidden.is_empty() && args.tag.is_empty() {
        let folder = text::path(runs);
        if runs.is_dir() {
            line!("no runs in {folder} yet; start one with `downshift run`");
        } else {
            line!("the folder {folder} does not exist; `downshift run` creates it with its first run");
        }
    } else if shown.is_empty() {
        line!("no run matches; {} archived (--archived lists them)", hidden.len());
    }
    let mut rows: Vec<_> = shown.iter().map(|(dir, run)| table::row(dir, run, now_ms)).collect();
    // A row that wraps is hard to tell from two.
    let width = terminal_width(&std::io::stdout()).unwrap_or(usize::MAX);
    table::fit(&mut rows, width);
    for row in align(&rows) {
        line!("{}", cut(&row, width));
    }
    Ok(0)
}

fn print_json(shown: &[(RunDir, RunSummary)], now_ms: i64) -> Outcome {
    let rows: Vec<_> = shown.iter().map(|(dir, run)| table::json(dir, run, now_ms)).collect();
    line!("{}", serde_json::to_string_pretty(&rows)?);
    Ok(0)
}

/// Summarizes these runs, with their places in the queue.
pub fn summarize_all(runs: Vec<RunDir>) -> Vec<(RunDir, RunSummary)> {
    let mut all: Vec<_> =
        runs.into_iter().map(|run| (run.clone(), summarize_run(&run, current_status(&run)))).collect();
    find_places(all.iter_mut().map(|(dir, run)| (&*dir, run)));
    all
}

/// Returns every living run: those that have their devices, then the queue in its order, then paused ones. A run whose keeper
/// could not register is found in its own runs directory only.
pub fn living(runs: &Path) -> Vec<(RunDir, RunSummary)> {
    let mut claims = Registry::of_user().map(|registry| registry.living()).unwrap_or_default();
    claims.sort_by_key(|claim| {
        let rank = match claim.stage {
            Stage::Holds => 0,
            // In the order of the queue, the held ones too.
            Stage::Queued | Stage::Later => 1,
            Stage::Rests if claim.ticket > 0 => 1,
            Stage::Rests => 2,
        };
        (rank, claim.ticket)
    });
    let mut living: Vec<RunDir> = claims.iter().filter_map(|claim| RunDir::open(&claim.run_dir).ok()).collect();
    let unregistered: Vec<RunDir> =
        living_runs(runs).into_iter().map(|run| run.dir).filter(|run| !living.contains(run)).collect();
    living.extend(unregistered);
    summarize_all(living)
}

/// Prints every living run and its folder.
pub fn print_living(format: Format, runs: &Path) -> Outcome {
    let living = living(runs);
    if format == Format::Json {
        return print_json(&living, jiff::Timestamp::now().as_millisecond());
    }
    if living.is_empty() {
        line!("no run is alive; start one with `downshift run`");
    }
    for (dir, run) in living {
        let folder = dir.path().parent().map(text::path).unwrap_or_default();
        line!("{}  in {folder}", describe(&dir, &run));
    }
    Ok(0)
}

fn describe(dir: &RunDir, run: &RunSummary) -> String {
    let Some(status) = &run.status else { return describe_unknown(dir) };
    let held = run.place.is_some_and(|place| place.wait == Wait::Held);
    let held = if held {
        format!(", held in the queue; `{}` lets it on", dir.command("queue release"))
    } else {
        String::new()
    };
    status::status_line(status) + &held
}

/// Describes a run without a readable status.
fn describe_unknown(run: &RunDir) -> String {
    match unreadable(run) {
        Some(why) => format!("{}  {}", run.name(), text::escape_line(&why.to_string())),
        None => format!("{}  never began", run.name()),
    }
}
