//! Checkpoints of a companion, one at a time and on another thread: staged ones are completed and published once every rank
//! has written its part, those that the script's framework wrote are adopted where they are.

use super::parts::{Absence, NotWritten, Outcome, Parts, Whole};
use crate::harness::Purpose;
use crate::harness::checkpoints::Candidate;
use crate::harness::companion_link::Member;
use crate::harness::node_pid::NodePid;
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
use crate::untrusted::thread::run_beside;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Most checkpoints that wait; a companion waits for the answer before it stages the next one.
const MOST: usize = 16;

/// The work on checkpoints that a companion reported.
#[derive(Debug, Default)]
pub struct Publishing {
    pub(super) parts: Parts,
    waiting: VecDeque<Whole>,
    written: VecDeque<ResumePoint>,
    /// Those that are not adopted yet, as the next harness finds them if this one dies.
    recorded: Vec<WrittenCheckpoint>,
    /// The one that is being published.
    current: Option<Whole>,
}

impl Publishing {
    pub(super) fn is_busy(&self) -> bool {
        self.current.is_some() || !self.waiting.is_empty() || !self.written.is_empty()
    }

    /// Returns the whole checkpoints that are not published yet.
    fn complete(&self) -> impl Iterator<Item = &Whole> {
        self.current.iter().chain(&self.waiting)
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
    /// Takes the answer of a rank to a save: its part, or why there is none.
    pub(in crate::harness) fn take_part(&mut self, member: Member, step: u64, answer: Result<Staged, NotWritten>) {
        let outcomes = self.companion.publishing.parts.answer(member, step, answer);
        self.conclude_saves(outcomes);
    }

    /// Expects no more parts of a rank.
    pub(super) fn excuse_rank(&mut self, member: Member, absence: Absence) {
        let outcomes = self.companion.publishing.parts.leave(member, absence);
        self.conclude_saves(outcomes);
    }

    /// Answers the ranks that wait for a checkpoint in vain: the stop that it belongs to took too long.
    pub(in crate::harness) fn give_up_saves(&mut self) {
        let outcomes = self.companion.publishing.parts.give_up();
        self.conclude_saves(outcomes);
        for Whole { first: Staged { step, .. }, .. } in self.companion.publishing.complete() {
            let message = "it was not published in time for the stop".to_owned();
            self.companion.order(&CompanionOrder::PublishFailed { step: *step, message, of_disk: false });
        }
    }

    /// Publishes what is whole, or queues it behind the checkpoint being published. Discards what will never be whole.
    fn conclude_saves(&mut self, outcomes: Vec<Outcome>) {
        for outcome in outcomes {
            match (outcome, self.refuse_checkpoint()) {
                (Outcome::Whole(whole), None) => {
                    self.companion.publishing.waiting.push_back(whole);
                    self.publish_next();
                }
                (Outcome::Whole(whole), Some(message)) => {
                    self.discard_parts(whole.parts());
                    self.companion.order(&CompanionOrder::PublishFailed {
                        step: whole.first.step,
                        message,
                        of_disk: false,
                    });
                }
                (Outcome::Failed { step, parts, why: NotWritten { message, of_disk } }, _) => {
                    self.discard_parts(&parts);
                    self.link.send(&Event::SaveFailed { step, message: message.clone(), of_disk });
                    self.companion.order(&CompanionOrder::PublishFailed { step, message, of_disk });
                }
            }
        }
    }

    fn discard_parts<'a>(&self, parts: impl IntoIterator<Item = &'a Staged>) {
        for staged in parts {
            self.discard_staged(staged);
        }
    }

    /// Removes a staged folder that will not be published.
    pub(super) fn discard_staged(&self, staged: &Staged) {
        discard_staged(self.args.run_dir.path(), staged.step, &staged.folder);
    }

    /// Removes the folders that a process left behind, except those that it reported as complete.
    pub(super) fn discard_staged_by(&self, process: NodePid) {
        let complete: Vec<&str> = self.companion.publishing.complete().flat_map(Whole::folders).collect();
        discard_staged_by(self.args.run_dir.path(), process.into(), &complete);
    }

    fn publish_next(&mut self) {
        if self.companion.publishing.current.is_some() {
            return;
        }
        let Some(whole) = self.companion.publishing.waiting.pop_front() else { return };
        self.companion.publishing.current = Some(whole.clone());
        let clock = (whole.first.step, whole.first.samples);
        let (state, rows) = self.companion.state.take_until(clock, self.progress.epoch(), self.began.elapsed());
        let (run_dir, reports) = (self.args.run_dir.path().to_owned(), self.reports.clone());
        let state = Box::new(state);
        run_beside("publication", move || {
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
        self.companion.publishing.current = None;
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
                self.companion.order(&CompanionOrder::PublishFailed { step, message, of_disk });
            }
        }
        self.publish_next();
    }

    /// Adopts a checkpoint that the framework has written, or queues it behind the one being read.
    pub(super) fn adopt_written(&mut self, written: ResumePoint) {
        let step = written.step;
        if let Some(message) = self.refuse_checkpoint() {
            return self.companion.order(&CompanionOrder::PublishFailed { step, message, of_disk: false });
        }
        if !written.path.is_absolute() || !written.path.exists() {
            let message = format!("{} does not exist", text::path(&written.path));
            self.link.send(&Event::SaveFailed { step, message: message.clone(), of_disk: false });
            return self.companion.order(&CompanionOrder::PublishFailed { step, message, of_disk: false });
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
        self.adopt(Candidate { path, step: Some(step), epoch: None, modified_ns: 0 }, samples);
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
            Some(message) => CompanionOrder::PublishFailed { step, message, of_disk: false },
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
