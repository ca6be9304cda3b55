//! The cockpit's keys as commands, for scripts and ssh.

use super::client::{self, send_request};
use super::line;
use super::occupied;
use super::{Failure, Outcome, Which, WhichAlive, find_run};
use crate::format::{count, quoted};
use crate::outlook::continuation::How;
use crate::protocol::control::{Request, RunState, Status, Target};
use crate::store::continuation::continuation;
use crate::store::owners;
use crate::store::reader::live_status;
use crate::store::run_dir::RunDir;
use crate::untrusted::poll::poll_within;
use clap::Args;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time for the worker of a paused run to save and to end.
const PAUSING: Duration = Duration::from_mins(10);
/// Time after which the status shows that the keeper has heard of the pause.
const HEARD: Duration = Duration::from_secs(3);
/// Between two looks at a run that pauses.
const INTERVAL: Duration = Duration::from_millis(50);

/// Arguments of `shift`.
#[derive(Debug, Args)]
pub struct ShiftArgs {
    /// [RUN] and the target: down, up, or the name or number of a rung
    #[arg(value_name = "[RUN] down|up|RUNG", num_args = 1..=2, required = true)]
    words: Vec<String>,
}

pub fn shift(args: &ShiftArgs, runs: &Path) -> Outcome {
    let (run, to) = match &args.words[..] {
        [to] => (None, to),
        [run, to, ..] => (Some(run.as_str()), to),
        [] => (None, &String::new()),
    };
    let run = find_run(runs, run)?;
    refuse_ended(&run, to)?;
    send_and_print(&run, &Request::Shift { to: Target::parse(to) })
}

/// Refuses a run that has ended: only `resume` can start it, on any rung.
fn refuse_ended(run: &RunDir, to: &str) -> Result<(), Failure> {
    let Some(status) = live_status(run).filter(|status| status.state.is_over()) else { return Ok(()) };
    let How::Resume(_) = continuation(run, Some(&status)).how else { return Ok(()) };
    if status.state == RunState::Finished || owners::keeper(run).is_some() {
        return Ok(());
    }
    let (name, state) = (run.name(), status.state.word());
    let is_rung = match Target::parse(to) {
        Target::Rung(rung) => run.run()?.rung_named(&rung).is_some(),
        Target::Down | Target::Up => true,
    };
    if status.rungs.len() < 2 || !is_rung {
        return Ok(());
    }
    let resume = format!("{} --rung {}", run.command("resume"), quoted(to));
    Err(Failure::new(1, format!("{name} has ended ({state}); `{resume}` continues it on another rung")))
}

pub fn stop(which: &WhichAlive, runs: &Path) -> Outcome {
    let run = match &which.run {
        // The newest run may be over; `stop` then means the one that is alive.
        None => occupied::the_one(runs, "stop")?,
        Some(_) => None,
    };
    let run = run.map_or_else(|| find_run(runs, which.run.as_deref()), Ok)?;
    let end = client::stop(&run, |answer| line!("{}: {answer}", run.name()))?;
    line!("{}: {end}", run.name());
    Ok(0)
}

pub fn checkpoint(which: &Which, runs: &Path) -> Outcome {
    send_to(which.run.as_deref(), runs, &Request::Checkpoint)
}

/// Pauses a run, and waits until its worker has ended: a `resume` right after it continues the run.
pub fn pause(which: &Which, runs: &Path) -> Outcome {
    let run = find_run(runs, which.run.as_deref())?;
    send_and_print(&run, &Request::Pause)?;
    let asked = Instant::now();
    let settled = poll_within(PAUSING, INTERVAL, || {
        // The keeper withdraws a pause whose checkpoint cannot be written.
        let trains_on = |status: &Status| status.state == RunState::Training && asked.elapsed() > HEARD;
        let is_paused = |status: &Status| status.state == RunState::Paused || status.state.is_over();
        live_status(&run).filter(|status| is_paused(status) || trains_on(status))
    });
    let (name, shows) = (run.name(), run.command("attach"));
    let Some(status) = settled else {
        return Err(Failure::new(
            1,
            format!("{name} is not paused yet: its worker still saves, or cannot end; see `{shows}`"),
        ));
    };
    let now = format!("{} at step {}", status.state.word(), count(status.step));
    match status.state {
        RunState::Training | RunState::Failed | RunState::NeedsPerson | RunState::Interrupted => {
            Err(Failure::new(1, format!("{name} was not paused ({now}); the journal says why: `{shows}`")))
        }
        _ => {
            line!("{name}: {now}");
            Ok(0)
        }
    }
}

/// Accepts the keeper's proposal.
pub fn accept(which: &Which, runs: &Path) -> Outcome {
    send_to(which.run.as_deref(), runs, &Request::Accept)
}

pub fn restart(which: &Which, runs: &Path) -> Outcome {
    send_to(which.run.as_deref(), runs, &Request::Restart)
}

fn send_to(run: Option<&str>, runs: &Path, request: &Request) -> Outcome {
    send_and_print(&find_run(runs, run)?, request)
}

fn send_and_print(run: &RunDir, request: &Request) -> Outcome {
    let answer = send_request(run, request)?;
    line!("{}: {answer}", run.name());
    Ok(0)
}
