//! Checkpoints of a companion, one at a time and on another thread: staged ones are completed and published once every rank
//! has written its part, those that the script's framework wrote are adopted where they are.

use super::parts::{Added, Parts, Whole};
use crate::harness::Purpose;
use crate::harness::checkpoints::Candidate;
use crate::harness::companion_link::Member;
use crate::harness::run_loop::{Harness, Report};
use crate::protocol::companion::{CompanionOrder, ResumeFrom, ResumePoint, Staged};
use crate::protocol::worker::{Event, Saved};
use crate::store::adopted::{self, WrittenCheckpoint};
use crate::store::checkpoint::staged::{
    StagedContents, StagedError, discard_staged, discard_staged_by, publish_staged,
};
use crate::store::checkpoint::state::{Row, TrainState};
use crate::store::checkpoint::{CheckpointError, Written};
use crate::untrusted::text;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Most checkpoints that wait; a companion waits for the answer before it stages the next one.
const MOST: usize = 16;

/// The work on checkpoints that a companion reported.
#[derive(Debug, Default)]
pub struct Publishing {
    parts: Parts,
    waiting: VecDeque<Whole>,
    written: VecDeque<ResumePoint>,
    /// Those that are not adopted yet, as the next harness finds them if this one dies.
    recorded: Vec<WrittenCheckpoint>,
    /// The folders that are being published.
    current: Vec<String>,
}

impl Publishing {
    pub(super) fn is_busy(&self) -> bool {
        !self.current.is_empty() || !self.waiting.is_empty() || !self.written.is_empty()
    }
}

/// The outcome of a publication.
#[derive(Debug)]
pub struct Published {
    whole: Whole,
    rows: Vec<Row>,
    state: Box<TrainState>,
    result: Result<Written, StagedError>,
    took: Duration,
}

impl Harness {
    /// Takes a part of a checkpoint. Publishes it with the others once it is whole, or queues it behind the one being
    /// published.
    pub(super) fn publish_staged(&mut self, member: Member, staged: Staged) {
        if let Some(why) = self.refuse_checkpoint() {
            self.discard_staged(&staged);
            return self.give_up_parts(staged.step, why);
        }
        match self.companion.publishing.parts.add(member, staged) {
            Added::Whole(whole) => {
                self.companion.publishing.waiting.push_back(whole);
                self.publish_next();
            }
            Added::Waiting => {}
            Added::Failed(staged) => {
                self.discard_staged(&staged);
                self.give_up_parts(staged.step, "another rank could not write its part".to_owned());
            }
        }
    }

    /// Gives up a checkpoint of which a part will never come, and tells every rank.
    pub(in crate::harness) fn give_up_parts(&mut self, step: u64, message: String) {
        for staged in self.companion.publishing.parts.fail(step) {
            self.discard_staged(&staged);
        }
        self.companion.order(&CompanionOrder::PublishFailed { step, message });
    }

    /// Removes the parts that wait for a rank that is gone.
    pub(super) fn discard_parts(&mut self) {
        for staged in self.companion.publishing.parts.clear() {
            self.discard_staged(&staged);
        }
    }

    /// Removes a staged folder that will not be published.
    pub(super) fn discard_staged(&self, staged: &Staged) {
        discard_staged(self.args.run_dir.path(), staged.step, &staged.folder);
    }

    /// Removes the folders that a process left behind, except those that it reported as complete.
    pub(super) fn discard_staged_by(&self, pid: u32) {
        let Publishing { waiting, current, .. } = &self.companion.publishing;
        let complete: Vec<&str> =
            waiting.iter().flat_map(Whole::folders).chain(current.iter().map(String::as_str)).collect();
        discard_staged_by(self.args.run_dir.path(), pid, &complete);
    }

    fn publish_next(&mut self) {
        if !self.companion.publishing.current.is_empty() {
            return;
        }
        let Some(whole) = self.companion.publishing.waiting.pop_front() else { return };
        self.companion.publishing.current = whole.folders().map(str::to_owned).collect();
        let clock = (whole.first.step, whole.first.samples);
        let (state, rows) = self.companion.state.take_until(clock, self.progress.epoch(), self.began.elapsed());
        let (run_dir, reports) = (self.args.run_dir.path().to_owned(), self.reports.clone());
        let state = Box::new(state);
        std::thread::spawn(move || {
            let began = Instant::now();
            let result = serde_json::to_vec_pretty(&state)
                .map_err(|error| CheckpointError::damaged(&whole.first.folder, error.to_string()).into())
                .and_then(|text| {
                    let steps = Row::write_all(&rows);
                    let folders: Vec<&str> = whole.folders().collect();
                    let contents = StagedContents {
                        step: whole.first.step,
                        samples: whole.first.samples,
                        build: env!("CARGO_PKG_VERSION"),
                        folder: folders[0],
                        parts: &folders[1..],
                        state: &text,
                        steps: steps.as_bytes(),
                    };
                    publish_staged(&run_dir, &contents)
                });
            let published = Published { whole, rows, state, result, took: began.elapsed() };
            let _ = reports.send(Report::Published(Box::new(published)));
        });
    }

