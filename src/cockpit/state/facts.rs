//! Data from the keeper and the store, merged without gaps or duplicates.
//!
//! The cockpit subscribes first and reads the store afterwards. Updates that arrive in between are
//! queued and applied on top of the history. Rows present in both are recognised by attempt and step,
//! or by id.

use super::metrics::RunMetrics;
use super::readings::Readings;
use crate::cockpit::read_error::ReadError;
use crate::protocol::control::{CheckpointRow, EvalRow, JournalRow, ReadingRow, Status, StepRow, Update};
use crate::protocol::pace::Pacer;
use crate::series::Series;
use crate::store::summary::Spot;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// The stored data of a run, oldest first.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The curve.
    pub series: Series,
    /// Newest steps in full.
    pub recent: VecDeque<StepRow>,
    /// Speed of the newest steps.
    pub pacer: Pacer,
    /// Evaluations.
    pub evals: Vec<EvalRow>,
    /// The journal.
    pub journal: Vec<JournalRow>,
    /// Checkpoints, those deleted included.
    pub checkpoints: Vec<CheckpointRow>,
    /// Latest readings of the probe.
    pub samples: Vec<ReadingRow>,
    /// Status when the keeper last wrote it; used while no keeper answers.
    pub status: Option<Status>,
}

impl History {
    /// Adds a step; steps arrive in order of attempt and step. Returns false if it was already known.
    pub fn push_step(&mut self, row: &StepRow) -> bool {
        let new = self.series.push(row);
        if new {
            self.recent.push_back(row.clone());
            trim_oldest(&mut self.recent, RECENT);
            self.pacer.push(row);
        }
        new
    }

    /// Returns the history with these steps added.
    #[must_use]
    pub fn with_steps(mut self, rows: impl IntoIterator<Item = StepRow>) -> Self {
        rows.into_iter().for_each(|row| {
            self.push_step(&row);
        });
        self
    }
}

/// Loading state of the history.
#[derive(Debug, Clone, PartialEq)]
pub enum Loading {
    /// Not requested yet.
    Needed,
    /// Being read; holds the keeper's updates in the meantime.
    Reading(Vec<Update>),
    /// Complete.
    Done,
}

/// Number of newest steps over which the skip rate is computed.
pub const SKIP_WINDOW: usize = 200;
const RECENT: usize = 512;
const SAMPLES: usize = 720;
const JOURNAL: usize = 20_000;
const LOG: usize = 5_000;

/// Everything known about the run.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Current status.
    pub status: Option<Status>,
    /// Time of the keeper's last update, Unix milliseconds.
    pub heard_ms: Option<i64>,
    /// Time since when the run directory has been missing, Unix milliseconds.
    pub run_dir_missing_ms: Option<i64>,
    /// Time at which the current run state was observed to begin, Unix milliseconds; `None` if it began
    /// before the cockpit attached.
    pub state_since_ms: Option<i64>,
    /// Loading state of the history.
    pub loading: Loading,
    /// Number of history requests so far; replies to earlier requests are stale.
    pub asked: u64,
    /// Reason why the history could not be read.
    pub history_error: Option<ReadError>,
    /// The curve.
    pub series: Series,
    /// Names of the metrics that the run reports.
    pub metrics: RunMetrics,
    /// Range of steps last requested from the store for a zoomed-in chart.
    pub rows_asked: Option<Range<u64>>,
    /// Newest steps in full.
    pub recent: VecDeque<StepRow>,
    /// Speed of the newest steps.
    pub pacer: Pacer,
    /// Evaluations by step; if a step was evaluated again, the newest.
    pub evals: BTreeMap<u64, EvalRow>,
    /// The journal, oldest first.
    pub journal: VecDeque<JournalRow>,
    /// Checkpoints by step.
    pub checkpoints: BTreeMap<u64, CheckpointRow>,
    /// Newest readings of the probe, oldest first.
    pub samples: VecDeque<ReadingRow>,
    /// All readings of the probe, thinned.
    pub readings: Readings,
    /// Tail of the worker's log.
    pub log: VecDeque<String>,
}

impl Default for Facts {
    fn default() -> Self {
        Self {
            status: None,
            heard_ms: None,
            run_dir_missing_ms: None,
            state_since_ms: None,
            loading: Loading::Needed,
            asked: 0,
            history_error: None,
            series: Series::default(),
            metrics: RunMetrics::default(),
            recent: VecDeque::new(),
            pacer: Pacer::default(),
            evals: BTreeMap::new(),
            journal: VecDeque::new(),
            checkpoints: BTreeMap::new(),
            samples: VecDeque::new(),
            readings: Readings::default(),
            rows_asked: None,
            log: VecDeque::new(),
        }
    }
}

