//! The harness's work on checkpoints: it asks the command to save, and adopts what is complete.

use super::checkpoints::{Candidate, Moment};
use super::ending::Reason;
use super::resume_point::Chosen;
use super::run_loop::{Harness, Life, Report};
use super::save_signal::ask_to_save;
use crate::config::command::signal::SignalName;
use crate::process_tree::scan;
use crate::protocol::worker::{Event, Level, Saved};
use crate::store::adopted::{self, AdoptError, Adopted};
use crate::untrusted::text;
use std::time::{Duration, Instant};

/// Largest checkpoint hashed when a run ends, in bytes; a larger one is adopted at the next start.
const HASHED_AT_END: u64 = 2 << 30;

/// A file's timestamp may lag behind the clock by this much: one timer interrupt.
pub(super) const FILE_CLOCK: Duration = Duration::from_millis(10);

/// Reason why a command cannot be asked to save.
#[derive(Debug, Clone, Copy, thiserror::Error)]
pub enum CannotSave {
    /// The run file names no signal.
    #[error("the run file names no signal on which the command saves")]
    NoSignal,
    /// The script is still starting, or never handles the signal.
    #[error("no process of the command handles {0} yet")]
    NoHandler(SignalName),
}

impl Harness {
    /// Asks the command to save.
    ///
    /// # Errors
    /// Returns why it cannot be asked.
    pub(super) fn ask_to_save(&self) -> Result<(), CannotSave> {
        if self.companion_saves() {
            self.order_save();
            return Ok(());
        }
        let Some(save) = &self.args.spec.save else { return Err(CannotSave::NoSignal) };
        self.nodes.ask_to_save(save.signal.signal().as_raw());
        let all = scan();
        match ask_to_save(&self.family.among(&all), save.signal.signal()) {
            0 => Err(CannotSave::NoHandler(save.signal)),
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

    /// Looks for a new checkpoint, and adopts it on another thread.
    pub(super) fn look_for_checkpoint(&mut self, moment: Moment) {
        let Some(watch) = self.checkpoints.as_mut().filter(|_| !self.adopting) else { return };
        let Some(candidate) = watch.look(moment) else { return };
        let size = |path| adopted::survey(path).map_or(0, |files| files.iter().map(|(_, stamp)| stamp.bytes).sum());
        if moment == Moment::JustEnded && size(&candidate.path) > HASHED_AT_END {
            return;
        }
        if self.progress.nan_in_a_row > 0 {
            let text = format!("checkpoint {} is not adopted: the loss is NaN", text::path(&candidate.path));
            let _ = watch.ignore(&candidate.path);
            return self.link.send(&Event::Note { level: Level::Warn, text });
        }
        let step = self.step_held(candidate.step, candidate.modified_ns);
        let samples = self.progress.samples(step);
        self.adopt(Candidate { step: Some(step), ..candidate }, samples);
    }

    /// Returns the step of a checkpoint with this number in its name, written at this time, in Unix nanoseconds. A count that
    /// is not certain contradicts no name.
    pub(super) fn step_held(&self, named: Option<u64>, written_ns: i64) -> u64 {
        let (written, trail) = (self.since_begin(written_ns), &self.progress.trail);
        let counts_epochs = |number: u64| written.is_some_and(|written| trail.is_beyond(number, written));
        let number = named.filter(|number| self.companion.count_is_uncertain() || !counts_epochs(*number));
        number.or_else(|| trail.find_step(written?)).unwrap_or(self.progress.step)
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
        let copy = self.args.spec.checkpoints.as_ref().is_some_and(|spec| spec.copy);
        let reports = self.reports.clone();
        std::thread::spawn(move || {
            let began = Instant::now();
            let adopt = if copy { adopted::adopt_copy } else { adopted::adopt };
            let result = adopt(&run_dir, step, samples, &candidate.path);
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
        match result {
            Ok(adopted) => {
                if let Some(watch) = &mut self.checkpoints {
                    watch.record_adopted(&adopted);
                }
                self.link.send(&Event::Saved(Saved {
                    path: adopted::relative_path(adopted.step),
                    step: adopted.step,
                    samples: adopted.samples,
                    bytes: adopted.bytes(),
                    pause_ms: 0.0,
                    total_ms: took.as_secs_f64() * 1000.0,
                    ..Saved::default()
                }));
                self.resume_later_from(Chosen::Script(adopted.clone()).for_companion());
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
                let message = format!("the command's checkpoint was not adopted: {error}");
                self.link.send(&Event::SaveFailed { step, message, of_disk: false });
            }
        }
        self.adopt_next_written();
    }
}
