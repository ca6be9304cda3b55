//! Checks before a start, as one list: config, device, data, tokenizer, disk, and other users of the GPU.
//! `run` and `trial` require it to pass before anything is started; `check --preflight` prints it.

mod ranks;
mod rungs;
mod script;

use super::devices::devices_of_start;
use super::patience::{READING_DATA, explain_wait};
use super::run;
use super::settings_copies::describe_change;
use super::trust;
use super::undeclared::undeclared_arguments;
use super::{Failure, line, occupied, plan, say};
use crate::config::command::deepspeed::{Wrong, check_deepspeed};
use crate::config::command::files::{changed_on_full, check_copies};
use crate::config::command::first_launch;
use crate::config::run::Run;
use crate::config::trust::{Access, Grant, Grants};
use crate::diagnose::doctor::{Check, Severity, other_users};
use crate::diagnose::readings::read_gpu;
use crate::format::{self, bytes, count};
use crate::notify::secret;
use crate::protocol::claim::Devices;
use crate::protocol::exit_code::{CONFIG, DATA, USAGE};
use crate::store::disk;
use crate::store::resume_proof::Proofs;
use crate::trainer::program::settle_program;
use crate::trainer::{Prospect, Trainer};
use crate::untrusted::file::{self, Limit};
use crate::untrusted::text;
pub use script::{find_missing_script, missing_script};
use serde_json::Value;
use std::env;
use std::io;
use std::path::Path;

/// The parameters of a start.
#[derive(Clone, Copy)]
pub struct Start<'a> {
    /// The requested device, as typed.
    pub device: &'a str,
    /// The folder that contains all runs.
    pub runs: &'a Path,
    /// The trainer.
    pub trainer: &'a dyn Trainer,
    /// Whether the user has just approved what the run file names.
    pub approved: bool,
    /// The number of nodes that it trains on.
    pub nodes: u32,
    /// Whether it starts beside another run on its device, waits for it, or asks.
    pub shares: bool,
    /// Whether it can wait for its device.
    pub can_wait: bool,
}

/// The list of checks, and their results that a start needs.
#[derive(Default)]
pub struct Preflight {
    checks: Vec<Check>,
    failure: Option<Failure>,
    occupied: bool,
    unapproved: bool,
    run: Option<Run>,
    prospect: Option<Prospect>,
    devices: Devices,
}

/// A run that may start.
pub struct Cleared {
    /// The run.
    pub run: Run,
    /// The trainer's findings about it.
    pub prospect: Prospect,
    /// The devices that it will use.
    pub devices: Devices,
}

impl Preflight {
    /// Runs every check on a run file that was read or refused. Skips checks that depend on a failed part.
    pub fn of(loaded: Result<Run, Failure>, start: Start<'_>) -> Self {
        let mut list = Self::default();
        let run = match loaded {
            Ok(run) => run,
            Err(failure) => {
                list.fail("config", failure, "fix the run file");
                return list;
            }
        };
        list.pass("config", format!("{}, {}", run.name, format::counted(run.rungs.len() as u64, "rung")));
        let run = match settle_program(run) {
            Ok(run) => run,
            Err(error) => {
                let failure = Failure::new(CONFIG, error.to_string());
                list.fail("program", failure, "fix the run file, or install the program");
                return list;
            }
        };
        list.check_script(&run, start.nodes);
        list.check_trial(&run);
        list.check_access(&Grants::from_run(&run), start.approved);
        list.look_ahead(start, &run);
        if let Err(error) = disk::check_writable(start.runs) {
            list.refuse_folder(start.runs, &error);
            list.run = Some(run);
            return list;
        }
        let room = run::has_room(start.runs, &run, list.prospect.as_ref().and_then(|prospect| prospect.parameters));
        match room {
            Ok(()) => list.check_alarm(start.runs, run.watch.disk_free_mib << 20),
            Err(failure) => list.fail("disk", failure, "free some space, or choose another --runs-dir"),
        }
        list.run = Some(run);
        list
    }

    fn check_script(&mut self, run: &Run, nodes: u32) {
        if let Some(missing) = run.command.as_ref().and_then(find_missing_script) {
            self.fail("script", Failure::new(CONFIG, missing), "fix its path, or start from its folder");
        }
        for sentence in run.command.as_ref().map(undeclared_arguments).unwrap_or_default() {
            self.checks.push(Check::warn("arguments", sentence, "correct it, unless the script takes it anyway"));
        }
        for problem in check_copies(run) {
            self.fail(
                "files",
                Failure::new(CONFIG, problem.to_string()),
                "correct `files` in the run file, or the settings file",
            );
        }
        for mistake in
            first_launch(run, 0, nodes).iter().flat_map(|start| check_deepspeed(start, nodes, |name| env::var_os(name)))
        {
            let (sentence, fix) = (mistake.to_string(), "correct the DeepSpeed file");
            match mistake.wrong {
                Wrong::Unreadable(_) => self.checks.push(Check::warn("deepspeed", sentence, fix)),
                Wrong::Fraction { .. } | Wrong::Product { .. } => {
                    self.fail("deepspeed", Failure::new(CONFIG, sentence), fix);
                }
            }
        }
        for (file, changed) in changed_on_full(run) {
            let fix = "change the knob of `full`, or the settings file, so that both say the same";
            self.checks.push(Check::warn("files", describe_change(&file, &changed), fix));
        }
        self.checks.extend(rungs::checks(run));
    }