impl Facts {
    /// Applies a keeper update, or queues it while the history is being read.
    pub fn apply_update(&mut self, update: Update, now_ms: i64) {
        self.heard_ms = Some(now_ms);
        match (update, &mut self.loading) {
            (Update::Status(status), _) => self.set_status(*status, now_ms),
            (other, Loading::Reading(pending)) => pending.push(other),
            (Update::Steps { rows }, _) => rows.iter().for_each(|row| self.record_step(row)),
            // The store holds the curve without the steps that are redone.
            (Update::WentBack { .. }, _) => self.loading = Loading::Needed,
            (Update::Eval(row), _) => self.record_eval(row),
            (Update::Reading(row), _) => self.record_sample(*row),
            (Update::Journal(row), _) => self.record_journal(row),
            (Update::Checkpoint(row), _) => self.record_checkpoint(row),
            (Update::Samples { .. } | Update::Layers(_) | Update::Reply { .. }, _) => {}
        }
    }

    /// Returns the number of a new history request, if one is needed now.
    pub fn ask_for_history(&mut self) -> Option<u64> {
        (self.loading == Loading::Needed).then(|| {
            self.loading = Loading::Reading(Vec::new());
            self.asked += 1;
            self.asked
        })
    }

    /// Replaces the data with the history, then applies the queued updates.
    pub fn load_history(&mut self, asked: u64, history: Result<History, ReadError>, now_ms: i64) {
        if asked != self.asked || !matches!(self.loading, Loading::Reading(_)) {
            return;
        }
        let pending = match std::mem::replace(&mut self.loading, Loading::Done) {
            Loading::Reading(pending) => pending,
            Loading::Needed | Loading::Done => Vec::new(),
        };
        match history {
            Ok(history) => self.replace_history(history, now_ms),
            Err(reason) => self.history_error = Some(reason),
        }
        let heard = self.heard_ms;
        for update in pending {
            self.apply_update(update, now_ms);
        }
        self.heard_ms = heard;
    }

    /// Adds new lines of the worker's log.
    pub fn add_log_lines(&mut self, lines: Vec<String>) {
        self.log.extend(lines);
        trim_oldest(&mut self.log, LOG);
    }

    fn replace_history(&mut self, history: History, now_ms: i64) {
        self.history_error = None;
        self.rows_asked = None;
        self.series = history.series;
        self.metrics.add_names(self.series.names());
        self.recent = history.recent;
        self.pacer = history.pacer;
        self.evals.clear();
        history.evals.into_iter().for_each(|row| self.record_eval(row));
        self.journal.clear();
        history.journal.into_iter().for_each(|row| self.record_journal(row));
        self.checkpoints.clear();
        history.checkpoints.into_iter().for_each(|row| self.record_checkpoint(row));
        self.samples.clear();
        self.readings = Readings::default();
        for row in history.samples {
            let spot = self.readings.spot(&self.series, row.time_ms);
            self.record_sample_at(row, spot);
        }
        if self.status.is_none()
            && let Some(status) = history.status
        {
            self.set_status(status, now_ms);
        }
    }

    /// Replaces the status; notes when the run state changed.
    pub fn set_status(&mut self, status: Status, now_ms: i64) {
        if self.status.as_ref().is_some_and(|known| known.state != status.state) {
            self.state_since_ms = Some(now_ms);
        }
        self.status = Some(status);
    }

    fn record_step(&mut self, row: &StepRow) {
        let before = self.series.segments().len();
        if self.series.push(row) {
            self.metrics.add_step(row);
            self.recent.push_back(row.clone());
            trim_oldest(&mut self.recent, RECENT);
            self.pacer.push(row);
            if self.series.segments().len() != before {
                self.drop_redone_evals();
            }
        }
    }

    fn record_eval(&mut self, mut row: EvalRow) {
        let known = self.evals.get(&row.eval.step);
        if let Some(known) = known.filter(|known| known.attempt == row.attempt) {
            row.eval.complete(&known.eval);
        }
        if known.is_none_or(|known| known.attempt <= row.attempt) && !self.series.is_redone(row.attempt, row.eval.step)
        {
            self.metrics.add_eval(&row);
            self.evals.insert(row.eval.step, row);
        }
    }

    fn drop_redone_evals(&mut self) {
        let mut evals = std::mem::take(&mut self.evals);
        evals.retain(|_, row| !self.series.is_redone(row.attempt, row.eval.step));
        self.evals = evals;
    }

    fn record_sample(&mut self, row: ReadingRow) {
        let (step, samples) = self.series.spots().map_or((0, 0), |(_, last)| (last.step, last.samples));
        let time_ms = row.time_ms;
        self.record_sample_at(row, Spot { step, samples, time_ms });
    }

    fn record_sample_at(&mut self, row: ReadingRow, spot: Spot) {
        if self.samples.back().is_none_or(|last| last.time_ms < row.time_ms) {
            self.readings.push(&row.reading, spot);
            self.samples.push_back(row);
            trim_oldest(&mut self.samples, SAMPLES);
        }
    }

    fn record_journal(&mut self, row: JournalRow) {
        if self.journal.back().is_none_or(|last| last.id < row.id) {
            self.journal.push_back(row);
            trim_oldest(&mut self.journal, JOURNAL);
        }
    }

    fn record_checkpoint(&mut self, row: CheckpointRow) {
        if row.best {
            self.checkpoints.values_mut().for_each(|other| other.best = false);
        }
        self.checkpoints.insert(row.step, row);
    }
}

fn trim_oldest<T>(rows: &mut VecDeque<T>, most: usize) {
    rows.drain(..rows.len().saturating_sub(most));
}
