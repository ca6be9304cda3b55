//! `checkpoints`: lists, verifies and compares a run's checkpoints, exports the weights, copies one to a
//! second place, and deletes those that retention does not keep.

mod compare;
pub mod copy;
mod export;

use super::{Failure, Outcome, client, find_run, line};
use crate::config::typed::nearest;
use crate::format::{bytes, count, figure};
use crate::keeper::offline::OfflineKeeper;
use crate::keeper::retention::{find_unmatched, is_adopted, newest_evaluations};
use crate::keeper::sentences::keeps_all;
use crate::keeper::set_aside;
use crate::protocol::capability::Level;
use crate::protocol::control::{CheckpointRow, EvalRow, Request};
use crate::protocol::metrics::is_of_class;
use crate::store::adopted::{self, AdoptError, Adopted};
use crate::store::checkpoint::{self, CheckpointError, CheckpointFolder, Loaded, aside};
use crate::store::continuation::command_from_checkpoint;
use crate::store::owners;
use crate::store::permissions;
use crate::store::reader::{Reader, live_status};
use crate::store::run_dir::RunDir;
use crate::trainer::Trainer;
use crate::untrusted::text;
use clap::Args;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Arguments of `checkpoints`.
#[derive(Debug, Args)]
pub struct CheckpointsArgs {
    /// [RUN] and an action: list; verify (read every byte); compare (measure on the validation set);
    /// export (only the weights); copy (the best one to a second place); prune (delete those that
    /// retention does not keep)
    #[arg(value_name = "[RUN] list|verify|compare|export|copy|prune", num_args = 0..=2)]
    words: Vec<String>,
    /// export: path of the safetensors file, or with --format of the folder
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// export: format of another program: hf (a folder for transformers, adapters merged) or peft (the
    /// adapters, and full copies of other trained parameters); or genotype (what a search found, as JSON and SVG);
    /// defaults to one file with our own names
    #[arg(long, value_name = "hf|peft|genotype")]
    format: Option<String>,
    /// copy: the target folder; a folder named after the run is created in it
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// export, copy: the checkpoint's step; export defaults to the newest that verifies, copy to the best
    #[arg(long, value_name = "N", conflicts_with = "best")]
    step: Option<u64>,
    /// export, copy: the best checkpoint: the lowest validation loss on disk
    #[arg(long)]
    best: bool,
    /// compare: only the N newest
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    last: Option<u64>,
}

pub fn run_action(args: &CheckpointsArgs, runs: &Path, trainer: &dyn Trainer) -> Outcome {
    let known = ["list", "verify", "compare", "export", "copy", "prune"];
    let (run, action) = match &args.words[..] {
        [] => (None, "list"),
        [word] if known.contains(&word.as_str()) => (None, word.as_str()),
        [run] => (Some(run.as_str()), "list"),
        [action, run] if known.contains(&action.as_str()) && !known.contains(&run.as_str()) => {
            (Some(run.as_str()), action.as_str())
        }
        [run, action, ..] => (Some(run.as_str()), action.as_str()),
    };
    let run = find_run(runs, run).map_err(|failure| name_actions(failure, &args.words, &known))?;
    has_use_for(args, action)?;
    // These two build the model and read the data that run.yaml names.
    if action == "compare" || args.format.is_some() {
        permissions::check(&run)?;
    }
    if action == "export" && !adopted::list(run.path()).is_empty() {
        let text = format!(
            "the checkpoints of {name} are files of its command, which `checkpoints export` cannot read; `downshift \
             checkpoints {name} list` shows where they are, `copy --to DIR` copies one",
            name = run.name()
        );
        return Err(Failure::checkpoint(text));
    }
    match action {
        "list" => Ok(list_checkpoints(&run)),
        "verify" => Ok(verify(&run)),
        "compare" => compare::compare(&run, args.last, trainer),
        "export" => export::export(&run, args, trainer),
        "copy" => copy::copy(&run, args),
        "prune" => prune(&run),
        other => Err(Failure::new(2, format!("unknown action `{other}`; choose from: {}", known.join(", ")))),
    }
}

/// Adds the actions to a failure to find the run: a single word may be either.
fn name_actions(failure: Failure, words: &[String], known: &[&str]) -> Failure {
    let [word] = words else { return failure };
    let actions = match nearest(word, known) {
        Some(near) => format!("did you mean `downshift checkpoints {near}`?"),
        None => format!("the actions are {}", known.join(", ")),
    };
    Failure::new(failure.code, format!("{}; {actions}", failure.message))
}

/// Rejects options that the action does not support.
fn has_use_for(args: &CheckpointsArgs, action: &str) -> Result<(), Failure> {
    let given: [(&str, bool, &[&str]); 6] = [
        ("--out", args.out.is_some(), &["export"]),
        ("--format", args.format.is_some(), &["export"]),
        ("--to", args.to.is_some(), &["copy"]),
        ("--step", args.step.is_some(), &["export", "copy"]),
        ("--best", args.best, &["export", "copy"]),
        ("--last", args.last.is_some(), &["compare"]),
    ];
    match given.iter().find(|(_, given, users)| *given && !users.contains(&action)) {
        Some((option, _, users)) => {
            Err(Failure::new(2, format!("{option} is for `checkpoints {}`, not for `{action}`", users.join("`, `"))))
        }
        None => Ok(()),
    }
}

