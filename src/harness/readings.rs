//! The harness's work on what the command reports: its output, and the readings in it and in its metric files.

use super::ending::Reason;
use super::run_loop::{Harness, Life};
use super::terminal::Chunk;
use crate::log_metrics::{Mark, Reading, Skip};
use crate::protocol::worker::{CommandNews, Event};
use std::time::{Duration, Instant};

impl Harness {
    /// Takes output of the command.
    pub(super) fn take_output(&mut self, Chunk { bytes, read }: &Chunk) {
        self.activity.printed();
        self.paused = false;
        let mut log = Vec::new();
        self.output_log.push(bytes, Instant::now(), &mut log);
        self.write_log(&log);
        let now = read.saturating_duration_since(self.began);
        let readings = self.reader.read(bytes, self.progress.is_told(), now);
        let before = std::mem::replace(&mut self.printed, now);
        // A bar is complete once the next one is drawn over it.
        let ends_earlier = matches!(bytes.first(), Some(b'\r' | b'\n'));
        self.follow_marks(if ends_earlier { before } else { now }, now);
        self.take_readings(&readings, now);
        self.note_unread_output();
        self.remember_counting();
        self.report_measured();
    }

    /// Remembers when which step and which evaluation was printed: `first` is the time of the first of them.
    fn follow_marks(&mut self, first: Duration, now: Duration) {
        let marks = self.reader.take_marks();
        let behind = self.resume_check.counts_behind();
        // The steps of a companion are another count.
        if self.progress.is_told() {
            return;
        }
        for (place, (mark, printed)) in marks.into_iter().enumerate() {
            let time = printed.unwrap_or(if place == 0 { first } else { now });
            match mark {
                Mark::Step(step) => self.progress.trail.record(step + behind, time),
                Mark::Epoch(epoch) => self.progress.report_epoch(epoch as f64),
                Mark::Evaluation { step, epoch, names_step } => {
                    self.progress.trail.record_evaluation(step + behind, epoch, names_step, time);
                }
            }
        }
    }

    /// Takes the output that was read already.
    pub(super) fn take_waiting_output(&mut self) {
        while let Some(chunk) = self.output.as_mut().and_then(|output| output.try_recv().ok()) {
            self.take_output(&chunk);
        }
    }

    /// Returns the length of worker.log with everything that the command has printed so far.
    pub(super) fn end_of_evidence(&mut self) -> Option<u64> {
        self.take_waiting_output();
        self.log.end()
    }

    /// Writes the lines that are not complete.
    pub(super) fn finish_log(&mut self) {
        let mut log = Vec::new();
        self.output_log.finish(&mut log);
        self.write_log(&log);
    }

    /// Writes to worker.log. On a full disk the command goes on without it.
    pub(super) fn write_log(&mut self, text: &[u8]) {
        self.log.write(text);
    }

    /// Takes readings of the output or of the metric files, which came at `now` unless they were held back.
    pub(super) fn take_readings(&mut self, readings: &[Reading], now: Duration) {
        for together in readings.chunk_by(|one, next| one.printed == next.printed) {
            self.take_simultaneous(together, together[0].printed.unwrap_or(now));
        }
    }

    fn take_simultaneous(&mut self, readings: &[Reading], now: Duration) {
        self.progress.time_steps(readings, self.resume_check.counts_behind(), now);
        for reading in readings {
            if reading.skip == Some(Skip::OutOfMemory) {
                self.warn("the script ran out of memory, and skipped a batch".to_owned());
            }
            let reading = &*self.check_resume(reading, now);
            let reading = &*self.notice_steps_in_output(reading);
            let total = self.progress.total;
            let events = self.progress.take(reading, now);
            self.progress.trail.record(self.progress.step, now);
            if self.progress.total != total {
                self.send_length();
                self.remember_length();
            }
            for event in events {
                self.send(&event);
            }
            if let Some(left) = reading.time_left.filter(|_| self.progress.total.is_none()) {
                let ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
                self.link.send_unkept(&Event::Command { news: CommandNews::TimeLeft { ms } });
            }
        }
    }

    /// Sends an event about the training, and ends a command whose loss stays NaN.
    pub(super) fn send(&mut self, event: &Event) {
        self.settle_before(event);
        self.record_for_container(event);
        self.link.send(event);
        // An evaluation that was printed is known already.
        if let Event::Eval(eval) = event {
            self.progress.trail.record_evaluation(eval.step, None, false, self.began.elapsed());
            self.report_measured();
        }
        if self.progress.nan_in_a_row >= self.args.skips_in_a_row && !matches!(self.life, Life::Ending { .. }) {
            self.end(Reason::Broken(self.broken_by_nan()));
        }
    }
}
