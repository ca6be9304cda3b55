//! `delete`: removes runs from the disk.

use super::{Failure, Outcome, confirm, line, say};
use crate::format::{bytes, counted};
use crate::store::checkpoint;
use crate::store::removal::{check_removal, measure_run, remove_rests, remove_run};
use crate::store::run_dir::RunDir;
use clap::Args;
use std::io::{self, IsTerminal};
use std::path::Path;

/// Arguments of `delete`.
#[derive(Debug, Args)]
pub struct DeleteArgs {
    /// The runs' whole names, or their folders
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<String>,
    /// Delete without asking
    #[arg(long)]
    yes: bool,
}

pub fn delete(args: &DeleteArgs, runs: &Path) -> Outcome {
    remove_rests(runs);
    let mut found: Vec<RunDir> = Vec::new();
    for name in &args.runs {
        // A run that a newer version wrote can be deleted too.
        let run = RunDir::find_exact(runs, name).map_err(|error| Failure::new(2, error.to_string()))?;
        check_removal(runs, &run)?;
        if !found.contains(&run) {
            found.push(run);
        }
    }
    let mut total = 0;
    for run in &found {
        let size = measure_run(run);
        total += size.bytes;
        let checkpoints = checkpoint::list(run.path()).len() as u64;
        say(&format!("{}: {}, {}", run.name(), bytes(size.bytes), counted(checkpoints, "checkpoint")));
    }
    let can_ask = io::stdin().is_terminal() && io::stderr().is_terminal();
    if !args.yes && !can_ask {
        let text = format!("nothing was deleted; confirm with --yes, or interactively in a terminal: {}", bytes(total));
        return Err(Failure::new(2, text));
    }
    if !args.yes && !confirm(&format!("Delete {} for good?", bytes(total)))? {
        return Err(Failure::new(2, "nothing was deleted"));
    }
    for run in &found {
        let size = remove_run(runs, run)?;
        line!("deleted {}: {}", run.name(), bytes(size.bytes));
    }
    Ok(0)
}