fn checkpoint_rows(run: &RunDir) -> Vec<CheckpointRow> {
    Reader::open(run).and_then(|reader| reader.checkpoints()).unwrap_or_default()
}

/// Reason why a checkpoint on disk is broken.
#[derive(Debug, thiserror::Error)]
enum BrokenError {
    #[error(transparent)]
    Container(#[from] CheckpointError),
    #[error(transparent)]
    Adopted(#[from] AdoptError),
}

/// A checkpoint on disk: a container of ours, or the files of a command.
enum OnDisk {
    Container(CheckpointFolder),
    Adopted(Adopted),
}

impl OnDisk {
    fn all(run: &RunDir) -> Vec<Self> {
        let containers = checkpoint::list(run.path()).into_iter().map(Self::Container);
        containers.chain(adopted::list(run.path()).into_iter().map(Self::Adopted)).collect()
    }

    fn step(&self) -> u64 {
        match self {
            Self::Container(entry) => entry.step,
            Self::Adopted(adopted) => adopted.step,
        }
    }

    fn path(&self) -> &Path {
        match self {
            Self::Container(entry) => &entry.path,
            Self::Adopted(adopted) => &adopted.path,
        }
    }

    /// Returns its size, without reading its files.
    fn bytes(&self) -> Result<u64, CheckpointError> {
        match self {
            Self::Container(entry) => checkpoint::manifest(&entry.path).map(|manifest| manifest.bytes()),
            Self::Adopted(adopted) => Ok(adopted.bytes()),
        }
    }

    /// Reads every byte of it. Returns its size.
    fn verify(&self) -> Result<u64, BrokenError> {
        match self {
            Self::Container(entry) => Ok(checkpoint::verify(&entry.path)?.bytes()),
            Self::Adopted(adopted) => Ok(adopted.verify_every_byte().map(|()| adopted.bytes())?),
        }
    }
}

/// Returns checkpoints that are missing although no rule deleted them.
fn missing_checkpoints(run: &RunDir, there: &[OnDisk]) -> Vec<CheckpointRow> {
    let is_there = |row: &CheckpointRow| there.iter().any(|found| found.step() == row.step);
    checkpoint_rows(run).into_iter().filter(|row| row.kept && !is_there(row)).collect()
}

fn list_checkpoints(run: &RunDir) -> u8 {
    let (rows, there) = (checkpoint_rows(run), OnDisk::all(run));
    if there.is_empty() {
        line!("{} has no checkpoint yet{}", run.name(), unwatched(run));
    }
    for found in there {
        let row = rows.iter().find(|row| row.step == found.step());
        let size = found.bytes().map_or_else(|error| error.to_string(), bytes);
        let mut eval = row
            .and_then(|row| row.eval_loss)
            .map_or_else(String::new, |loss| format!("  validation loss {}", figure(loss)));
        for (name, value) in row.iter().flat_map(|row| &row.metrics).filter(|(name, _)| !is_of_class(name)) {
            let _ = write!(eval, "  {name} {}", figure(*value));
        }
        let best = if row.is_some_and(|row| row.best) { "  best" } else { "" };
        let proven = if row.is_some_and(|row| row.proven) { "  proven" } else { "" };
        line!("step {:>9}  {size:>9}{eval}{best}{proven}  {}", count(found.step()), text::path(found.path()));
    }
    if let Some(unmatched) = find_unmatched_in(run, &rows) {
        line!("{unmatched}");
    }
    let containers = aside::list_aside(run.path()).into_iter().map(|entry| (entry.step, entry.path));
    let adopted = adopted::still_aside(run.path()).into_iter().map(|adopted| (adopted.step, adopted.path));
    for (step, path) in containers.chain(adopted) {
        line!("step {:>9}  set aside  {}", count(step), text::path(&path));
    }
    0
}

/// Returns what is not known of the best checkpoint of a command, and whether that keeps all of them on disk.
fn find_unmatched_in(run: &RunDir, rows: &[CheckpointRow]) -> Option<String> {
    let config = run.run().ok()?;
    let keeps = config.command.as_ref()?.checkpoints.as_ref()?.keep_last.is_some();
    let reader = Reader::open(run).ok()?;
    let rung = reader.status().map_or(0, |status| status.rung).min(config.rungs.len() - 1);
    let evals: Vec<EvalRow> = newest_evaluations(reader.evals().ok()?.into_iter());
    let adopted: Vec<CheckpointRow> = rows.iter().filter(|row| is_adopted(row)).cloned().collect();
    let ranking = &config.rungs[rung].preset.checkpoint.best;
    let unmatched = find_unmatched(&adopted, evals.iter().map(|row| &row.eval), ranking)?;
    Some(if keeps { keeps_all(&unmatched) } else { unmatched.to_string() })
}

/// Says that checkpoints of the script would not be known.
fn unwatched(run: &RunDir) -> &'static str {
    let status = live_status(run);
    if status.is_some_and(|status| status.level == Some(Level::Command.number())) {
        "; its run file does not say where the script saves (`checkpoints`)"
    } else {
        ""
    }
}

fn verify(run: &RunDir) -> u8 {
    let there = OnDisk::all(run);
    let missing = missing_checkpoints(run, &there);
    if there.is_empty() && missing.is_empty() {
        line!("{} has no checkpoint", run.name());
    }
    let mut bad = missing.len();
    for row in &missing {
        line!("step {:>9}  MISSING: run.db lists it in {}", count(row.step), row.path);
    }
    for found in &there {
        match found.verify() {
            Ok(size) => line!("step {:>9}  whole, {}", count(found.step()), bytes(size)),
            Err(error) => {
                bad += 1;
                line!("step {:>9}  BROKEN: {error}", count(found.step()));
            }
        }
    }
    if bad == 0 { 0 } else { 14 }
}

/// Prunes checkpoints. Only a keeper deletes: the living one, or this process in its place.
fn prune(run: &RunDir) -> Outcome {
    if owners::is_kept(run) {
        match client::send_request(run, &Request::Prune) {
            Ok(answer) => {
                line!("{}: {answer}", run.name());
                return Ok(0);
            }
            // The run has ended meanwhile, or its keeper's parent was about to exit.
            Err(_) if !owners::is_kept(run) => {}
            Err(failure) => return Err(failure),
        }
    }
    permissions::check(run)?;
    let pruned = OfflineKeeper::step_in(run)?.prune()?;
    for step in &pruned.superfluous {
        line!("deleted step {}", count(*step));
    }
    for path in &pruned.aside {
        line!("deleted {}", text::path(path));
    }
    for damage in &pruned.damaged {
        line!("left for your review: {damage}");
    }
    if pruned.superfluous.is_empty() && pruned.aside.is_empty() {
        line!("nothing to delete: retention keeps every checkpoint of {} that verifies", run.name());
    }
    Ok(0)
}

/// Returns the step of the best checkpoint, if any was evaluated.
pub(super) fn best_step(run: &RunDir) -> Result<Option<u64>, Failure> {
    let Some(row) = checkpoint_rows(run).into_iter().find(|row| row.kept && row.best) else { return Ok(None) };
    if run.path().join(&row.path).exists() {
        return Ok(Some(row.step));
    }
    let (name, step) = (run.name(), count(row.step));
    Err(Failure::checkpoint(format!(
        "the best checkpoint of {name}, step {step}, is missing; name another one with --step N (`downshift \
             checkpoints {name} list` shows those that are there, `compare` ranks them)"
    )))
}

/// Loads the checkpoint of a step, or the newest that verifies.
pub(super) fn load_chosen(run: &RunDir, step: Option<u64>) -> Result<Loaded, Failure> {
    let Some(step) = step else {
        let (newest, rejected) = checkpoint::newest_valid(run.path());
        for (path, error) in &rejected {
            super::say(&format!("skipped {}: {error}", text::path(path)));
        }
        return newest.ok_or_else(|| Failure::checkpoint(none_to_load(run)));
    };
    let entries = checkpoint::list(run.path());
    let of_script = || Some(Failure::checkpoint(describe_adopted(run, &adopted::find(run.path(), step)?)));
    let missing = || of_script().unwrap_or_else(|| unknown(step, run));
    let entry = entries.iter().find(|entry| entry.step == step).ok_or_else(missing)?;
    checkpoint::load(&entry.path).map_err(Failure::checkpoint)
}

/// Says why a run has no checkpoint to load.
fn none_to_load(run: &RunDir) -> String {
    match adopted::list(run.path()).first() {
        Some(newest) => describe_adopted(run, newest),
        None => format!("{} has no checkpoint that verifies", run.name()),
    }
}

/// Says how another run begins with a checkpoint that only the script can read.
fn describe_adopted(run: &RunDir, adopted: &Adopted) -> String {
    let name = run.name();
    let command = run.run().ok().and_then(|run| run.command);
    let from = command.and_then(|spec| command_from_checkpoint(run, Some(&spec), Some(adopted.step)));
    let from =
        from.map_or_else(|| format!("--from {name}@{} of `downshift run`", adopted.step), |line| format!("`{line}`"));
    format!(
        "the checkpoints of {name} are its script's own files, which only the script can read; {from} starts a new run \
         from one"
    )
}

fn unknown(step: u64, run: &RunDir) -> Failure {
    let steps: Vec<String> = OnDisk::all(run).iter().map(|found| found.step().to_string()).collect();
    let there = if steps.is_empty() { "there are none".to_owned() } else { format!("there are {}", steps.join(", ")) };
    let aside: Vec<String> = set_aside::steps_aside(run.path()).iter().rev().map(u64::to_string).collect();
    let aside = match &aside[..] {
        [] => String::new(),
        steps => format!("; set aside, and put back by `{} --from STEP`: {}", run.command("resume"), steps.join(", ")),
    };
    Failure::checkpoint(format!("no checkpoint of step {step}; {there}{aside}"))
}
