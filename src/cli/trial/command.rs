//! The trial of a command: it is killed after a checkpoint and resumed, then trains again without a kill.
//!
//! ```text
//! run 1   1 ───────── checkpoint ── kill -9      resume ─────── + 10 steps
//! run 2   1 ─────────────────────────────────────────────────── + 10 steps
//! run 3   some steps with half the batch size
//! ```

use super::batch_size;
use super::checklist::{self, Check, item, unknown};
use super::compare::{Agreement, Difference};
use super::leg::{Leg, Limits, Over};
use super::outputs::Outputs;
use super::trace::Trace;
use super::verdict::{ENOUGH, Judgement, NOISE, Starts, Verdict, judge};
use crate::cli::kept_script::KeptScript;
use crate::cli::measure::attempt::Start;
use crate::cli::measure::folder::TemporaryFolder;
use crate::cli::measure::interruption::Interruption;
use crate::cli::{Failure, Outcome, line, say};
use crate::config::command::CommandSpec;
use crate::config::run::Run;
use crate::format::{count, counted};
use crate::protocol::companion::IgnoredKnob;
use crate::store::resume_proof::{self, Proofs};
use crate::store::run_dir::RunDir;
use crate::store::{adopted, checkpoint};
use crate::untrusted::text;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Prefix of the folders of trials, in the runs directory.
pub const FOLDERS: &str = "downshift-trial-";

/// The lowest exit code of a trial that a signal ended.
const SIGNALS: u8 = 128;

/// The options of a trial.
pub struct Options<'a> {
    /// Steps before the kill, and after the resume.
    pub steps: u64,
    /// Whether the run directories stay.
    pub keep: bool,
    /// The longest time of the whole trial.
    pub limit: Option<Duration>,
    /// The device, as given on the command line.
    pub device: &'a str,
}

/// Reports whether the resume of a command can be tried, as far as the run file and the source of its script show.
pub fn may_resume(spec: &CommandSpec) -> bool {
    spec.resumes() || KeptScript::of(spec).is_some()
}

/// Says why nothing resumes a command.
pub fn describe_missing(spec: &CommandSpec) -> String {
    let missing = [
        (spec.checkpoints.is_none(), "`checkpoints:` (the files that the script saves)"),
        (spec.resume.is_none(), "`resume:` (how it continues from them)"),
    ];
    let missing: Vec<&str> = missing.iter().filter(|(is_missing, _)| *is_missing).map(|(_, what)| *what).collect();
    let missing = missing.join(" and ");
    format!(
        "the run file has no {missing}, and downshift cannot resume the script by itself; write them, if the script saves its whole \
         state, or change four lines of its PyTorch loop (`downshift init` writes them into a new run file)"
    )
}

fn nothing_to_prove(name: &str, spec: &CommandSpec) -> Failure {
    Failure::new(2, format!("{name}: nothing to prove: {}", describe_missing(spec)))
}

/// Tries the command, and prints what its resume leaves out.
pub fn try_command(run: &Run, options: &Options<'_>, runs: &Path) -> Outcome {
    let outputs = Outputs::find(run, run.first_rung(), options.keep)?;
    fs::create_dir_all(runs)?;
    let mut folder = TemporaryFolder::create(runs, FOLDERS)?;
    if options.keep {
        folder.keep();
    }
    let limits = Limits {
        interruption: Interruption::listen()?,
        deadline: options.limit.and_then(|limit| Instant::now().checked_add(limit)),
    };
    let trial = Trial { run, rung: run.first_rung(), options, limits, outputs, folder: &folder.path };
    let tried = trial.make();
    let cleared = trial.outputs.clear();
    let Tried { judgement, checkpoint, ignored, batch_size } =
        tried.inspect_err(|failure| record_failure(run, failure))?;
    cleared?;
    if options.keep {
        line!("kept in {}", text::path(&folder.path));
    }
    let mut checks = checks(&judgement, checkpoint);
    checks.extend(ignored.iter().map(ignored_knob));
    checks.push(batch_size);
    let failed = checklist::print(&checks);
    if let Some(decimals) = judgement.decimals {
        line!("the script rounds its losses to {decimals} decimals, so they are compared at that precision");
    }
    line!("{}", judgement.verdict);
    record(run, &judgement, checkpoint);
    Ok(u8::from(failed > 0 || !judgement.verdict.is_proven()))
}

