//! Measures the quality of checkpoints beside the training: one at a time, in a process that the keeper starts and
//! ends. Training neither waits for it nor learns of it.
//!
//! ```text
//! newest checkpoint ─ Schedule ─▶ due? ─▶ measure-quality ─▶ report ─▶ metrics of an evaluation, a journal line
//! ```
//! A run that has finished stays until its last checkpoint is measured; any other end ends the measurement.

mod process;
mod schedule;

pub use process::Ended;
use process::Measurement;
pub use schedule::Mark;
use schedule::Schedule;

use super::keeper_state::Keeper;
use super::recorder::now_ms;
use super::sentences::{self, grouped};
use super::worker_process::end_left_behind;
use crate::config::run::Run;
use crate::policy::lifecycle::{Lifecycle, Outcome, Then};
use crate::process_tree::new_token;
use crate::protocol::control::{CheckpointRow, JournalKind};
use crate::protocol::metrics::QUALITY;
use crate::protocol::quality::QualityReport;
use crate::protocol::worker::Level;
use std::collections::BTreeSet;
use tokio::time::Instant;

/// Name of the fact that holds the last measurement.
pub const MARK: &str = "quality_mark";
/// Name of the fact that holds the token of a measurement under way.
pub const TOKEN: &str = "quality_token";
/// Name of the fact that a finished run stays for its last measurement.
pub const CLOSING: &str = "quality_closing";

/// The measurements of an earlier keeper, as it stored them.
#[derive(Debug, Default)]
pub struct LastMeasurement {
    /// The last that ended.
    pub mark: Option<Mark>,
    /// The token of one that was under way.
    pub token: Option<String>,
    /// The run had finished, except for its last one.
    pub is_closing: bool,
}

/// The measurements of a run.
#[derive(Debug)]
pub(super) struct QualityWatch {
    /// None if the run measures nothing.
    schedule: Option<Schedule>,
    current: Option<Current>,
    /// Checkpoints that are damaged: another one is measured in their place.
    unusable: BTreeSet<u64>,
    /// The outcome of a run that is over, except for its last measurement.
    closing: Option<Outcome>,
    started: u64,
    /// The token of a measurement that an earlier keeper left behind.
    left: Option<String>,
    /// An earlier keeper had finished the run, except for its last measurement.
    was_closing: bool,
}

/// The measurement under way.
#[derive(Debug)]
struct Current {
    id: u64,
    measurement: Measurement,
    checkpoint: CheckpointRow,
    attempt: u64,
    mark: Mark,
    began: Instant,
    /// The run went back to before its checkpoint.
    is_abandoned: bool,
}

impl QualityWatch {
    /// Continues from the last measurement.
    pub(super) fn new(run: &Run, last: LastMeasurement) -> Self {
        let begin = Mark { time_ms: now_ms(), ..Mark::default() };
        let schedule = run.quality.as_ref().map(|quality| Schedule::new(quality.every, last.mark.unwrap_or(begin)));
        let (left, was_closing) = (last.token, last.is_closing);
        Self { schedule, current: None, unusable: BTreeSet::new(), closing: None, started: 0, left, was_closing }
    }

    /// Returns the step of the checkpoint that is measured for the end of a finished run.
    pub(super) fn closing_step(&self) -> Option<u64> {
        self.closing.as_ref().and(self.current.as_ref()).map(|current| current.checkpoint.step)
    }

    /// Returns the outcome of a run that an earlier keeper had finished, except for its last measurement.
    pub(super) fn left_outcome(&mut self) -> Option<Outcome> {
        std::mem::take(&mut self.was_closing).then_some(Outcome::Finished)
    }

    /// Reports whether the run is over, except for its last measurement.
    pub(super) fn is_closing(&self) -> bool {
        self.closing.is_some()
    }
}