    /// Refuses a runs directory that cannot be written.
    fn refuse_folder(&mut self, runs: &Path, error: &io::Error) {
        let (wrong, fix) =
            (format!("{} cannot be written: {error}", text::path(runs)), "choose another folder with --runs-dir");
        self.failure.get_or_insert(Failure::new(1, format!("{wrong}; {fix}")));
        self.checks.push(Check::fail("disk", wrong, fix));
    }

    /// Warns of a disk with less room than the run's alarm asks for.
    fn check_alarm(&mut self, runs: &Path, least: u64) {
        if disk::free_bytes(runs).is_ok_and(|free| free < least) {
            let text = format!("{}; the run's alarm asks for {}", free(runs), bytes(least));
            self.checks.push(Check::warn("disk", text, "free some space, or lower watch.disk_free_mib"));
        } else {
            self.pass("disk", free(runs));
        }
    }

    /// Tells the outcome of the last trial of exactly this command.
    fn check_trial(&mut self, run: &Run) {
        let Some(proof) = run.command.as_ref().and_then(|command| Proofs::of_user().find(command)) else { return };
        if proof.is_proven() {
            self.pass("trial", proof.to_string());
        } else {
            let fix = "`downshift trial` names what the script leaves out";
            self.checks.push(Check::warn("trial", proof.to_string(), fix));
        }
    }

    /// Checks device, data, tokenizer and pretrained weights.
    fn look_ahead(&mut self, start: Start<'_>, run: &Run) {
        let tokenizer = Tokenizer::of(run);
        let looked = explain_wait(READING_DATA, || start.trainer.look_ahead(run, start.device));
        match looked.map_err(Failure::of) {
            Ok(prospect) => {
                self.pass("device", prospect.device.clone());
                match &run.command {
                    Some(command) => self.pass("program", command.command[..1].concat()),
                    None => self.pass("data", samples(&prospect)),
                }
                if let Tokenizer::Named(name) = &tokenizer {
                    self.pass("tokenizer", name.clone());
                }
                self.devices = devices_of_start(run, start.device, &prospect.device);
                self.others(start, &prospect.device);
                self.ranks(run, start.nodes);
                self.prospect = Some(prospect);
            }
            Err(failure) if failure.code != DATA => {
                return self.fail("device", failure, "choose another with --device");
            }
            Err(failure) => {
                self.pass("device", start.device.to_owned());
                let what = if tokenizer.is_readable() { "data" } else { "tokenizer" };
                return self.fail(what, failure, "fix it, or its path in the run file");
            }
        }
        if let Some(text) =
            run.quality.as_ref().and_then(|quality| quality.text.as_ref()).filter(|text| !text.is_file())
        {
            let failure = Failure::new(DATA, format!("quality.text: {} is not a file", text::path(text)));
            self.fail("quality", failure, "fix its path in the run file");
        }
        match start.trainer.examine(run) {
            Ok(()) => {}
            Err(refusal) => self.fail("weights", Failure::of(refusal), "fix model.init_from"),
        }
    }

    /// Checks that the user approved what the run file names, and that all of it is there.
    fn check_access(&mut self, grants: &Grants, approved: bool) {
        if grants.is_empty() {
            return;
        }
        if approved || trust::is_approved(grants) {
            self.pass("approval", "what the run file starts and reads is approved".to_owned());
        } else {
            self.unapproved = true;
            let text = format!("this run file needs your approval for:\n{}", grants.lines().join("\n"));
            self.checks.push(Check::fail("approval", text, "approve it with --trust, or interactively in a terminal"));
        }
        for Grant { access, key } in grants {
            let (name, text) = match access {
                Access::Library(path) if !path.exists() => ("library", format!("{} does not exist", text::path(path))),
                Access::File(path) if !secret::expand_home(path).exists() => {
                    ("secret", format!("{} does not exist", text::path(path)))
                }
                Access::Environment(name) if env::var_os(name).is_none() => {
                    ("secret", format!("the environment variable {name} is not set"))
                }
                _ => continue,
            };
            self.checks.push(Check::warn(name, format!("{key}: {text}"), "fix it in the run file, or provide it"));
        }
    }

