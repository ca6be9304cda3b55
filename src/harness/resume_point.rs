//! The checkpoint that a command resumes from: the newest one that is whole, a container of its companion or one that
//! the script wrote.

use super::checkpoints::{Candidate, Moment, look_at};
use super::prepare::{context_of, size_of, watch_checkpoints};
use super::saving::noted_step;
use super::{HarnessArgs, HarnessError, Purpose};
use crate::config::command::{RestartPolicy, names_checkpoint};
use crate::format::count;
use crate::protocol::companion::{ResumeFrom, ResumePoint};
use crate::store::adopted::{self, AdoptError, Adopted, WrittenCheckpoint, step_in_name};
use crate::store::checkpoint::state::TrainState;
use crate::store::checkpoint::{self, CheckpointFolder, Newest, STATE};
use crate::store::companion::KnownCompanion;
use crate::untrusted::file::{self, Limit};
use crate::untrusted::text;
use std::path::PathBuf;

/// The checkpoint of a start.
#[derive(Debug, Clone)]
pub(super) enum Chosen {
    /// A container that the companion wrote; the script itself starts as if from the beginning.
    Container {
        /// Where it is.
        point: ResumePoint,
        /// The state in it.
        state: Box<TrainState>,
    },
    /// A checkpoint that the script wrote: its arguments name it, or the companion passes it to the training.
    Script(Adopted),
}

impl Chosen {
    /// Returns the step.
    pub(super) fn step(&self) -> u64 {
        match self {
            Self::Container { point, .. } => point.step,
            Self::Script(adopted) => adopted.step,
        }
    }

    /// Returns the checkpoint for the script's own arguments.
    pub(super) fn script(&self) -> Option<&Adopted> {
        match self {
            Self::Script(adopted) => Some(adopted),
            Self::Container { .. } => None,
        }
    }

    /// Returns what the companion resumes from.
    pub(super) fn for_companion(&self) -> ResumeFrom {
        match self {
            Self::Container { point, .. } => ResumeFrom::Container(point.clone()),
            Self::Script(Adopted { path, step, samples, .. }) => {
                ResumeFrom::Script(ResumePoint { path: path.clone(), step: *step, samples: *samples })
            }
        }
    }

    /// Returns the run's clock there, as it was recorded.
    pub(super) fn samples(&self) -> u64 {
        match self {
            Self::Container { point, .. } => point.samples,
            Self::Script(adopted) => adopted.samples,
        }
    }
}

/// Finds the checkpoint to resume from.
///
/// # Errors
/// Returns an error when there are checkpoints but none is usable: a command that starts over would overwrite them.
pub(super) fn choose_checkpoint(args: &HarnessArgs, notes: &mut Vec<String>) -> Result<Option<Chosen>, HarnessError> {
    let container = newest_container(args, notes);
    let script = newest_of_script(args, notes);
    let may_start_over = args.spec.restart == RestartPolicy::FromStart;
    match (container, script) {
        (Ok(Some(container)), Ok(Some(script))) if script.step() > container.step() => Ok(Some(script)),
        (Ok(Some(chosen)), _) | (_, Ok(Some(chosen))) => Ok(Some(chosen)),
        (Err(error), _) | (_, Err(error)) if !may_start_over => Err(error),
        _ => match unmatched_output(args).filter(|_| !may_start_over) {
            Some(path) => Err(HarnessError::Unmatched { path }),
            None => Ok(None),
        },
    }
}

/// Returns the newest container whose every byte verifies.
fn newest_container(args: &HarnessArgs, notes: &mut Vec<String>) -> Result<Option<Chosen>, HarnessError> {
    if args.purpose == Purpose::Measurement {
        return Ok(None);
    }
    let Newest { verified, rejected } = checkpoint::newest_verified(args.run_dir.path());
    notes
        .extend(rejected.iter().map(|(entry, error)| format!("checkpoint {} is not used: {error}", count(entry.step))));
    match (verified, rejected.into_iter().next()) {
        (Some((CheckpointFolder { step, path }, manifest)), _) => {
            let state = file::read(&path.join(STATE), Limit::Record).ok();
            let state = state.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
            let point = ResumePoint { path, step, samples: manifest.samples };
            Ok(Some(Chosen::Container { point, state: Box::new(state) }))
        }
        (None, Some((CheckpointFolder { step, .. }, source))) => Err(HarnessError::NoContainer { step, source }),
        (None, None) => Ok(None),
    }
}

