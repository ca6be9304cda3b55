//! Checkpoints of a companion, one at a time and on another thread: staged ones are completed and published, those that
//! the script's framework wrote are adopted where they are.

use crate::config::command::SETUP_FILE;
use crate::harness::checkpoints::Candidate;
use crate::harness::prepare::context_of;
use crate::harness::run_loop::{Harness, Report};
use crate::harness::{Purpose, setup};
use crate::protocol::companion::{CompanionOrder, ResumePoint, Staged};
use crate::protocol::worker::{Event, Saved};
use crate::store::adopted;
use crate::store::checkpoint::staged::{StagedContents, StagedError, discard_staged, publish_staged};
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
    waiting: VecDeque<Staged>,
    written: VecDeque<ResumePoint>,
    is_busy: bool,
}

impl Publishing {
    pub(super) fn is_busy(&self) -> bool {
        self.is_busy || !self.waiting.is_empty() || !self.written.is_empty()
    }
}

/// The outcome of a publication.
#[derive(Debug)]
pub struct Published {
    staged: Staged,
    rows: Vec<Row>,
    state: Box<TrainState>,
    result: Result<Written, StagedError>,
    took: Duration,
}

impl Harness {
    /// Publishes a staged checkpoint, or queues it behind the one being published.
    pub(super) fn publish_staged(&mut self, staged: Staged) {
        if let Some(why) = self.refuse_checkpoint() {
            discard_staged(self.args.run_dir.path(), staged.step);
            return self.companion.order(&CompanionOrder::PublishFailed { step: staged.step, message: why });
        }
        self.companion.publishing.waiting.push_back(staged);
        self.publish_next();
    }

    fn publish_next(&mut self) {
        if self.companion.publishing.is_busy {
            return;
        }
        let Some(staged) = self.companion.publishing.waiting.pop_front() else { return };
        self.companion.publishing.is_busy = true;
        let clock = (staged.step, staged.samples);
        let (state, rows) = self.companion.state.take_until(clock, self.progress.epoch(), self.began.elapsed());
        let (run_dir, reports) = (self.args.run_dir.path().to_owned(), self.reports.clone());
        let state = Box::new(state);
        std::thread::spawn(move || {
            let began = Instant::now();
            let result = serde_json::to_vec_pretty(&state)
                .map_err(|error| CheckpointError::damaged(&staged.folder, error.to_string()).into())
                .and_then(|text| {
                    let steps = Row::write_all(&rows);
                    let contents = StagedContents {
                        step: staged.step,
                        samples: staged.samples,
                        build: env!("CARGO_PKG_VERSION"),
                        folder: &staged.folder,
                        state: &text,
                        steps: steps.as_bytes(),
                    };
                    publish_staged(&run_dir, &contents)
                });
            let published = Published { staged, rows, state, result, took: began.elapsed() };
            let _ = reports.send(Report::Published(Box::new(published)));
        });
    }

    /// Reports a publication to the keeper and to the companion.
    pub(in crate::harness) fn record_publication(&mut self, published: Published) {
        let Published { staged: Staged { step, samples, pause_ms, .. }, rows, state, result, took } = published;
        self.companion.publishing.is_busy = false;
        match result {
            Ok(written) => {
                self.companion.timer.record_save(pause_ms);
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
        let is_listed = adopted::find(self.args.run_dir.path(), step)
            .is_some_and(|adopted| adopted.original().path == path && adopted.verify().is_ok());
        if is_listed {
            self.companion.order(&CompanionOrder::Published { step });
            return self.adopt_next_written();
        }
        self.adopt(Candidate { path, step: Some(step) }, samples);
    }

    /// Tells the companion what became of a checkpoint that the framework has written.
    pub(in crate::harness) fn answer_adoption(&mut self, step: u64, error: Option<String>) {
        self.companion.order(&match error {
            None => CompanionOrder::Published { step },
            Some(message) => CompanionOrder::PublishFailed { step, message },
        });
    }

    /// Keeps another training of the same command from resuming from, or replacing, the checkpoints of the first one.
    pub(super) fn keep_only_the_first_training(&mut self) {
        self.companion.first_has_ended = true;
        if let Err(error) = setup::forget_resume_point(&context_of(&self.args, None).attempt_dir) {
            self.warn(format!("{SETUP_FILE} cannot be written: {error}; another training would resume from this one"));
        }
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