    /// Reports a publication to the keeper and to the companion.
    pub(in crate::harness) fn record_publication(&mut self, published: Published) {
        let Published { whole, rows, state, result, took } = published;
        let (Staged { step, samples, .. }, pause_ms) = (&whole.first, whole.pause_ms());
        let (step, samples) = (*step, *samples);
        self.companion.publishing.current.clear();
        match result {
            Ok(written) => {
                self.companion.timer.record_save(pause_ms);
                let path = self.args.run_dir.path().join(&written.path);
                self.resume_later_from(ResumeFrom::Container(ResumePoint { path, step, samples }));
                self.link.send(&Event::Saved(Saved {
                    path: written.path,
                    step,
                    samples,
                    bytes: written.bytes,
                    pause_ms,
                    total_ms: pause_ms + took.as_secs_f64() * 1000.0,
                    eval_loss: state.own_eval_loss(),
                    metrics: state.own_eval().map(|eval| eval.metrics.clone()).unwrap_or_default(),
                }));
                self.companion.order(&CompanionOrder::Published { step });
            }
            Err(error) => {
                self.companion.state.give_back(rows);
                let (message, of_disk) = (error.to_string(), error.is_disk_failure());
                self.link.send(&Event::SaveFailed { step, message: message.clone(), of_disk });
                self.companion.order(&CompanionOrder::PublishFailed { step, message });
            }
        }
        self.publish_next();
    }

    /// Adopts a checkpoint that the framework has written, or queues it behind the one being read.
    pub(super) fn adopt_written(&mut self, written: ResumePoint) {
        let step = written.step;
        if let Some(message) = self.refuse_checkpoint() {
            return self.companion.order(&CompanionOrder::PublishFailed { step, message });
        }
        if !written.path.is_absolute() || !written.path.exists() {
            let message = format!("{} does not exist", text::path(&written.path));
            self.link.send(&Event::SaveFailed { step, message: message.clone(), of_disk: false });
            return self.companion.order(&CompanionOrder::PublishFailed { step, message });
        }
        let complete = WrittenCheckpoint::now(step, written.samples, &written.path);
        self.companion.publishing.recorded.extend(complete);
        self.record_written();
        self.companion.publishing.written.push_back(written);
        self.adopt_next_written();
    }

    /// Adopts the next checkpoint that the framework has written.
    pub(in crate::harness) fn adopt_next_written(&mut self) {
        if self.adopting {
            return;
        }
        let Some(ResumePoint { path, step, samples }) = self.companion.publishing.written.pop_front() else { return };
        // The watch for `checkpoints.match` may have been faster.
        if adopted::is_usable(self.args.run_dir.path(), step, &path) {
            self.answer_adoption(step, None);
            return self.adopt_next_written();
        }
        self.adopt(Candidate { path, step: Some(step) }, samples);
    }

    fn record_written(&mut self) {
        if let Err(error) = adopted::record_written(self.args.run_dir.path(), &self.companion.publishing.recorded) {
            self.warn(format!("a complete checkpoint cannot be recorded before it is adopted: {error}"));
        }
    }

    /// Tells the companion what became of a checkpoint that the framework has written.
    pub(in crate::harness) fn answer_adoption(&mut self, step: u64, error: Option<String>) {
        let before = self.companion.publishing.recorded.len();
        self.companion.publishing.recorded.retain(|written| written.step != step);
        if self.companion.publishing.recorded.len() < before {
            self.record_written();
        }
        self.companion.order(&match error {
            None => CompanionOrder::Published { step },
            Some(message) => CompanionOrder::PublishFailed { step, message },
        });
    }

    /// Returns why no checkpoint is kept now.
    fn refuse_checkpoint(&self) -> Option<String> {
        let guards = self.companion.news.as_ref().is_some_and(|news| news.guards);
        if self.args.purpose == Purpose::Measurement {
            return Some("a measured command keeps no checkpoint".to_owned());
        }
        if self.companion.first_has_ended {
            return Some("only the first training of a command is kept".to_owned());
        }
        if self.companion.publishing.waiting.len() + self.companion.publishing.written.len() >= MOST {
            return Some("too many checkpoints are waiting".to_owned());
        }
        (self.progress.nan_in_a_row > 0 && !guards).then(|| "the loss is NaN".to_owned())
    }
}
