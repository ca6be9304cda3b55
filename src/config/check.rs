//! Checks for values that parse but cannot work.

use super::knobs::Preset;
use super::problem::Problem;
use super::units::Every;

/// The most epochs or steps of a run; beyond it the clock could overflow.
const LONGEST: u64 = 1_000_000_000;

/// Maximum number of parameter groups: each is matched against the path of every parameter.
const MOST_GROUPS: usize = 64;

/// Returns every invalid value in one preset, by the path of its knob.
#[must_use]
pub fn preset(preset: &Preset) -> Vec<Problem> {
    let mut found = Findings::default();
    training(preset, &mut found);
    optimizer(preset, &mut found);
    if let Every::Seconds(_) | Every::Auto = preset.evaluation.every {
        let fix = "write it in steps or epochs: 1 epoch";
        found.push("evaluation.every", "the clock on the wall would make two runs differ", fix);
    }
    let proves = preset.checkpoint.proven_after >= 1;
    found.unless(proves, "checkpoint.proven_after", "0 steps prove nothing", "write 200");
    found.unless(
        preset.checkpoint.keep_last >= 1,
        "checkpoint.keep_last",
        "0 would keep no checkpoint",
        "write 1 or more",
    );
    found.0
}

/// Returns the error in the name of a run or a rung, if any.
#[must_use]
pub fn name(path: &str, name: &str) -> Option<Problem> {
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    let wrong = if name.is_empty() {
        "a name cannot be empty"
    } else if name.chars().count() > 48 {
        "a name has at most 48 characters"
    } else if name.starts_with(['.', '-']) || !name.chars().all(fits) {
        "a name is letters, digits, `-`, `_` and `.`, and starts with a letter or digit"
    } else {
        return None;
    };
    Some(Problem::at(path, wrong, "it becomes part of a folder's name; write one such as digits-2"))
}

/// Detects a memory rung that changed the effective batch by accident, and returns the fix that would keep it.
#[must_use]
pub fn batch_advice(full: &Preset, rung: &Preset) -> Option<String> {
    let wanted = full.training.micro_batch * full.training.accumulation;
    let (micro, times) = (rung.training.micro_batch, rung.training.accumulation);
    if micro * times == wanted {
        return None;
    }
    let working: Vec<String> = (1..=wanted)
        .rev()
        .filter(|micro| wanted.is_multiple_of(*micro) && *micro <= rung.training.micro_batch)
        .take(3)
        .map(|micro| format!("{micro} × {}", wanted / micro))
        .collect();
    Some(format!(
        "training.micro_batch × training.accumulation = {micro} × {times} = {} changes the effective batch from {wanted}; {} would keep it",
        micro * times,
        working.join(", ")
    ))
}

fn training(preset: &Preset, found: &mut Findings) {
    let training = &preset.training;
    match (training.epochs, training.steps) {
        (Some(_), Some(_)) => {
            found.push("training.steps", "both `epochs` and `steps` are given", "keep one of the two");
        }
        (None, None) => found.push("training.epochs", "the run has no end", "write `epochs:` or `steps:`"),
        (Some(0), None) => found.push("training.epochs", "0 epochs train nothing", "write 1 or more"),
        (Some(epochs), None) if epochs > LONGEST => {
            found.push("training.epochs", "the run would never end", "write 1000000000 at most");
        }
        (None, Some(steps)) if steps > LONGEST => {
            found.push("training.steps", "the run would never end", "write 1000000000 at most");
        }
        (None, Some(0)) => found.push("training.steps", "0 steps train nothing", "write 1 or more"),
        _ => {}
    }
    let micro = training.micro_batch;
    found.unless(micro >= 1, "training.micro_batch", "a micro-batch of 0 samples is empty", "write 1 or more");
    let accumulation = training.accumulation;
    found.unless(accumulation >= 1, "training.accumulation", "a step needs at least one pass", "write 1 or more");
    let batch = micro.saturating_mul(accumulation);
    let fits = batch <= 1 << 24;
    found.unless(fits, "training.micro_batch", "an effective batch above 16 777 216 samples", "write smaller numbers");
    let threads = training.loader.threads;
    found.unless((1..=64).contains(&threads), "training.loader.threads", "loading needs 1 to 64 threads", "write 1");
    let ready = training.loader.prefetch;
    found.unless(
        (1..=1024).contains(&ready),
        "training.loader.prefetch",
        "between 1 and 1024 micro-batches are kept ready",
        "write 2",
    );
}

