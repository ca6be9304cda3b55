//! `wait`: waits for the end of a run, for scripts.

use super::trial::parse_duration;
use super::{Failure, Outcome, Which, find_run, say, status};
use crate::protocol::control::{RunState, Status};
use crate::protocol::exit_code::{self, TIMED_OUT};
use crate::store::owners;
use crate::store::reader::{Reader, UnreadableStore, live_status, unreadable};
use crate::store::run_dir::RunDir;
use crate::untrusted::poll::{poll, poll_within};
use clap::Args;
use std::path::Path;
use std::time::Duration;

/// Interval between two looks at the run.
const INTERVAL: Duration = Duration::from_millis(500);

/// Arguments of `wait`.
#[derive(Debug, Args)]
pub struct WaitArgs {
    #[command(flatten)]
    which: Which,
    /// Longest wait: 90s, 30m, 2h; after it, the exit code is 124 [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    timeout: Option<Duration>,
}

/// Waits until a run is over and prints its status. Returns the run's exit code. A paused run is not over.
pub fn wait(args: &WaitArgs, runs: &Path) -> Outcome {
    let run = find_run(runs, args.which.run.as_deref())?;
    let ended = || end(&run);
    let ended = match args.timeout {
        None => Some(poll(INTERVAL, ended)),
        Some(limit) => poll_within(limit, INTERVAL, ended),
    };
    let Some(last) = ended else {
        say(&format!("{} is still running after the time limit", run.name()));
        return Ok(TIMED_OUT);
    };
    let last = last?;
    status::print_text(&run, &last);
    Ok(exit_code(&run, &last))
}

/// Returns the last status of a run that is over, or why there is none. The processes that ended it are gone by then: the
/// next command of the script may be one that refuses a living run.
pub(super) fn end(run: &RunDir) -> Option<Result<Status, Failure>> {
    match live_status(run) {
        Some(status) if status.state == RunState::Unattended => (!owners::command_lives(run)).then_some(Ok(status)),
        Some(status) => (status.state.is_over() && !owners::is_kept(run)).then_some(Ok(status)),
        None if !owners::is_kept(run) => {
            let none = unreadable(run).unwrap_or_else(|| UnreadableStore::NotBegun { run: run.name() });
            Some(Err(none.into()))
        }
        None => None,
    }
}

/// Returns the exit code of a run that is over.
pub(super) fn exit_code(run: &RunDir, last: &Status) -> u8 {
    let recorded = || Reader::open(run).ok().and_then(|reader| reader.fact("exit_code"));
    exit_code::of_state(last.state, last.exit_code.or_else(recorded))
}
