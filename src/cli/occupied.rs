//! Two runs on one device slow each other down, or end each other for want of memory. So a run that is
//! about to start looks for living ones first.

use super::{Failure, line};
use crate::keeper::Launch;
use crate::protocol::control::{RunState, Status};
use crate::protocol::device::DeviceChoice;
use crate::store::lock::living_owner;
use crate::store::reader::{Reader, live_status};
use crate::store::run_dir::RunDir;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;

/// A run that is alive.
#[derive(Debug, Clone)]
pub struct Living {
    /// Where it lives.
    pub dir: RunDir,
    /// Where it stands.
    pub status: Status,
}

/// The runs in a folder that a keeper watches over, newest first.
pub fn living(runs: &Path) -> Vec<Living> {
    let alive = |dir: &RunDir| living_owner(&dir.file("keeper.lock")).is_some();
    let all = RunDir::all(runs).into_iter().filter(alive);
    all.filter_map(|dir| {
        let status = live_status(&dir).filter(|status| !status.state.is_over() && status.pid_keeper.is_some())?;
        Some(Living { dir, status })
    })
    .collect()
}

/// The living runs that hold a device or would take it. A paused run holds none.
pub fn occupants(runs: &Path, device: &str) -> Vec<Living> {
    let wanted = choice(device);
    let mut living = living(runs);
    living.retain(|run| run.status.state != RunState::Paused && is_same(wanted, device_of(run)));
    living
}

/// How to name a run that holds the device: its name, what it does, and where.
pub fn named(run: &Living) -> String {
    let (state, step) = (run.status.state.word(), crate::keeper::sentences::grouped(run.status.step));
    format!("{} ({state}, step {step})", run.dir.name())
}

/// The device of a living run: as its worker named it, else as it was started.
fn device_of(run: &Living) -> DeviceChoice {
    let named = run.status.device.as_deref().map(choice).filter(|choice| *choice != DeviceChoice::Auto);
    let launched = || Some(choice(&Reader::open(&run.dir).ok()?.fact::<Launch>("launch")?.device));
    named.or_else(launched).unwrap_or_default()
}

/// A device's name without the name of the card: `cuda:0 NVIDIA …`. `auto` where it says nothing.
fn choice(device: &str) -> DeviceChoice {
    device.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or_default()
}

/// Whether two are the same device, as far as is known.
fn is_same(one: DeviceChoice, other: DeviceChoice) -> bool {
    one == other || one == DeviceChoice::Auto || other == DeviceChoice::Auto
}

/// What to do about a device that another run holds.
pub enum Answer {
    /// Start: nobody holds it, or the user wants both.
    Start,
    /// Open the cockpit on the run that holds it.
    Attach(RunDir),
}

/// Sees that no other run holds the device. On a terminal it asks; else it refuses.
pub fn settle(runs: &Path, device: &str, headless: bool) -> Result<Answer, Failure> {
    let others = occupants(runs, device);
    let Some(first) = others.first() else { return Ok(Answer::Start) };
    let names: Vec<String> = others.iter().map(named).collect();
    let held = format!("{device} is in use by {}", names.join(", "));
    if headless || !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        let attach = first.dir.command("attach");
        return Err(Failure::new(2, format!("{held}; `{attach}` opens it, --another starts a second run beside it")));
    }
    line!("{held}.");
    loop {
        match ask("[a]ttach to it, [s]tart another beside it, or [q]uit? [a] ")?.as_deref() {
            Some("" | "a") => return Ok(Answer::Attach(first.dir.clone())),
            Some("s") => return Ok(Answer::Start),
            Some("q") | None => return Err(Failure::new(2, "nothing was started")),
            Some(_) => {}
        }
    }
}

/// The living run that a command without a name means: the only one. Several are asked about on a
/// terminal, and are an error without one.
pub fn the_one(runs: &Path, verb: &str) -> Result<Option<RunDir>, Failure> {
    let mut living = living(runs);
    if living.len() < 2 {
        return Ok(living.pop().map(|run| run.dir));
    }
    let list: Vec<String> = living.iter().map(|run| format!("  {}", super::status::text(&run.status))).collect();
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        let (count, list) = (living.len(), list.join("\n"));
        return Err(Failure::new(2, format!("{count} runs are alive; name the one to {verb}:\n{list}")));
    }
    for (number, run) in list.iter().enumerate() {
        line!("{:>3} {run}", number + 1);
    }
    loop {
        let question = format!("which one to {verb}? [1-{}, Enter for none] ", living.len());
        match ask(&question)?.as_deref() {
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

/// Asks on the terminal; none at the end of the input.
fn ask(question: &str) -> io::Result<Option<String>> {
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
        // A device that cannot be told may be any.
        assert!(same("auto", "cpu") && same("scripted", "cuda:3"));
    }
}
