//! `queue`: the runs that wait for a device. Lists them, and changes their order.

use super::{Failure, Format, Outcome, client, find_run, line, runs};
use crate::cockpit::run_cells as cell;
use crate::cockpit::update::ChangeError;
use crate::protocol::claim::{Move, Place, QueueChange, UnknownMove, Wait};
use crate::protocol::control::Request;
use crate::store::claims::{MoveError, Registry, check_waits, place_of};
use crate::store::run_dir::RunDir;
use crate::store::run_summary::RunSummary;
use crate::untrusted::poll::poll_within;
use crate::untrusted::text;
use clap::{Args, Subcommand};
use std::path::Path;
use std::time::Duration;

/// Time for the keeper of a run that is held or released to say so in the registry.
const SETTLING: Duration = Duration::from_secs(5);
const INTERVAL: Duration = Duration::from_millis(20);

/// Arguments of `queue`.
#[derive(Debug, Args)]
pub struct QueueArgs {
    #[command(subcommand)]
    action: Option<QueueAction>,
    /// Output format of the list
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

#[derive(Debug, Subcommand)]
enum QueueAction {
    /// Move a waiting run: first, last, up, down, or to a number
    Move {
        /// The run's name, a prefix of it, or its folder
        #[arg(value_name = "RUN")]
        run: String,
        /// The place, among the runs that wait for the same device
        #[arg(value_name = "first|last|up|down|NUMBER", value_parser = parse_move)]
        to: Move,
    },
    /// Let other runs pass a waiting one, until `release`
    Hold {
        /// The run's name, a prefix of it, or its folder
        #[arg(value_name = "RUN")]
        run: String,
    },
    /// Let a held run wait again, at its place
    Release {
        /// The run's name, a prefix of it, or its folder
        #[arg(value_name = "RUN")]
        run: String,
    },
    /// Take a waiting run out of the queue; `resume` puts it back, at the end
    Remove {
        /// The run's name, a prefix of it, or its folder
        #[arg(value_name = "RUN")]
        run: String,
    },
}

fn parse_move(text: &str) -> Result<Move, UnknownMove> {
    text.parse()
}

pub fn queue(args: &QueueArgs, runs: &Path) -> Outcome {
    let (run, what) = match &args.action {
        None if args.format == Format::Json => return runs::print_living(args.format, runs),
        None => {
            print_queue(runs);
            return Ok(0);
        }
        Some(QueueAction::Move { run, to }) => (run, QueueChange::Move(*to)),
        Some(QueueAction::Hold { run }) => (run, QueueChange::Hold),
        Some(QueueAction::Release { run }) => (run, QueueChange::Release),
        Some(QueueAction::Remove { run }) => (run, QueueChange::Remove),
    };
    let dir = find_run(runs, Some(run))?;
    line!("{}: {}", dir.name(), change(&dir, what)?);
    Ok(0)
}

/// Prints the runs that have their devices, then those that wait, in their order.
fn print_queue(runs: &Path) {
    let living = runs::living(runs);
    if living.is_empty() {
        line!("no run is alive; `downshift run a.yaml b.yaml` queues several");
    }
    let claims = Registry::of_user().map(|registry| registry.living()).unwrap_or_default();
    let here = runs.canonicalize().unwrap_or_else(|_| runs.to_owned());
    let now_ms = jiff::Timestamp::now().as_millisecond();
    let row = |(dir, run): &(RunDir, RunSummary)| {
        let devices = claims.iter().find(|claim| claim.run_dir == dir.path()).map(|claim| claim.devices.to_string());
        let begun = run.status.as_ref().is_some_and(|status| status.step > 0);
        let progress =
            if begun { format!("step {} {}", cell::steps(run), cell::done_text(run)) } else { String::new() };
        let folder =
            dir.path().parent().filter(|folder| **folder != here).map(|folder| format!("in {}", text::path(folder)));
        let devices = devices.unwrap_or_default();
        [
            cell::state(run, now_ms),
            run.name.clone(),
            devices,
            progress.trim_end().to_owned(),
            folder.unwrap_or_default(),
        ]
        .to_vec()
    };
    let rows: Vec<Vec<String>> = living.iter().map(row).collect();
    for row in runs::align(&rows) {
        line!("{row}");
    }
}

/// Does the same for the cockpit.
pub fn change_for_cockpit(dir: &RunDir, what: QueueChange) -> Result<String, ChangeError> {
    let answer = change(dir, what).map_err(|failure| ChangeError(failure.message))?;
    Ok(format!("{}: {answer}", dir.name()))
}

/// Changes the place of a waiting run. Returns the answer.
fn change(dir: &RunDir, what: QueueChange) -> Result<String, Failure> {
    let registry = Registry::of_user().ok_or_else(|| MoveError::NotWaiting(dir.name()))?;
    let place = || place_of(dir.path(), &registry.living());
    let Place { wait, .. } = check_waits(dir, &registry.living())?;
    let settle = |is_done: &dyn Fn(Option<Place>) -> bool| {
        poll_within(SETTLING, INTERVAL, || Some(place()).filter(|place| is_done(*place))).flatten()
    };
    let is_held = |place: Option<Place>| place.is_some_and(|place| place.wait == Wait::Held);
    match (what, wait) {
        (QueueChange::Move(to), _) => {
            let number = registry.move_run(dir, to)?;
            let held = if wait == Wait::Held { "held, " } else { "" };
            Ok(format!("{held}{}", number_word(number)))
        }
        (QueueChange::Hold, Wait::Held) => Ok("held already".to_owned()),
        (QueueChange::Hold, _) => {
            client::send_request(dir, &Request::Pause)?;
            settle(&is_held);
            Ok("held: others pass it until it is released".to_owned())
        }
        (QueueChange::Release, Wait::Held) => {
            client::send_request(dir, &Request::Resume)?;
            let place = settle(&|place| !is_held(place));
            Ok(place.map_or_else(|| "starts".to_owned(), place_word))
        }
        (QueueChange::Release, _) => Ok("is not held".to_owned()),
        (QueueChange::Remove, _) => {
            client::stop(dir, |_| {})?;
            Ok(format!("removed from the queue; `{}` puts it back, at the end", dir.command("resume")))
        }
    }
}

/// Describes a place: `number 2 in the queue`.
pub fn place_word(place: Place) -> String {
    match place.wait {
        Wait::Number(number) => number_word(number),
        Wait::Later => "waits for the end of another run".to_owned(),
        Wait::Held => "held".to_owned(),
    }
}

fn number_word(number: usize) -> String {
    if number == 1 { "next in the queue".to_owned() } else { format!("number {number} in the queue") }
}
