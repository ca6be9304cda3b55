//! Two runs on one device slow each other down, or run each other out of memory. So a run that is about
//! to start looks for living ones first.

use super::{Failure, line};
use crate::keeper::Launch;
use crate::protocol::control::{RunState, Status};
use crate::protocol::device::DeviceChoice;
use crate::store::owners;
use crate::store::reader::{Reader, live_status};
use crate::store::run_dir::RunDir;
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
    let alive = |dir: &RunDir| owners::keeper(dir).is_some() || owners::parent_record(dir).is_some();
    let all = RunDir::all(runs).into_iter().filter(alive);
    all.filter_map(|dir| {
        let status = live_status(&dir).filter(|status| !status.state.is_over())?;
        Some(LivingRun { dir, status })
    })
    .collect()
}

/// Returns the living runs that hold a device or would take it. A paused run holds none.
pub fn occupants(runs: &Path, device: &str) -> Vec<LivingRun> {
    let wanted = choice(device);
    let mut living = living_runs(runs);
    living.retain(|run| run.status.state != RunState::Paused && is_same(wanted, device_of(run)));
    living
}

/// Describes a run that holds the device: its name, state and step.
pub fn describe(run: &LivingRun) -> String {
    let (state, step) = (run.status.state.word(), crate::format::count(run.status.step));
    format!("{} ({state}, step {step})", run.dir.name())
}

/// Returns the device of a living run: as its worker named it, else as it was started.
fn device_of(run: &LivingRun) -> DeviceChoice {
    let named = run.status.device.as_deref().map(choice).filter(|choice| *choice != DeviceChoice::Auto);
    let launched = || Some(choice(&Reader::open(&run.dir).ok()?.fact::<Launch>("launch")?.device));
    named.or_else(launched).unwrap_or_default()
}

/// Parses a device's display name. Returns `auto` if it names none.
fn choice(device: &str) -> DeviceChoice {
    DeviceChoice::from_display_name(device).unwrap_or_default()
}

/// Reports whether two choices mean the same device, as far as is known.
fn is_same(one: DeviceChoice, other: DeviceChoice) -> bool {
    one == other || one == DeviceChoice::Auto || other == DeviceChoice::Auto
}

/// The decision about a device that another run holds.
pub enum Answer {
    /// Start: the device is free, or the user wants both runs.
    Start,
    /// Open the cockpit on the run that holds the device.
    Attach(RunDir),
}

/// Checks that no other run holds the device. Asks on a terminal, refuses otherwise.
pub fn settle_device(runs: &Path, device: &str, headless: bool) -> Result<Answer, Failure> {
    let others = occupants(runs, device);
    let Some(first) = others.first() else { return Ok(Answer::Start) };
    let names: Vec<String> = others.iter().map(describe).collect();
    let held = format!("{device} is in use by {}", names.join(", "));
    if headless || !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        let attach = first.dir.command("attach");
        return Err(Failure::new(
            2,
            format!("{held}; `{attach}` opens it, --another starts a second run on the device"),
        ));
    }
    line!("{held}.");
    loop {
        match ask_user("[a]ttach to it, [s]tart another on this device, or [q]uit? [a] ")?.as_deref() {
            Some("" | "a") => return Ok(Answer::Attach(first.dir.clone())),
            Some("s") => return Ok(Answer::Start),
            Some("q") | None => return Err(Failure::new(2, "nothing was started")),
            Some(_) => {}
        }
    }
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
fn ask_user(question: &str) -> io::Result<Option<String>> {
    let mut out = io::stdout().lock();
    write!(out, "{question}").and_then(|()| out.flush())?;
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer)?;
    Ok((read > 0).then(|| answer.trim().to_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::{choice, is_same};

    #[test]
    fn the_same_card_is_the_same_device_whatever_it_is_called() {
        let same = |one: &str, other: &str| is_same(choice(one), choice(other));
        assert!(same("cuda:0 NVIDIA H100", "cuda") && same("cpu", "cpu") && same("cuda:1", "cuda:1 RTX"));
        assert!(!same("cuda:0 NVIDIA H100", "cuda:1 NVIDIA H100") && !same("cpu", "cuda:0"));
        // An unknown device may be any.
        assert!(same("auto", "cpu") && same("scripted", "cuda:3"));
    }
}
