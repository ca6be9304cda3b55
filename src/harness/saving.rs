//! The harness's work on checkpoints: it asks the command to save, and adopts what is complete.

use super::checkpoints::{Candidate, CheckpointWatch, Moment};
use super::ending::Reason;
use super::own_count::place_number;
use super::prepare::context_of;
use super::progress::trail::Named;
use super::resume_point::Chosen;
use super::run_loop::{Harness, Life, Report};
use super::save_file;
use super::save_signal::ask_to_save;
use crate::config::command::signal::SignalName;
use crate::config::command::{SaveRequest, resolve_pattern};
use crate::process_tree::scan;
use crate::protocol::worker::{CommandNews, Event, Level, Saved};
use crate::store::adopted::{self, AdoptError, Adopted};
use crate::untrusted::file::{self, Limit};
use crate::untrusted::text;
use crate::untrusted::thread::run_beside;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The file of a companion beside the files of a framework's checkpoint.
const NOTES: &str = "downshift.json";
/// Largest checkpoint hashed when a run ends, in bytes; a larger one is adopted at the next start.
const HASHED_AT_END: u64 = 2 << 30;

/// Reason why a command cannot be asked to save.
#[derive(Debug, thiserror::Error)]
pub enum CannotSave {
    /// The run file names no way.
    #[error("the run file does not say how the command is asked to save (`save:`)")]
    NoWay,
    /// The script is still starting, or never handles the signal.
    #[error("no process of the command handles {0} yet")]
    NoHandler(SignalName),
    /// The script has not created it yet, or writes elsewhere.
    #[error(
        "save.touch: no folder matches {0}; the script creates it when it starts to train, or the pattern is wrong"
    )]
    NoFolder(String),
    /// The file that asks for a save.
    #[error("save.touch: {}: {source}", text::path(.path))]
    NotWritten {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl Harness {
    /// Asks the command to save.
    ///
    /// # Errors
    /// Returns why it cannot be asked.
    pub(super) fn ask_to_save(&mut self) -> Result<(), CannotSave> {
        if self.companion_saves() {
            self.order_save();
            return Ok(());
        }
        match &self.args.spec.save {
            Some(SaveRequest { signal: Some(signal), .. }) => self.signal_to_save(*signal),
            Some(SaveRequest { touch: Some(file), .. }) => {
                let pattern = resolve_pattern(file, &self.args.preset, &context_of(&self.args, None));
                let touched = save_file::touch(&pattern, &self.args.spec.directory)?;
                self.touched = touched.or(self.touched.take());
                Ok(())
            }
            _ => Err(CannotSave::NoWay),
        }
    }

    fn signal_to_save(&self, signal: SignalName) -> Result<(), CannotSave> {
        self.nodes.ask_to_save(signal.signal().as_raw());
        let all = scan();
        match ask_to_save(&self.family.among(&all), signal.signal()) {
            0 => Err(CannotSave::NoHandler(signal)),
            _ => Ok(()),
        }
    }

    /// Gives up a stop that took too long. The command trains on.
    pub(super) fn give_up_stop(&mut self) {
        // Its work is saved, but something in it does not end.
        if self.companion.is_stopping() {
            return self.end(Reason::Asked);
        }
        if matches!(self.life, Life::Saving { since_ns: None, .. }) {
            self.withdraw_stop();
        }
        self.life = Life::Running;
        let message = "the command was asked to save, but wrote no complete checkpoint in time".to_owned();
        self.link.send(&Event::StopRefused { step: self.progress.step, message });
    }

    /// Looks for the last checkpoint, once no process on any node can still write to it.
    pub(super) fn look_once_over(&mut self) {
        if self.has_no_process() {
            self.look_for_checkpoint(Moment::JustEnded);
        }
    }

    /// Looks for new checkpoints, and adopts them on another thread. A fast script writes several between two scans.
    pub(super) fn look_for_checkpoint(&mut self, moment: Moment) {
        let Some(watch) = self.checkpoints.as_mut() else { return };
        let found = watch.look(moment);
        self.waiting.retain(|known| found.iter().any(|found| is_same(found, known)));
        for candidate in found {
            if !self.waiting.iter().any(|known| is_same(known, &candidate)) {
                let step = self.step_held(&candidate);
                self.waiting.push(Candidate { step: Some(step), ..candidate });
            }
        }
        self.adopt_next_found(moment);
    }

    /// Adopts the newest of the checkpoints that were found.
    fn adopt_next_found(&mut self, moment: Moment) {
        let size =
            |path: &Path| adopted::survey(path).map_or(0, |files| files.iter().map(|(_, stamp)| stamp.bytes).sum());
        let is_small = |found: &Candidate| moment != Moment::JustEnded || size(&found.path) <= HASHED_AT_END;
        let may_adopt = |found: &&Candidate| is_small(found) && CheckpointWatch::is_unchanged(found);
        let Some(watch) = self.checkpoints.as_mut().filter(|_| !self.adopting) else { return };
        // Where no step is known, each replaces the one before, and the newest must be the last.
        let order = |found: &&Candidate| if found.step == Some(0) { -found.modified_ns } else { found.modified_ns };
        let Some(candidate) = self.waiting.iter().filter(may_adopt).max_by_key(order).cloned() else { return };
        if self.progress.nan_in_a_row > 0 {
            let text = format!("checkpoint {} is not adopted: the loss is NaN", text::path(&candidate.path));
            let _ = watch.ignore(&candidate.path);
            self.waiting.retain(|known| !is_same(known, &candidate));
            return self.link.send(&Event::Note { level: Level::Warn, text });
        }
        let samples = self.progress.samples(candidate.step.unwrap_or(self.progress.step));
        self.adopt(candidate, samples);
    }

    /// Returns the step of a checkpoint, by the number in its name or the time at which it was written. A count that is not
    /// certain contradicts no name.
    pub(super) fn step_held(&mut self, found: &Candidate) -> u64 {
        if let Some(step) = noted_step(&found.path) {
            return step;
        }
        let (is_uncertain, written) = (self.companion.count_is_uncertain(), self.since_begin(found.modified_ns));
        let (trail, behind) = (&mut self.progress.trail, self.resume_check.counts_behind());
        let Some(written) = written else { return found.step.unwrap_or(self.progress.step) };
        let number =
            found.step.map(|number| if behind == 0 { number } else { place_number(number, behind, trail, written) });
        let named = match (number, found.epoch) {
            (Some(number), epoch) if !is_uncertain && trail.is_beyond(number, written) => {
                Named::Epoch(epoch.unwrap_or(number))
            }
            (Some(number), _) => Named::Step(number),
            (None, Some(epoch)) => Named::Epoch(epoch),
            (None, None) => Named::Nothing,
        };
        trail.add_checkpoint(named, written).unwrap_or(self.progress.step)
    }

    /// Reports which checkpoints the newest evaluations measured: the script saves, and then evaluates.
    pub(super) fn report_measured(&mut self) {
        for (checkpoint, evaluation) in self.progress.trail.match_checkpoints() {
            self.report_evaluation(checkpoint, evaluation);
        }
    }

    /// Reports that the evaluation at a step measured the weights of a checkpoint, unless their steps say so.
    fn report_evaluation(&mut self, checkpoint: u64, evaluation: u64) {
        if checkpoint != evaluation {
            let news = CommandNews::Measured { checkpoint, evaluation };
            self.link.send(&Event::Command { news });
        }
    }

    /// Returns the time from the begin of this harness to a time of a file; none if that is earlier.
    fn since_begin(&self, file_ns: i64) -> Option<Duration> {
        let now_ns = jiff::Timestamp::now().as_nanosecond() as i64;
        let age = Duration::from_nanos(u64::try_from(now_ns.saturating_sub(file_ns)).unwrap_or(0));
        self.began.elapsed().checked_sub(age)
    }

    /// Adopts a checkpoint on another thread.
    pub(super) fn adopt(&mut self, candidate: Candidate, samples: u64) {
        self.adopting = true;
        let step = candidate.step.unwrap_or(self.progress.step);
        let run_dir = self.args.run_dir.path().to_owned();
        let replaces = self.resume_check.count.restarts();
        let copy = replaces || self.args.spec.checkpoints.as_ref().is_some_and(|spec| spec.copy);
        let reports = self.reports.clone();
        run_beside("adoption", move || {
            let began = Instant::now();
            let result = adopted::adopt_found(&run_dir, (step, samples), &candidate.path, copy);
            let _ = reports.send(Report::Adopted(candidate, result, began.elapsed()));
        });
    }

    pub(super) fn record_adoption(
        &mut self,
        candidate: &Candidate,
        result: Result<Adopted, AdoptError>,
        took: Duration,
    ) {
        self.adopting = false;
        self.waiting.retain(|known| !is_same(known, candidate));
        match result {
            Ok(adopted) => {
                let is_newest = self.checkpoints.as_mut().is_none_or(|watch| watch.record_adopted(&adopted));
                self.link.send(&Event::Saved(Saved {
                    path: adopted::relative_path(adopted.step),
                    step: adopted.step,
                    samples: adopted.samples,
                    bytes: adopted.bytes(),
                    pause_ms: 0.0,
                    total_ms: took.as_secs_f64() * 1000.0,
                    ..Saved::default()
                }));
                if let Some(evaluation) = self.progress.trail.adopt_checkpoint(adopted.step) {
                    self.report_evaluation(adopted.step, evaluation);
                }
                if is_newest {
                    self.resume_later_from(Chosen::Script(adopted.clone()).for_companion());
                }
                self.answer_adoption(adopted.step, None);
                match self.life {
                    Life::Saving { since_ns: Some(since_ns), .. } if adopted.original().modified_ns() >= since_ns => {
                        self.end(Reason::Asked);
                    }
                    _ => self.look_once_over(),
                }
            }
            Err(error) => {
                let step = candidate.step.unwrap_or(self.progress.step);
                self.answer_adoption(step, Some(error.to_string()));
                // It changed while it was read: the next scan finds it again.
                if matches!(error, AdoptError::Changing(_)) {
                    return self.adopt_next_written();
                }
                if let (AdoptError::Foreign(_), Some(watch)) = (&error, &mut self.checkpoints) {
                    // If that cannot be written, the next harness says so again.
                    let _ = watch.ignore(&candidate.path);
                }
                let message = format!("the command's checkpoint was not adopted: {error}");
                self.link.send(&Event::SaveFailed { step, message, of_disk: false });
            }
        }
        self.adopt_next_written();
        if matches!(self.life, Life::Running) {
            self.adopt_next_found(Moment::Alive);
        }
    }
}

/// Returns the step that a companion has written beside the files of a framework's checkpoint.
pub(super) fn noted_step(checkpoint: &Path) -> Option<u64> {
    let notes = file::read(&checkpoint.join(NOTES), Limit::Record).ok()?;
    serde_json::from_slice::<serde_json::Value>(&notes).ok()?.get("step")?.as_u64()
}

/// Reports whether two are the same version of one checkpoint.
fn is_same(one: &Candidate, other: &Candidate) -> bool {
    (&one.path, one.modified_ns) == (&other.path, other.modified_ns)
}