/// A trial that is being made.
struct Trial<'a> {
    run: &'a Run,
    rung: usize,
    options: &'a Options<'a>,
    limits: Limits,
    outputs: Outputs,
    folder: &'a Path,
}

/// The findings of a trial.
struct Tried {
    judgement: Judgement,
    /// The step of the checkpoint that was resumed from.
    checkpoint: u64,
    ignored: Vec<IgnoredKnob>,
    batch_size: Check,
}

/// A command that was killed and resumed.
struct Resumed {
    dir: RunDir,
    /// Its steps up to the kill.
    killed: Trace,
    /// Its steps after the resume.
    then: Trace,
    checkpoint: u64,
    /// The knobs that the script does not follow.
    ignored: Vec<IgnoredKnob>,
}

impl Trial<'_> {
    fn make(&self) -> Result<Tried, Failure> {
        let steps = self.options.steps;
        if !self.outputs.are_apart() {
            line!("the trial's own checkpoints are removed at its end: they are not in its run directories");
        }
        let Resumed { dir, killed, then: resumed, checkpoint, ignored } = self.kill_and_resume()?;
        self.outputs.clear()?;
        let newest = newest_checkpoint(&dir).unwrap_or(checkpoint);
        // The resumed command took more steps if it reports its loss rarely.
        let goal = (checkpoint + steps).max(newest + ENOUGH).max(resumed.last());
        line!("run 2: {} without a kill …", counted(goal, "step"));
        let straight = self.train_to(&RunDir::create(self.folder, self.run)?, 1, goal)?;
        let starts = Starts { straight: &straight, killed: &killed, resumed: &resumed, checkpoint };
        let judgement = judge(&starts);
        let batch_size = self.check_batch_size(&judgement, &straight, (&dir, newest))?;
        Ok(Tried { judgement, checkpoint, ignored, batch_size })
    }

    /// Kills the command once it has a checkpoint, and resumes it.
    fn kill_and_resume(&self) -> Result<Resumed, Failure> {
        let steps = self.options.steps;
        let dir = RunDir::create(self.folder, self.run)?;
        line!("run 1: to its first checkpoint from step {steps} on, then kill -9 …");
        let killed = self.kill_after_checkpoint(&dir)?;
        let mut leg = Leg::start(&dir, &self.start(2))?;
        let of_resumed = |failure| named("run 1, resumed", failure);
        leg.run(&self.limits, |leg| leg.resumed_from.is_some() || leg.trace.last() > 0).map_err(of_resumed)?;
        let Some(checkpoint) = leg.resumed_from else {
            return Err(Failure::new(1, "the command was killed, but none of its checkpoints is usable"));
        };
        let at = count(killed.last());
        line!(
            "run 1: killed after step {at}, resumed from checkpoint {}; {} more …",
            count(checkpoint),
            counted(steps, "step")
        );
        leg.run(&self.limits, |leg| has_taken(&leg.trace, checkpoint, checkpoint + steps)).map_err(of_resumed)?;
        let ignored = leg.ignored_knobs();
        Ok(Resumed { dir, killed, then: leg.end(), checkpoint, ignored })
    }

    fn kill_after_checkpoint(&self, dir: &RunDir) -> Result<Trace, Failure> {
        let steps = self.options.steps;
        let Some(spec) = &self.run.command else { return Err(Failure::config("the run file has no command")) };
        let has_saved = |leg: &Leg| leg.saved.is_some_and(|step| step >= steps);
        let can_ask = |leg: &Leg| spec.save.is_some() || leg.has_resuming_companion();
        // Without a way to resume, nothing is waited for but the companion.
        let saves_alone = spec.resumes();
        let mut leg = Leg::start(dir, &self.start(1))?;
        let is_due = |leg: &Leg| leg.trace.last() >= steps && (can_ask(leg) || !saves_alone);
        let mut over = leg.run(&self.limits, |leg| has_saved(leg) || is_due(leg))?;
        if over == Over::Reached && !has_saved(&leg) {
            if !can_ask(&leg) {
                return Err(nothing_to_prove(&self.run.name, spec));
            }
            leg.ask_to_save();
            over = leg.run(&self.limits, has_saved)?;
        }
        if over == Over::Reached {
            return Ok(leg.kill());
        }
        let why = match leg.saved {
            None => "it wrote no complete checkpoint; see `checkpoints:` in the run file",
            Some(step) if step < steps => "its last checkpoint is too early; lower --steps, or let it save more often",
            Some(_) => "it was faster than the kill; let it train for more steps",
        };
        Err(Failure::new(1, format!("the command finished after step {}: {why}", count(leg.trace.last()))))
    }

    fn train_to(&self, dir: &RunDir, number: u64, goal: u64) -> Result<Trace, Failure> {
        let mut leg = Leg::start(dir, &self.start(number))?;
        leg.run(&self.limits, |leg| leg.trace.last() >= goal)?;
        Ok(leg.end())
    }

    fn start(&self, number: u64) -> Start<'_> {
        Start { rung: self.rung, number, device: self.options.device, is_trial: true }
    }

    /// Trains some steps with half the batch size: after a resume if that is exact, since a script may obey its argument
    /// at the start and read its checkpoint's size later, else from the beginning.
    fn check_batch_size(
        &self,
        judged: &Judgement,
        straight: &Trace,
        resumed: (&RunDir, u64),
    ) -> Result<Check, Failure> {
        let Some((changed, size)) = batch_size::halved(self.run, self.rung) else {
            return Ok(batch_size::skipped("the run file has no training.micro_batch above 1 that the command takes"));
        };
        if matches!(judged.verdict, Verdict::Unreproducible { .. }) || judged.noise > 0.0 {
            return Ok(batch_size::skipped("not tried: two starts of this command differ anyway"));
        }
        let (dir, newest) = resumed;
        let from_checkpoint = judged.verdict == Verdict::Exact && !judged.counts_anew && self.outputs.are_apart();
        line!("run 3: training.micro_batch = {size} for {} …", counted(ENOUGH, "step"));
        let (dir, from) = if from_checkpoint {
            dir.write_atomically("run.yaml", changed.to_yaml().as_bytes())?;
            (dir.clone(), newest)
        } else {
            self.outputs.clear()?;
            (RunDir::create(self.folder, &changed)?, 0)
        };
        let start = Start { rung: 0, number: if from_checkpoint { 3 } else { 1 }, ..self.start(1) };
        let mut leg = Leg::start(&dir, &start)?;
        // On a busy machine some steps have no loss: those count that both trainings have.
        let in_both = |leg: &Leg| {
            let is_known = |step: u64| step > from && straight.get(step).is_some_and(|seen| seen.loss.is_some());
            leg.trace.losses().filter(|(step, _)| is_known(*step)).count() as u64
        };
        let ran = leg.run(&self.limits, |leg| {
            in_both(leg) >= ENOUGH || leg.trace.last() > straight.last() && leg.trace.losses_after(from) >= ENOUGH
        });
        let ignored = leg.ignored_knobs().into_iter().find(|ignored| ignored.name == batch_size::KNOB);
        let other = leg.end();
        dir.write_atomically("run.yaml", self.run.to_yaml().as_bytes())?;
        self.limits.interruption.check()?;
        Ok(match (ran, ignored) {
            (Ok(_), Some(ignored)) => ignored_knob(&ignored),
            (Ok(_), None) => batch_size::judge(straight, &other, size),
            (Err(failure), _) => batch_size::skipped(&format!("not known, with {size}: {}", failure.message)),
        })
    }
}