/// Returns the newest checkpoint of the script that is unchanged since it was adopted, if anything resumes from it.
fn newest_of_script(args: &HarnessArgs, notes: &mut Vec<String>) -> Result<Option<Chosen>, HarnessError> {
    let by_arguments = args.spec.resumes();
    let by_companion = KnownCompanion::of_run(&args.run_dir).is_some_and(|known| known.resumes_script());
    if !by_arguments && !by_companion {
        return Ok(None);
    }
    adopt_leftovers(args, notes);
    adopt_written(args, notes)?;
    let (newest, unusable) = adopted::newest_usable(args.run_dir.path());
    notes.extend(
        unusable.iter().map(|(adopted, error)| format!("checkpoint {} is not used: {error}", count(adopted.step))),
    );
    match (newest, unusable.into_iter().next()) {
        (Some(adopted), _) => Ok(Some(Chosen::Script(adopted))),
        (None, Some((adopted, source))) => Err(HarnessError::NoCheckpoint { step: adopted.step, source }),
        (None, None) => Ok(None),
    }
}

/// Returns an output of an earlier attempt that may be a checkpoint, and that no pattern matches yet.
fn unmatched_output(args: &HarnessArgs) -> Option<PathBuf> {
    let waiting = adopted::list_written(args.run_dir.path()).into_iter();
    waiting
        .filter(WrittenCheckpoint::is_unchanged)
        .find(|written| written.unmatched)
        .map(|written| written.original.path)
}

/// Adopts checkpoints that a companion reported as complete just before its harness died, and those that a corrected
/// pattern matches.
///
/// # Errors
/// Returns an error when one that a pattern matches now cannot be adopted: a start would overwrite it.
fn adopt_written(args: &HarnessArgs, notes: &mut Vec<String>) -> Result<(), HarnessError> {
    let run_dir = args.run_dir.path();
    let went_back = adopted::went_back(run_dir);
    let copies = args.spec.checkpoints.as_ref().is_some_and(|spec| spec.copy);
    let watch = watch_checkpoints(args, &context_of(args, None), notes).and_then(Result::ok);
    let place = |path: &PathBuf| path.canonicalize().ok();
    let matched = watch.map(|watch| watch.complete()).unwrap_or_default();
    let matched: Vec<PathBuf> = matched.iter().filter_map(place).collect();
    let (mut waiting, mut refused) = (Vec::new(), Ok(()));
    for written in adopted::list_written(run_dir) {
        if written.unmatched && !place(&written.original.path).is_some_and(|path| matched.contains(&path)) {
            waiting.push(written);
            continue;
        }
        let WrittenCheckpoint { step, samples, original, .. } = &written;
        let is_given_up = went_back.is_some_and(|back| back.gave_up(*step, original));
        if is_given_up || adopted::is_usable(run_dir, *step, &original.path) || !written.is_unchanged() {
            continue;
        }
        match adopted::adopt_found(run_dir, (*step, *samples), &original.path, copies) {
            Err(source) if written.unmatched => {
                refused = Err(HarnessError::NoCheckpoint { step: *step, source });
                waiting.push(written);
            }
            Err(error) => notes.push(format!("checkpoint {} is not adopted: {error}", count(*step))),
            Ok(_) => {}
        }
    }
    if let Err(error) = adopted::record_written(run_dir, &waiting) {
        notes.push(format!("the list of complete checkpoints cannot be changed: {error}"));
    }
    refused
}

/// Adopts checkpoints that the last attempt completed just before it ended.
fn adopt_leftovers(args: &HarnessArgs, notes: &mut Vec<String>) {
    let Some(spec) = &args.spec.checkpoints else { return };
    let run_dir = args.run_dir.path();
    let Some(Ok(mut watch)) = watch_checkpoints(args, &context_of(args, None), notes) else { return };
    let adopted = adopted::list(run_dir);
    let listed: Vec<&PathBuf> = adopted.iter().map(|adopted| &adopted.path).collect();
    // Once a name held another number than the step, it counts epochs.
    let counts_steps =
        adopted.iter().all(|it| step_in_name(&it.original().path).is_none_or(|number| number == it.step));
    let went_back = adopted::went_back(run_dir);
    let is_given_up = |found: &Candidate| {
        let written = look_at(&found.path);
        went_back.zip(found.step).zip(written).is_some_and(|((back, step), written)| back.gave_up(step, &written))
    };
    while let Some(found) = watch.look(Moment::BeforeStart).pop() {
        // A listed one changed while nothing watched it, so it may be damaged.
        if listed.contains(&&found.path) || is_given_up(&found) {
            if watch.ignore(&found.path).is_err() {
                break;
            }
            continue;
        }
        // Without a number in its name, the step of a checkpoint is unknown by now.
        let named = found.step.filter(|_| counts_steps && !args.spec.counts_anew());
        let Some(step) = noted_step(&found.path).or(named) else { break };
        let samples = step.saturating_mul(size_of(args).0);
        match adopted::adopt_found(run_dir, (step, samples), &found.path, spec.copy) {
            Ok(adopted) => drop(watch.record_adopted(&adopted)),
            Err(error) => {
                notes.push(format!("checkpoint {} is not adopted: {error}", count(step)));
                if !matches!(error, AdoptError::Foreign(_)) || watch.ignore(&found.path).is_err() {
                    break;
                }
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
        notes.push(format!("{path} differed from checkpoint {} and was replaced by its copy", count(step)));
    }
    Ok(())
}
