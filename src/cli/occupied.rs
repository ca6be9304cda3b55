//! Two runs on one device slow each other down, or run each other out of memory. So a run that is about
//! to start looks for living ones first.

use super::devices::Sharing;
use super::{Failure, line};
use crate::protocol::claim::{ClaimRequest, Devices, Stage};
use crate::protocol::control::{RunState, Status};
use crate::store::claims::Registry;
use crate::store::owners;
use crate::store::reader::live_status;
use crate::store::run_dir::RunDir;
use crate::untrusted::text;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;

/// A living run.
#[derive(Debug, Clone)]
pub struct LivingRun {
    /// Its run directory.
    pub dir: RunDir,
    /// Its status.
    pub status: Status,
}

/// Returns the runs in a folder that have a keeper or are about to get one back, newest first.
pub fn living_runs(runs: &Path) -> Vec<LivingRun> {
    RunDir::all(runs).into_iter().filter(owners::is_kept).filter_map(living_run).collect()
}

/// Returns the living runs of this user that use one of these devices or wait for it, whatever their runs directory:
/// those that use it first, then those that wait, in their order.
pub fn occupants(devices: &Devices) -> Vec<LivingRun> {
    let mut claims = Registry::of_user().map(|registry| registry.living()).unwrap_or_default();
    claims.retain(|claim| matches!(claim.stage, Stage::Holds | Stage::Queued) && claim.devices.overlap(devices));
    claims.sort_by_key(|claim| (claim.stage == Stage::Queued, claim.ticket));
    claims.iter().filter_map(|claim| living_run(RunDir::open(&claim.run_dir).ok()?)).collect()
}

fn living_run(dir: RunDir) -> Option<LivingRun> {
    let status = live_status(&dir).filter(|status| !status.state.is_over())?;
    Some(LivingRun { dir, status })
}

/// Describes a run that holds the device: its name, state and step.
pub fn describe(run: &LivingRun) -> String {
    let (state, step) = (run.status.state.word(), crate::format::count(run.status.step));
    format!("{} ({state}, step {step})", run.dir.name())
}

/// Reports whether a run lies in the runs directory in use.
fn is_below(run: &Path, runs: &Path) -> bool {
    run.starts_with(runs) || runs.canonicalize().is_ok_and(|runs| run.starts_with(runs))
}

/// Says how to end a living run.
pub fn way_to_end(dir: &RunDir, status: &Status) -> String {
    let stop = format!("end it with `{}`", dir.command("stop"));
    if status.state == RunState::Unattended {
        return format!("take it over with `{}`, then {stop}", dir.command("resume"));
    }
    stop
}

/// The decision about a device that another run uses.
pub enum Answer {
    /// Start the run with this claim.
    Start(ClaimRequest),
    /// Open the cockpit on the run that uses the device.
    Attach(RunDir),
}

/// Checks that no run but `own` uses the devices. Asks on a terminal, refuses otherwise. `runs`: the runs directory in use.
pub fn settle_devices(
    devices: &Devices,
    sharing: &Sharing,
    headless: bool,
    (runs, own): (&Path, Option<&RunDir>),
) -> Result<Answer, Failure> {
    let waits = ClaimRequest { devices: devices.clone(), ..ClaimRequest::default() };
    if sharing.another || sharing.wait_for_card {
        return Ok(Answer::Start(ClaimRequest { another: sharing.another, ..waits }));
    }
    let mut others = occupants(devices);
    others.retain(|other| own.is_none_or(|own| other.dir.path() != own.path()));
    let is_here = |other: &LivingRun| is_below(other.dir.path(), runs);
    others.sort_by_key(|other| !is_here(other));
    // Another run may start in the same moment; then the keepers decide.
    let Some(first) = others.first() else { return Ok(Answer::Start(ClaimRequest { at_once: true, ..waits })) };
    let names: Vec<String> = others.iter().map(describe).collect();
    let held = format!("{devices} is in use by {}", names.join(", "));
    if headless || !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        let attach = first.dir.command("attach");
        return Err(Failure::new(
            2,
            format!(
                "{held}; `{attach}` opens it, --wait-for-card waits for the device, --another starts a second run on it"
            ),
        ));
    }
    line!("{held}.");
    // Enter alone must not attach to a run of another project.
    let default = if is_here(first) { "a" } else { "q" };
    let folder =
        first.dir.path().parent().filter(|_| !is_here(first)).map(|folder| format!(" in {}", text::path(folder)));
    let name = first.dir.name() + &folder.unwrap_or_default();
    let question = format!("[a]ttach to {name}, [w]ait for the device, [s]tart another on it, or [q]uit? [{default}] ");
    loop {
        let answer = ask_user(&question)?.map(|answer| if answer.is_empty() { default.to_owned() } else { answer });
        match answer.as_deref() {
            Some("a") => return Ok(Answer::Attach(first.dir.clone())),
            Some("w") => return Ok(Answer::Start(waits)),
            Some("s") => return Ok(Answer::Start(ClaimRequest { another: true, ..waits })),
            Some("q") | None => return Err(Failure::new(2, "nothing was started")),
            Some(_) => {}
        }
    }
}

/// Checks that no run uses the devices of a measurement, unless it may be `another` one on them: each would distort the
/// other, or take its memory.
pub fn refuse_measurement(devices: &Devices, another: bool) -> Result<(), Failure> {
    let others = if another { Vec::new() } else { occupants(devices) };
    let Some(first) = others.first() else { return Ok(()) };
    let names: Vec<String> = others.iter().map(describe).collect();
    let (names, end) = (names.join(", "), way_to_end(&first.dir, &first.status));
    Err(Failure::new(2, format!("{devices} is in use by {names}; {end}, or train next to it with --another")))
}

/// Returns the living run that a command without a name means: the only one. If there are several, asks
/// on a terminal and fails otherwise.
pub fn the_one(runs: &Path, verb: &str) -> Result<Option<RunDir>, Failure> {
    let mut living = living_runs(runs);
    if living.len() < 2 {
        return Ok(living.pop().map(|run| run.dir));
    }
    let list: Vec<String> = living.iter().map(|run| format!("  {}", super::status::status_line(&run.status))).collect();
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        let (count, list) = (living.len(), list.join("\n"));
        return Err(Failure::new(2, format!("{count} runs are alive; name one to {verb}:\n{list}")));
    }
    for (number, run) in list.iter().enumerate() {
        line!("{:>3} {run}", number + 1);
    }
    loop {
        let question = format!("which run to {verb}? [1-{}, Enter for none] ", living.len());
        match ask_user(&question)?.as_deref() {
            Some("") | None => return Err(Failure::new(2, format!("no run was chosen to {verb}"))),
            Some(answer) => {
                let place = answer.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
                if let Some(run) = place.and_then(|place| living.get(place)) {
                    return Ok(Some(run.dir.clone()));
                }
            }
        }
    }
}

/// Asks on the terminal; returns none at the end of the input.
pub fn ask_user(question: &str) -> io::Result<Option<String>> {
    let mut out = io::stdout().lock();
    write!(out, "{question}").and_then(|()| out.flush())?;
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer)?;
    Ok((read > 0).then(|| answer.trim().to_lowercase()))
}