impl Keeper {
    /// Ends what a measurement of an earlier keeper left behind: its own process ends with its keeper, unless both were
    /// killed at once.
    pub(super) async fn end_left_measurement(&mut self) {
        if let Some(token) = self.quality.left.take() {
            end_left_behind(token).await;
            self.recorder.put_fact(TOKEN, &None::<String>);
        }
    }

    /// Starts a measurement that is due, and ends one that a pause or an end does not wait for.
    pub(super) fn follow_quality(&mut self) {
        if self.quality.is_closing() {
            return self.close_if_measured();
        }
        if self.quality.schedule.is_none() {
            return;
        }
        match self.policy.life() {
            Lifecycle::Running(_) => self.measure_if_due(false),
            Lifecycle::Paused
            | Lifecycle::Over(_)
            | Lifecycle::Stopping { then: Then::Pause | Then::End | Then::Conclude(_), .. } => {
                self.quality.current.iter_mut().for_each(|current| current.measurement.cancel());
            }
            _ => {}
        }
    }

    /// Keeps a finished run until its last checkpoint is measured. Returns false if nothing is left to measure.
    pub(super) fn stays_to_measure(&mut self, outcome: &Outcome) -> bool {
        if *outcome != Outcome::Finished || self.quality.is_closing() || self.quality.schedule.is_none() {
            return false;
        }
        if self.quality.current.is_none() {
            self.measure_if_due(true);
        }
        if self.quality.current.is_none() {
            return false;
        }
        self.quality.closing = Some(outcome.clone());
        self.recorder.put_fact(CLOSING, &true);
        self.recorder.persist();
        // The run needs its devices no longer.
        self.leave_registry();
        true
    }

    /// Ends a finished run without its last measurement.
    pub(super) fn skip_last_measurement(&mut self) {
        self.quality.schedule = None;
        if let Some(outcome) = self.quality.closing.clone() {
            let text = "ended without the last measurement of quality".to_owned();
            self.recorder.note(Level::Info, JournalKind::Note, text);
            self.finish_run(outcome);
        }
    }

    fn close_if_measured(&mut self) {
        if self.quality.current.is_none() {
            // It may have been that of an older checkpoint.
            self.measure_if_due(true);
        }
        if let (None, Some(outcome)) = (&self.quality.current, self.quality.closing.clone()) {
            self.finish_run(outcome);
        }
    }

    /// Measures the newest checkpoint if its turn has come, or at the end of the run whenever it is new.
    fn measure_if_due(&mut self, at_end: bool) {
        let Some(schedule) = self.quality.schedule.filter(|_| self.quality.current.is_none()) else { return };
        let Some(newest) = self.recorder.newest_checkpoint(&self.quality.unusable).cloned() else { return };
        let mark = Mark { step: newest.step, samples: newest.samples, time_ms: now_ms() };
        let due =
            if at_end { schedule.is_new(mark) } else { schedule.is_due(mark, self.recorder.status.epoch_samples) };
        if due {
            self.start_measurement(newest, mark);
        }
    }

    fn start_measurement(&mut self, checkpoint: CheckpointRow, mark: Mark) {
        let Some(limit) = self.run.quality.as_ref().map(crate::config::quality::Quality::limit) else { return };
        if !self.run_dir.run().is_ok_and(|run| self.is_approved(&run)) {
            self.note_unmeasured(checkpoint.step, "run.yaml is not the one that was approved");
            return self.record_mark(mark);
        }
        self.quality.started += 1;
        let (id, token) = (self.quality.started, new_token());
        let attempt = self.recorder.attempt_of(&checkpoint);
        // On disk before anything has the token, for a keeper that follows if both are killed.
        self.recorder.put_fact(TOKEN, &Some(&token));
        self.recorder.persist();
        let arguments: Vec<String> = [
            ("--run-dir", self.run_dir.path().display().to_string()),
            ("--step", checkpoint.step.to_string()),
            ("--rung", self.recorder.attempt.rung.to_string()),
            ("--attempt", attempt.to_string()),
            ("--device", self.stored.launch.device.clone()),
        ]
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect();
        match Measurement::start(id, &arguments, token, limit, self.inputs.clone()) {
            Ok(measurement) => {
                self.recorder.status.pid_quality = Some(measurement.pid);
                self.recorder.hold(Some(checkpoint.step));
                let began = Instant::now();
                let is_abandoned = false;
                self.quality.current =
                    Some(Current { id, measurement, checkpoint, attempt, mark, began, is_abandoned });
            }
            Err(error) => {
                self.note_unmeasured(checkpoint.step, &format!("no process can be started: {error}"));
                self.record_mark(mark);
            }
        }
    }