/// Names the start that failed.
fn named(start: &str, mut failure: Failure) -> Failure {
    failure.message.insert_str(0, &format!("{start}: "));
    failure
}

/// Reports whether a resumed command has taken its steps, with enough losses among them. A script that reports rarely
/// gets more steps, but not for ever.
fn has_taken(trace: &Trace, checkpoint: u64, goal: u64) -> bool {
    trace.last() >= goal && trace.losses_after(checkpoint) >= ENOUGH || trace.last() >= goal + 10 * (goal - checkpoint)
}

/// Returns the step of the newest checkpoint: of a companion, or of the script.
fn newest_checkpoint(dir: &RunDir) -> Option<u64> {
    let own = checkpoint::list(dir.path()).first().map(|entry| entry.step);
    own.max(adopted::newest_usable(dir.path()).0.map(|adopted| adopted.step))
}

/// Stores that a trial failed before it could compare. One that was refused or interrupted tells nothing of the command.
fn record_failure(run: &Run, failure: &Failure) {
    if failure.code != 2 && failure.code < SIGNALS {
        // The lines after the first one are those of the log.
        let why = failure.message.lines().next().unwrap_or_default().to_owned();
        store_outcome(run, resume_proof::Outcome::Unknown { why }, (0, 0));
    }
}