fn optimizer(preset: &Preset, found: &mut Findings) {
    let optimizer = &preset.optimizer;
    found.unless(
        optimizer.lr > 0.0,
        "optimizer.lr",
        "a learning rate of 0 or less learns nothing",
        "write one such as 1.0e-3",
    );
    found.unless(optimizer.lr <= 100.0, "optimizer.lr", "a learning rate above 100", "write one such as 1.0e-3");
    let decay = (0.0..=10.0).contains(&optimizer.weight_decay);
    found.unless(decay, "optimizer.weight_decay", "weight decay lies between 0 and 10", "write 0.01");
    let clips = optimizer.max_norm.is_none_or(|norm| norm > 0.0);
    found.unless(
        clips,
        "optimizer.max_norm",
        "a norm of 0 or less would stop every step",
        "write 1.0, or leave it out",
    );
    groups(preset, found);
    let betas = optimizer.betas.iter().all(|beta| (0.0..1.0).contains(beta));
    found.unless(betas, "optimizer.betas", "decay rates lie between 0 and 1, without 1", "write [0.9, 0.999]");
    found.unless(optimizer.epsilon > 0.0, "optimizer.epsilon", "must be above 0", "write 1.0e-8");
    let schedule = optimizer.schedule;
    let warmup = (0.0..1.0).contains(&schedule.warmup);
    found.unless(warmup, "optimizer.schedule.warmup", "a share of the run, from 0 to below 1", "write 0.05");
    let end = (0.0..=1.0).contains(&schedule.end);
    found.unless(end, "optimizer.schedule.final", "a share of the peak rate, from 0 to 1", "write 0.1");
}

fn groups(preset: &Preset, found: &mut Findings) {
    let few = preset.optimizer.groups.0.len() <= MOST_GROUPS;
    found.unless(few, "optimizer.groups", "there are more than 64 groups", "join those with the same rate");
    for (name, group) in &preset.optimizer.groups.0 {
        let at = |knob: &str| format!("optimizer.groups.{name}.{knob}");
        let patterns = group.matches.as_slice();
        let named = !patterns.is_empty() && patterns.iter().all(|pattern| !pattern.is_empty());
        found.unless(named, &at("match"), "this matches no parameter", "write a pattern such as head or blocks.*.bias");
        let factor = group.lr_factor > 0.0 && group.lr_factor <= 1e4;
        found.unless(factor, &at("lr_factor"), "the rate is multiplied by this", "write 0.1, or `frozen: true`");
        let decay = group.weight_decay.is_none_or(|decay| (0.0..=10.0).contains(&decay));
        found.unless(decay, &at("weight_decay"), "weight decay lies between 0 and 10", "write 0.01");
        let clips = group.max_norm.is_none_or(|norm| norm > 0.0);
        found.unless(clips, &at("max_norm"), "a norm of 0 or less would stop every step", "write 1.0, or leave it out");
    }
}

#[derive(Default)]
struct Findings(Vec<Problem>);

impl Findings {
    fn push(&mut self, path: &str, wrong: &str, fix: &str) {
        self.0.push(Problem::at(path, wrong, fix));
    }

    fn unless(&mut self, fine: bool, path: &str, wrong: &str, fix: &str) {
        if !fine {
            self.push(path, wrong, fix);
        }
    }
}
