//! The run at a past moment: a state of its own, read from the store up to that time, shown in place of
//! the present one. A replay holds a state and a state may hold a replay, so this module and its parent
//! use each other.

use super::facts::{Facts, History, Loading};
use super::screen::View;
use super::{Link, RungView, State};
use crate::cockpit::read_error::ReadError;
use crate::protocol::control::{Best, JournalKind, RunState, RungRecord, Status};
use crate::series::{Axis, Metric};

/// An open replay.
#[derive(Debug, Clone)]
pub struct Replay {
    /// Displayed moment, Unix milliseconds.
    pub at_ms: i64,
    /// Whether it advances automatically.
    pub playing: bool,
    /// Moment being read.
    pub reading: Option<i64>,
    /// Reason why it could not be read.
    pub error: Option<ReadError>,
    /// Displayed state.
    pub shown: Option<Box<State>>,
}

/// Returns the first and the last known moment of the run, Unix milliseconds.
#[must_use]
pub fn replay_range(state: &State) -> Option<(i64, i64)> {
    let journal = &state.facts.journal;
    let steps = state.facts.series.spots();
    let first = journal.front().map(|row| row.time_ms).or(steps.map(|(first, _)| first.time_ms))?;
    let last = steps.map(|(_, last)| last.time_ms).max(journal.back().map(|row| row.time_ms))?;
    (first < last).then_some((first, last))
}

impl State {
    /// Returns the state on the screen: the present, or the moment that the replay shows.
    #[must_use]
    pub fn shown(&self) -> &Self {
        self.replay.as_ref().and_then(|replay| replay.shown.as_deref()).unwrap_or(self)
    }

    /// Copies into the past what it shares with the present: the screen, the notice, and the data that keys act on.
    pub fn refresh_past(&mut self) {
        let Some(past) = self.replay.as_mut().and_then(|replay| replay.shown.as_mut()) else { return };
        past.screen.clone_from(&self.screen);
        past.notice.clone_from(&self.notice);
        past.samples.clone_from(&self.samples);
        past.layers.clone_from(&self.layers);
        // The table may be long, and only its own view draws it.
        if self.screen.view == View::Runs {
            past.runs.clone_from(&self.runs);
        }
    }

    /// Builds the state at a moment from the history up to it.
    #[must_use]
    pub fn at_moment(&self, at_ms: i64, mut history: History) -> Self {
        history.status = None;
        let mut past = Self::new(self.ladder.clone(), self.watch.clone(), self.screen.size, at_ms, self.utc_offset_s);
        (past.keys, past.command) = (self.keys.clone(), self.command.clone());
        past.moment = Some(at_ms);
        past.link = Link::Live;
        past.screen = self.screen.clone();
        // The list of runs stays current, and so do their curves.
        past.runs = self.runs.clone();
        (past.samples, past.layers) = (self.samples.clone(), self.layers.clone());
        // The same names, so that a chart on the screen stays the same chart.
        let metrics = self.facts.metrics.clone();
        past.facts = Facts { loading: Loading::Reading(Vec::new()), asked: 1, metrics, ..Facts::default() };
        past.facts.load_history(1, Ok(history), at_ms);
        past.facts.heard_ms = Some(at_ms);
        past.facts.status = self.status().map(|status| status_at_moment(&past, status));
        past
    }
}

/// Derives the status at a moment from the rows up to it; leaves out values that only the present status has.
fn status_at_moment(past: &State, present: &Status) -> Status {
    let facts = &past.facts;
    let newest = facts.recent.back();
    let rung = newest.map_or(0, |row| row.rung);
    let step = newest.map_or(0, |row| row.step);
    // The curve does not say which steps that were not finite a script took anyway.
    let not_finite = facts.series.skipped_among(usize::MAX, 0).0;
    let unguarded = present.unguarded.min(not_finite);
    let journaled = |kind: JournalKind| facts.journal.iter().filter(|row| row.kind == kind).count() as u64;
    Status {
        state: if newest.is_some() { RunState::Training } else { RunState::Starting },
        why: None,
        resumed: None,
        rung,
        rung_name: past.ladder.get(rung).map_or_else(String::new, |rung| rung.name.clone()),
        step,
        samples: newest.map_or(0, |row| row.samples),
        durable_step: facts.checkpoints.keys().next_back().copied(),
        attempts: newest.map_or(0, |row| row.attempt),
        restarts: journaled(JournalKind::Restart),
        shifts: journaled(JournalKind::Shift),
        skipped: present.skipped.map(|_| not_finite - unguarded),
        updates: None,
        unguarded,
        not_finite: facts.recent.iter().rev().take_while(|row| row.skipped).count() as u64,
        loss: facts.recent.iter().rev().find_map(|row| row.loss),
        eval: facts.evals.values().next_back().map(|row| row.eval.clone()),
        best: past.best().and_then(|row| {
            let ranking = past.ranking();
            let value = ranking.value(row.eval_loss, &row.metrics)?;
            Some(Best { step: row.step, eval_loss: row.eval_loss, metric: ranking.metric, value })
        }),
        progress: None,
        setback: None,
        ends_ms: None,
        unread: None,
        reduced: None,
        kernels: None,
        host: None,
        pid_keeper: None,
        pid_worker: None,
        pid_probe: None,
        pid_quality: None,
        passage: None,
        rungs: rung_records(past, present, step),
        ..present.clone()
    }
}

/// Derives each rung's record up to that moment from the curve.
fn rung_records(past: &State, present: &Status, step: u64) -> Vec<RungRecord> {
    let segments = past.facts.series.segments();
    let ends = segments.iter().skip(1).map(|segment| segment.first).chain([step.saturating_add(1)]);
    let stretches: Vec<_> = segments.iter().zip(ends).collect();
    let record = |(number, rung): (usize, &RungView)| {
        let own = || stretches.iter().filter(move |(segment, _)| segment.rung == number);
        let steps = own().map(|(segment, end)| end.saturating_sub(segment.first)).sum();
        let newest = own().next_back().and_then(|(segment, end)| {
            let window = segment.first as f64..end.saturating_sub(1) as f64;
            past.facts.series.columns_on(Metric::StepMs, Axis::Steps, window, 1).pop()?.extent
        });
        let fault = present.rungs.get(number).and_then(|record| record.fault.clone());
        RungRecord {
            name: rung.name.clone(),
            steps,
            steps_per_s: newest.filter(|extent| extent.mean > 0.0).map(|extent| 1e3 / f64::from(extent.mean)),
            units_per_s: None,
            // The store keeps only the all-time peak.
            vram_bytes: None,
            ram_bytes: None,
            planned_bytes: present.rungs.get(number).and_then(|record| record.planned_bytes),
            fault: fault.filter(|(_, at)| *at <= step && steps > 0),
            unusable: None,
        }
    };
    past.ladder.iter().enumerate().map(record).collect()
}