    /// Handles the end of a measurement.
    pub(super) fn handle_measured(&mut self, id: u64, ended: Ended) {
        let Some(current) = self.quality.current.take_if(|current| current.id == id) else { return };
        self.recorder.status.pid_quality = None;
        self.recorder.put_fact(TOKEN, &None::<String>);
        self.recorder.hold(None);
        let step = current.checkpoint.step;
        match ended {
            // It is due again, if the run wants it.
            Ended::Cancelled => {}
            _ if current.is_abandoned => {}
            Ended::TimedOut => {
                let limit = self.run.quality.as_ref().map_or_else(String::new, |quality| quality.timeout.to_string());
                self.note_unmeasured(step, &format!("it took longer than {limit} (`quality.timeout`)"));
                self.record_mark(current.mark);
            }
            Ended::Reported(report) if report.unusable => {
                self.note_unmeasured(step, &report.failures.join("; "));
                self.quality.unusable.insert(step);
            }
            Ended::Reported(report) => {
                self.record_quality(&current, report);
                self.record_mark(current.mark);
            }
        }
        // It may have outlived its time while it was measured.
        self.retire_checkpoints();
        self.recorder.mark_changed();
    }

    fn record_quality(&mut self, current: &Current, report: QualityReport) {
        let step = current.checkpoint.step;
        if !report.failures.is_empty() {
            self.note_unmeasured(step, &report.failures.join("; "));
        }
        if report.metrics.is_empty() {
            return;
        }
        let took = sentences::seconds(current.began.elapsed().as_secs_f64() * 1000.0);
        let text = format!("quality of checkpoint {}: {} ({took})", grouped(step), sentences::quality(&report.metrics));
        self.recorder.note(Level::Info, JournalKind::Note, text);
        let metrics = report.metrics.into_iter().map(|(name, value)| (format!("{QUALITY}{name}"), value)).collect();
        self.recorder.record_quality(&current.checkpoint, current.attempt, metrics);
        self.follow_learning(true, self.now());
    }

    fn note_unmeasured(&mut self, step: u64, why: &str) {
        let text = format!("quality of checkpoint {} not measured: {why}", grouped(step));
        self.recorder.note(Level::Warn, JournalKind::Note, text);
    }

    fn record_mark(&mut self, mark: Mark) {
        if let Some(schedule) = &mut self.quality.schedule {
            let mark = schedule.record(mark);
            self.recorder.put_fact(MARK, &mark);
        }
    }

    /// Forgets measurements of checkpoints beyond a step that the run goes back to, and ends the one under way.
    pub(super) fn forget_quality_above(&mut self, step: u64, samples: u64) {
        if let Some(mark) = self.quality.schedule.as_mut().and_then(|schedule| schedule.go_back(step, samples)) {
            self.recorder.put_fact(MARK, &mark);
        }
        if let Some(current) = self.quality.current.as_mut().filter(|current| current.checkpoint.step > step) {
            current.is_abandoned = true;
            current.measurement.cancel();
        }
    }

    /// Ends the measurement under way, and waits for its end.
    pub(super) async fn end_measurement(&mut self) {
        if let Some(current) = self.quality.current.take() {
            current.measurement.end().await;
            self.recorder.status.pid_quality = None;
            self.recorder.put_fact(TOKEN, &None::<String>);
        }
    }
}
