//! Checks for values that parse but cannot work.

use super::knobs::Preset;
use super::plateau::Plateau;
use super::problem::{Findings, Problem};
use super::units::Every;
use crate::recipe::class::effective_batch;

/// Maximum epochs or steps of a run; beyond it the clock could overflow.
const MAX_LENGTH: u64 = 1_000_000_000;

/// Maximum number of parameter groups: each is matched against the path of every parameter.
const MAX_GROUPS: usize = 64;

/// Returns every invalid value in one preset, by the path of its knob.
#[must_use]
pub fn check_preset(preset: &Preset) -> Vec<Problem> {
    let mut found = Findings::default();
    check_training(preset, &mut found);
    check_optimizer(preset, &mut found);
    if let Every::Seconds(_) | Every::Auto = preset.evaluation.every {
        let fix = "write steps or epochs: 1 epoch";
        found.push("evaluation.every", "a wall-clock interval would make runs irreproducible", fix);
    }
    let proves = preset.checkpoint.proven_after >= 1;
    found.unless(proves, "checkpoint.proven_after", "0 steps prove nothing", "write 200");
    found.unless(
        preset.checkpoint.keep_last >= 1,
        "checkpoint.keep_last",
        "0 would keep no checkpoint",
        "write 1 or more",
    );
    found.into_problems()
}

/// Returns the error in the name of a run or a rung, if any.
#[must_use]
pub fn check_name(path: &str, name: &str) -> Option<Problem> {
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    let wrong = if name.is_empty() {
        "a name cannot be empty"
    } else if name.chars().count() > 48 {
        "a name has at most 48 characters"
    } else if name.starts_with(['.', '-']) || !name.chars().all(fits) {
        "a name consists of letters, digits, `-`, `_` and `.`, and starts with a letter or digit"
    } else {
        return None;
    };
    Some(Problem::at(path, wrong, "write one such as digits-2; it becomes part of a folder name"))
}

