//! Compares checkpoints: measures each on the whole validation set and lists the best first.

use crate::cli::{Failure, Outcome, line};
use crate::config::best::Best;
use crate::format::count;
use crate::keeper::sentences::measured;
use crate::protocol::control::CheckpointRow;
use crate::protocol::metrics::is_quality;
use crate::protocol::worker::Eval;
use crate::store::checkpoint::{self, STATE, state::TrainState};
use crate::store::run_dir::RunDir;
use crate::trainer::Trainer;
use crate::untrusted::file::{self, Limit};
use crate::untrusted::text;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Ranks the checkpoints, or the `last` newest ones, as `checkpoint.best` says.
pub fn compare(run: &RunDir, last: Option<u64>, trainer: &dyn Trainer) -> Outcome {
    let config = run.run()?;
    if config.command.is_some() {
        return compare_reported(run, last, &config.rungs[0].preset.checkpoint.best);
    }
    let mut by_rung: BTreeMap<usize, Vec<PathBuf>> = BTreeMap::new();
    let most = last.map_or(usize::MAX, |last| usize::try_from(last).unwrap_or(usize::MAX));
    for entry in checkpoint::list(run.path()).into_iter().take(most) {
        // The rung that wrote it determines its model's shape.
        let rung = rung_of(&entry.path).filter(|rung| *rung < config.rungs.len()).unwrap_or(0);
        by_rung.entry(rung).or_default().push(entry.path);
    }
    let mut ranked: Vec<(Eval, usize)> = Vec::new();
    for (rung, paths) in by_rung {
        let all = trainer.measure(&config, rung, &paths).map_err(Failure::of)?;
        for (outcome, path) in all.into_iter().zip(&paths) {
            match outcome {
                Ok(eval) => ranked.push((eval, rung)),
                Err(why) => crate::cli::say(&format!("{} cannot be measured: {why}", text::path(path))),
            }
        }
    }
    add_quality(run, &mut ranked);
    if ranked.is_empty() {
        return Err(Failure::checkpoint(format!("{} has no checkpoint that can be measured", run.name())));
    }
    let ranking = &config.rungs[0].preset.checkpoint.best;
    let value = |eval: &Eval| ranking.value(eval.loss, &eval.metrics);
    ranked.sort_by(|(a, _), (b, _)| {
        let better = match (value(a), value(b)) {
            (Some(a), Some(b)) => ranking.compare(a, b),
            (a, b) => b.is_some().cmp(&a.is_some()),
        };
        better.then(a.step.cmp(&b.step))
    });
    for (place, (eval, rung)) in (1..).zip(&ranked) {
        let (step, name) = (count(eval.step), &config.rungs[*rung].name);
        line!("{place:>3}.  step {step:>9}  {}  ({name})", measured(eval));
    }
    Ok(0)
}

/// Adds the quality that was measured beside the training.
fn add_quality(run: &RunDir, ranked: &mut [(Eval, usize)]) {
    let rows = super::checkpoint_rows(run);
    for (eval, _) in ranked {
        let row = rows.iter().find(|row| row.kept && row.step == eval.step);
        let quality = row.iter().flat_map(|row| &row.metrics).filter(|(name, _)| is_quality(name));
        eval.metrics.extend(quality.map(|(name, value)| (name.clone(), *value)));
    }
}

/// Ranks the checkpoints of a command by the evaluations that it reported: only its script can measure them.
fn compare_reported(run: &RunDir, last: Option<u64>, ranking: &Best) -> Outcome {
    let rows = super::checkpoint_rows(run).into_iter().rev().filter(|row| row.kept);
    let most = last.map_or(usize::MAX, |last| usize::try_from(last).unwrap_or(usize::MAX));
    let rows = rows.take(most).filter_map(|row| Some((ranking.value(row.eval_loss, &row.metrics)?, row)));
    let mut ranked: Vec<(f64, CheckpointRow)> = rows.collect();
    if ranked.is_empty() {
        let text = format!(
            "{} reported no {} of an evaluation at the step of a checkpoint; `checkpoint.best` names the metric that \
             ranks them",
            run.name(),
            ranking.metric
        );
        return Err(Failure::checkpoint(text));
    }
    ranked.sort_by(|(a, one), (b, other)| ranking.compare(*a, *b).then(one.step.cmp(&other.step)));
    for (place, (_, row)) in (1..).zip(ranked) {
        let eval =
            Eval { step: row.step, samples: row.samples, loss: row.eval_loss, metrics: row.metrics, reduced: None };
        line!("{place:>3}.  step {:>9}  {}", count(eval.step), measured(&eval));
    }
    Ok(0)
}

fn rung_of(path: &Path) -> Option<usize> {
    let state: TrainState = serde_json::from_slice(&file::read(&path.join(STATE), Limit::Record).ok()?).ok()?;
    Some(state.rung)
}
