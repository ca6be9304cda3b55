//! `runs`: lists the runs.

use super::client::current_status;
use super::line;
use super::occupied::living_runs;
use super::status;
use crate::protocol::claim::Stage;
use crate::store::claims::Registry;
use crate::store::reader::unreadable;
use crate::store::run_dir::RunDir;
use crate::untrusted::text;
use clap::Args;
use std::path::Path;

/// Arguments of `runs`.
#[derive(Debug, Args)]
pub struct RunsArgs {
    /// Every living run of yours on this machine, whatever its runs directory
    #[arg(long)]
    all: bool,
}

pub fn print_list(args: &RunsArgs, runs: &Path) -> u8 {
    if args.all {
        return print_living(runs);
    }
    let all = RunDir::all(runs);
    if all.is_empty() {
        line!("no runs in {} yet; start one with `downshift run`", text::path(runs));
    }
    for run in all {
        line!("{}", describe(&run));
    }
    0
}

/// Prints every living run and its folder: those that train first, then the queue in its order. A run whose keeper
/// could not register is found in its own runs directory only.
fn print_living(runs: &Path) -> u8 {
    let mut claims = Registry::of_user().map(|registry| registry.living()).unwrap_or_default();
    claims.sort_by_key(|claim| {
        let rank = match claim.stage {
            Stage::Holds => 0,
            Stage::Queued => 1,
            Stage::Later => 2,
            Stage::Rests => 3,
        };
        (rank, claim.ticket)
    });
    let mut living: Vec<RunDir> = claims.iter().filter_map(|claim| RunDir::open(&claim.run_dir).ok()).collect();
    let unregistered: Vec<RunDir> =
        living_runs(runs).into_iter().map(|run| run.dir).filter(|run| !living.contains(run)).collect();
    living.extend(unregistered);
    if living.is_empty() {
        line!("no run is alive; start one with `downshift run`");
    }
    for run in living {
        let folder = run.path().parent().map(text::path).unwrap_or_default();
        line!("{}  in {folder}", describe(&run));
    }
    0
}

fn describe(run: &RunDir) -> String {
    match current_status(run) {
        Some(status) => status::status_line(&status),
        None => match unreadable(run) {
            Some(why) => format!("{}  {}", run.name(), text::escape_line(&why.to_string())),
            None => format!("{}  never began", run.name()),
        },
    }
}