    /// Checks who else uses the device: other runs, and on a GPU any process.
    fn others(&mut self, Start { runs, shares, can_wait, .. }: Start<'_>, device: &str) {
        let ours: Vec<String> = occupied::occupants(&self.devices).iter().map(occupied::describe).collect();
        if !ours.is_empty() {
            self.occupied = !shares;
            let text = format!("{device} is in use by {}", ours.join(", "));
            let fix = if can_wait {
                "stop it, wait for it with --wait-for-card, or start a second run with --another"
            } else {
                "stop it, or train next to it with --another"
            };
            self.checks.push(if shares { Check::warn("others", text, fix) } else { Check::fail("others", text, fix) });
            return;
        }
        let Some(card) = plan::card_index(device) else {
            return self.pass("others", "no other run on this device".to_owned());
        };
        let place = if runs.is_dir() { runs } else { Path::new(".") };
        let reading = read_gpu(place, card).map_err(|error| error.to_string());
        match reading.and_then(|reading| reading.gpu.map_err(|error| error.to_string())) {
            Ok(gpu) => self.checks.push(other_users(&gpu)),
            Err(why) => self.checks.push(Check::warn("others", format!("unknown: {why}"), "see `downshift doctor`")),
        }
    }

    /// Checks the ranks of a command.
    fn ranks(&mut self, run: &Run, nodes: u32) {
        for check in ranks::checks(run, &self.devices, nodes) {
            if let Some(failure) = refusal_of(&check) {
                self.failure.get_or_insert(failure);
            }
            self.checks.push(check);
        }
    }

    fn pass(&mut self, name: &'static str, text: String) {
        self.checks.push(Check::ok(name, text));
    }

    /// Adds a failure; the first one determines the exit code.
    fn fail(&mut self, name: &'static str, failure: Failure, fix: &'static str) {
        self.checks.push(Check::fail(name, failure.message.clone(), fix));
        self.failure.get_or_insert(failure);
    }

    /// Prints the whole list. Returns the exit code of a start: 0 if it would begin.
    pub fn report(&self) -> u8 {
        self.print();
        let refusal = match (self.unapproved, self.occupied) {
            (true, _) => CONFIG,
            (false, true) => USAGE,
            (false, false) => 0,
        };
        self.failure.as_ref().map_or(refusal, |failure| failure.code)
    }

    fn print(&self) {
        for check in &self.checks {
            line!("{check}");
        }
        for note in self.prospect.iter().flat_map(|prospect| &prospect.notes) {
            say(note);
        }
    }

    /// Prints the list and returns what a start needs if every check passed.
    ///
    /// # Errors
    /// Returns an error when a check fails: that of the first one.
    pub fn clear(self) -> Result<Cleared, Failure> {
        self.print();
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let devices = self.devices;
        let cleared = self.run.zip(self.prospect).map(|(run, prospect)| Cleared { run, prospect, devices });
        cleared.ok_or_else(|| Failure::new(1, "the run could not be checked"))
    }
}

/// Checks the ranks of a run that continues. A start checks them with everything else.
///
/// # Errors
/// Returns an error when they cannot start on these devices.
pub fn check_ranks(run: &Run, devices: &Devices, nodes: u32) -> Result<(), Failure> {
    for check in ranks::checks(run, devices, nodes) {
        if let Some(failure) = refusal_of(&check) {
            return Err(failure);
        }
        if check.verdict == Severity::Warn {
            say(&format!("{}; {}", check.text, check.fix));
        }
    }
    Ok(())
}

fn refusal_of(check: &Check) -> Option<Failure> {
    (check.verdict == Severity::Fail).then(|| Failure::new(CONFIG, format!("{}; {}", check.text, check.fix)))
}

fn samples(prospect: &Prospect) -> String {
    match prospect.samples {
        Some((training, validation)) => {
            format!("{} training and {} validation samples", count(training as u64), count(validation as u64))
        }
        None => "counted by the worker".to_owned(),
    }
}

fn free(runs: &Path) -> String {
    let shown = text::path(runs);
    disk::free_bytes(runs)
        .map_or_else(|_| format!("free space in {shown} is unknown"), |free| format!("{} free in {shown}", bytes(free)))
}

/// A run's tokenizer.
enum Tokenizer {
    /// The task has no tokenizer.
    None,
    /// A file, or `bytes`.
    Named(String),
}

impl Tokenizer {
    fn of(run: &Run) -> Self {
        match run.preset_tree(0).pointer("/data/tokenizer") {
            Some(Value::String(name)) => Self::Named(name.clone()),
            _ => Self::None,
        }
    }

    /// Reports whether its file can be read as JSON. `bytes` needs no file.
    fn is_readable(&self) -> bool {
        let Self::Named(name) = self else { return true };
        let path = Path::new(name);
        let is_json = |text: Vec<u8>| serde_json::from_slice::<serde::de::IgnoredAny>(&text).is_ok();
        name == "bytes" || file::read(path, Limit::Record).is_ok_and(is_json)
    }
}

#[cfg(test)]
mod tests;
