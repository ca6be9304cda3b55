//! The checkpoint that a command resumes from.

use super::checkpoints::{Candidate, Moment, look_at};
use super::prepare::{context_of, size_of, watch_checkpoints};
use super::{HarnessArgs, HarnessError};
use crate::config::command::{Level, RestartPolicy, names_checkpoint};
use crate::store::adopted::{self, Adopted};
use crate::untrusted::text;
use std::path::PathBuf;

/// Finds the checkpoint to resume from: the newest one unchanged since it was adopted.
///
/// # Errors
/// Returns an error when there are checkpoints but none is usable: a command that starts over would overwrite them.
pub(super) fn choose_checkpoint(args: &HarnessArgs, notes: &mut Vec<String>) -> Result<Option<Adopted>, HarnessError> {
    if args.spec.level() < Level::Checkpoints {
        return Ok(None);
    }
    adopt_leftovers(args, notes);
    let (newest, unusable) = adopted::newest_usable(args.run_dir.path());
    notes.extend(unusable.iter().map(|(adopted, error)| format!("checkpoint {} is not used: {error}", adopted.step)));
    let may_start_over = args.spec.restart == RestartPolicy::FromStart;
    match (newest, unusable.into_iter().next()) {
        (None, Some((adopted, source))) if !may_start_over => {
            Err(HarnessError::NoCheckpoint { step: adopted.step, source })
        }
        (newest, _) => Ok(newest),
    }
}

/// Adopts checkpoints that the last attempt completed just before it ended.
fn adopt_leftovers(args: &HarnessArgs, notes: &mut Vec<String>) {
    let Some(spec) = &args.spec.checkpoints else { return };
    let run_dir = args.run_dir.path();
    let Some(Ok(mut watch)) = watch_checkpoints(args, &context_of(args, None), notes) else { return };
    let listed: Vec<PathBuf> = adopted::list(run_dir).into_iter().map(|adopted| adopted.path).collect();
    let went_back = adopted::went_back(run_dir);
    let is_given_up = |found: &Candidate| {
        let written = look_at(&found.path);
        went_back.zip(found.step).zip(written).is_some_and(|((back, step), written)| back.gave_up(step, &written))
    };
    while let Some(found) = watch.look(Moment::BeforeStart) {
        // A listed one changed while nothing watched it, so it may be damaged.
        if listed.contains(&found.path) || is_given_up(&found) {
            if watch.ignore(&found.path).is_err() {
                break;
            }
            continue;
        }
        // Without a number in its name, the step of a checkpoint is unknown by now.
        let Some(step) = found.step else { break };
        let samples = step.saturating_mul(size_of(args).0);
        let adopt = if spec.copy { adopted::adopt_copy } else { adopted::adopt };
        match adopt(run_dir, step, samples, &found.path) {
            Ok(adopted) => watch.record_adopted(&adopted),
            Err(error) => {
                notes.push(format!("checkpoint {step} is not adopted: {error}"));
                break;
            }
        }
    }
}

/// Puts a copy back in place of its original, if the command finds its checkpoint on its own: a save that was cut off
/// may have damaged the original, or it may be newer than the step to resume from.
///
/// # Errors
/// Returns an error when a file cannot be put back.
pub(super) fn restore_original(
    args: &HarnessArgs,
    from: &Adopted,
    notes: &mut Vec<String>,
) -> Result<(), HarnessError> {
    if names_checkpoint(&args.spec, &args.preset) {
        return Ok(());
    }
    let step = from.step;
    if from.restore_original().map_err(|source| HarnessError::NotRestored { step, source })? {
        let path = text::path(&from.original().path);
        notes.push(format!("{path} differed from checkpoint {step} and was replaced by its copy"));
    }
    Ok(())
}