/// Stores the outcome of a comparison.
fn record(run: &Run, judgement: &Judgement, checkpoint: u64) {
    let outcome = match &judgement.verdict {
        Verdict::Exact => resume_proof::Outcome::Exact,
        Verdict::WithinNoise | Verdict::SameData => resume_proof::Outcome::SameData,
        Verdict::Differs { step, .. } => resume_proof::Outcome::Differs { step: Some(*step) },
        Verdict::StartsOver => resume_proof::Outcome::Differs { step: None },
        Verdict::Unreproducible { .. } | Verdict::TooFew { .. } => {
            resume_proof::Outcome::Unknown { why: judgement.verdict.to_string() }
        }
    };
    store_outcome(run, outcome, (checkpoint, judgement.after.loss.compared));
}

fn store_outcome(run: &Run, outcome: resume_proof::Outcome, steps: (u64, u64)) {
    let Some(spec) = &run.command else { return };
    if let Err(error) = Proofs::of_user().store(spec, &run.name, outcome, steps) {
        say(&format!("the outcome is not remembered: {error}"));
    }
}

/// Returns the checklist.
fn checks(judgement: &Judgement, checkpoint: u64) -> Vec<Check> {
    let Judgement { verdict, before, after, counts_anew, .. } = judgement;
    let mut checks = vec![reproducible(before, judgement.noise), resumed(verdict, *counts_anew, checkpoint)];
    let fields = [
        ("order of the data", &after.ids, "no sample ids were seen"),
        ("random state", &after.random, "not seen"),
        ("learning rate", &after.rate, "the script reports none"),
        ("loss scale", &after.scale, "not seen"),
        ("gradient norm", &after.norm, "the script reports none"),
        ("loss", &after.loss, "the script reports none after the resume"),
    ];
    if *verdict != Verdict::StartsOver {
        // Losses of trainings that differ anyway say nothing.
        let is_silent = matches!(verdict, Verdict::Unreproducible { .. });
        let told = fields
            .into_iter()
            .filter(|(what, ..)| !is_silent || matches!(*what, "order of the data" | "learning rate"));
        checks.extend(told.map(|(what, agreement, unseen)| agrees(what, agreement, unseen)));
    }
    checks
}

fn reproducible(before: &Agreement, noise: f64) -> Check {
    const WHAT: &str = "reproducible";
    let losses = counted(before.compared, "step");
    match &before.difference {
        _ if before.compared == 0 => unknown(WHAT, "no losses were seen before the kill"),
        None => item(WHAT, true, format!("two starts agree in {losses}")),
        Some(difference) if noise <= NOISE => {
            unknown(WHAT, format!("two starts differ by up to {noise:.1e} of the loss, first at {}", at(difference)))
        }
        Some(difference) => item(WHAT, false, format!("two starts differ at {}", at(difference))),
    }
}

fn resumed(verdict: &Verdict, counts_anew: bool, checkpoint: u64) -> Check {
    let from = format!("from checkpoint {}", count(checkpoint));
    match verdict {
        Verdict::StartsOver => item("resumed", false, "it started over"),
        _ if counts_anew => item("resumed", true, format!("{from}; it counts its steps from 1 again")),
        _ => item("resumed", true, from),
    }
}

fn ignored_knob(IgnoredKnob { name, rung, in_force }: &IgnoredKnob) -> Check {
    item("arguments obeyed", false, format!("the script ignores {name}: the rung says {rung}, in force is {in_force}"))
}

fn agrees(what: &'static str, agreement: &Agreement, unseen: &str) -> Check {
    match &agreement.difference {
        Some(difference) => item(what, false, at(difference)),
        None if agreement.is_unstable => unknown(what, "two starts differ in it without any kill"),
        None if agreement.compared == 0 => unknown(what, unseen),
        None => item(what, true, format!("agrees in {}", counted(agreement.compared, "step"))),
    }
}

fn at(Difference { step, straight, other }: &Difference) -> String {
    format!("step {}: {other} instead of {straight}", count(*step))
}