/// Detects a memory rung that changed the effective batch by accident, and returns the fix that would keep it.
#[must_use]
pub fn batch_advice(full: &Preset, rung: &Preset) -> Option<String> {
    // A script may choose the factor that its file does not write.
    effective_batch(&full.tree())?;
    let wanted = full.training.micro_batch * full.training.accumulation;
    let (micro, times) = (rung.training.micro_batch, rung.training.accumulation);
    let (had, has) = (u64::from(full.ranks.unwrap_or(1)), u64::from(rung.ranks.unwrap_or(1)));
    if had != has {
        return other_ranks_advice(wanted * had, rung, has);
    }
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

/// Does the same for a rung with another number of ranks.
fn other_ranks_advice(wanted: u64, rung: &Preset, ranks: u64) -> Option<String> {
    let (micro, times) = (rung.training.micro_batch, rung.training.accumulation);
    let batch = micro * times * ranks;
    let keeps = wanted
        .is_multiple_of(micro * ranks)
        .then(|| format!("; training.accumulation: {} would keep it", wanted / (micro * ranks)));
    (batch != wanted).then(|| {
        format!(
            "training.micro_batch × training.accumulation × ranks = {micro} × {times} × {ranks} = {batch} changes the effective \
             batch from {wanted}{}",
            keeps.unwrap_or_default()
        )
    })
}

fn check_training(preset: &Preset, found: &mut Findings) {
    let training = &preset.training;
    match (training.epochs, training.steps) {
        (Some(_), Some(_)) => {
            found.push("training.steps", "both `epochs` and `steps` are given", "keep one of the two");
        }
        // A script ends on its own.
        (None, None) if preset.written.is_some() => {}
        (None, None) => found.push("training.epochs", "the run has no end", "write `epochs:` or `steps:`"),
        (Some(0), None) => found.push("training.epochs", "0 epochs train nothing", "write 1 or more"),
        (Some(epochs), None) if epochs > MAX_LENGTH => {
            found.push("training.epochs", "the run would never end", "write at most 1000000000");
        }
        (None, Some(steps)) if steps > MAX_LENGTH => {
            found.push("training.steps", "the run would never end", "write at most 1000000000");
        }
        (None, Some(0)) => found.push("training.steps", "0 steps train nothing", "write 1 or more"),
        _ => {}
    }
    let micro = training.micro_batch;
    found.unless(micro >= 1, "training.micro_batch", "a micro-batch needs at least one sample", "write 1 or more");
    let accumulation = training.accumulation;
    found.unless(
        accumulation >= 1,
        "training.accumulation",
        "a step needs at least one micro-batch",
        "write 1 or more",
    );
    let batch = micro.saturating_mul(accumulation).saturating_mul(u64::from(preset.ranks.unwrap_or(1)));
    let fits = batch <= 1 << 24;
    found.unless(fits, "training.micro_batch", "the effective batch exceeds 16777216 samples", "write smaller numbers");
    let threads = training.loader.threads;
    found.unless((1..=64).contains(&threads), "training.loader.threads", "must be 1 to 64 threads", "write 1");
    let ready = training.loader.prefetch;
    found.unless((1..=1024).contains(&ready), "training.loader.prefetch", "must be 1 to 1024 micro-batches", "write 2");
}

fn check_optimizer(preset: &Preset, found: &mut Findings) {
    let optimizer = &preset.optimizer;
    found.unless(optimizer.lr > 0.0, "optimizer.lr", "the learning rate must be above 0", "write one such as 1.0e-3");
    found.unless(
        optimizer.lr <= 100.0,
        "optimizer.lr",
        "the learning rate must be at most 100",
        "write one such as 1.0e-3",
    );
    let decay = (0.0..=10.0).contains(&optimizer.weight_decay);
    found.unless(decay, "optimizer.weight_decay", "must be 0 to 10", "write 0.01");
    let clips = optimizer.max_norm.is_none_or(|norm| norm > 0.0);
    found.unless(
        clips,
        "optimizer.max_norm",
        "must be above 0, since clipping to 0 would stop training",
        "write 1.0, or leave it out",
    );
    check_groups(preset, found);
    check_architecture(preset, found);
    let betas = optimizer.betas.iter().all(|beta| (0.0..1.0).contains(beta));
    found.unless(betas, "optimizer.betas", "decay rates must be at least 0 and below 1", "write [0.9, 0.999]");
    found.unless(optimizer.epsilon > 0.0, "optimizer.epsilon", "must be above 0", "write 1.0e-8");
    let schedule = optimizer.schedule;
    let warmup = (0.0..1.0).contains(&schedule.warmup);
    found.unless(
        warmup,
        "optimizer.schedule.warmup",
        "must be a share of the run, at least 0 and below 1",
        "write 0.05",
    );
    let end = (0.0..=1.0).contains(&schedule.end);
    found.unless(end, "optimizer.schedule.final", "must be a share of the peak rate, 0 to 1", "write 0.1");
    check_plateau(preset, found);
}

fn check_plateau(preset: &Preset, found: &mut Findings) {
    let Some(Plateau { rule, .. }) = &preset.optimizer.plateau else { return };
    let at = |knob: &str| format!("optimizer.plateau.{knob}");
    let factor = rule.factor > 0.0 && rule.factor < 1.0;
    found.unless(factor, &at("factor"), "must be above 0 and below 1, since it lowers the rate", "write 0.5");
    let threshold = (0.0..1.0).contains(&rule.threshold);
    found.unless(threshold, &at("threshold"), "must be a share of the best value, 0 to 1", "write 1.0e-4");
    let least = (0.0..=preset.optimizer.lr).contains(&rule.min_lr);
    found.unless(least, &at("min_lr"), "must be 0 or more, up to the rung's `optimizer.lr`", "write 0.0");
    let never = preset.written.is_none() && matches!(preset.evaluation.every, Every::Never);
    let fix = "write `evaluation: { every: 1 epoch }`, or remove `plateau`";
    found.unless(!never, "optimizer.plateau", "it follows evaluations, and this run makes none", fix);
    let scripts = "the script owns its learning rate, and downshift cannot change it while the script trains";
    let fix = "remove it, and use a scheduler of the script, such as ReduceLROnPlateau";
    found.unless(preset.written.is_none(), "optimizer.plateau", scripts, fix);
}

fn check_architecture(preset: &Preset, found: &mut Findings) {
    let Some(architecture) = preset.optimizer.architecture else { return };
    let at = |knob: &str| format!("optimizer.architecture.{knob}");
    let rate = architecture.lr > 0.0 && architecture.lr <= 100.0;
    found.unless(rate, &at("lr"), "must be above 0, up to 100", "write one such as 3.0e-3");
    let decay = (0.0..=10.0).contains(&architecture.weight_decay);
    found.unless(decay, &at("weight_decay"), "must be 0 to 10", "write 1.0e-3");
    let betas = architecture.betas.iter().all(|beta| (0.0..1.0).contains(beta));
    found.unless(betas, &at("betas"), "decay rates must be at least 0 and below 1", "write [0.5, 0.999]");
}

fn check_groups(preset: &Preset, found: &mut Findings) {
    let few = preset.optimizer.groups.0.len() <= MAX_GROUPS;
    found.unless(few, "optimizer.groups", "more than 64 groups", "merge groups with the same rules");
    for (name, group) in &preset.optimizer.groups.0 {
        let at = |knob: &str| format!("optimizer.groups.{name}.{knob}");
        let patterns = group.matches.as_slice();
        let named = !patterns.is_empty() && patterns.iter().all(|pattern| !pattern.is_empty());
        found.unless(
            named,
            &at("match"),
            "an empty pattern matches no parameter",
            "write a pattern such as head or blocks.*.bias",
        );
        let factor = group.lr_factor > 0.0 && group.lr_factor <= 1e4;
        found.unless(factor, &at("lr_factor"), "must be above 0, up to 10000", "write 0.1, or `frozen: true`");
        let decay = group.weight_decay.is_none_or(|decay| (0.0..=10.0).contains(&decay));
        found.unless(decay, &at("weight_decay"), "must be 0 to 10", "write 0.01");
        let clips = group.max_norm.is_none_or(|norm| norm > 0.0);
        found.unless(
            clips,
            &at("max_norm"),
            "must be above 0, since clipping to 0 would stop training",
            "write 1.0, or leave it out",
        );
    }
}
