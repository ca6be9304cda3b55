//! Takes one message, changes the state and returns effects. Nothing here reads a clock or performs I/O.

pub mod act;
mod charts;
mod detail;
pub mod keys;
mod mouse;
mod others;
pub mod palette;
mod past;

use super::layout::places_of;
use super::state::facts::{History, Loading};
use super::state::runs::{OtherRun, RunRow};
use super::state::screen::{Panel, View};
use super::state::{Link, Notice, State};
use crate::protocol::control::{Request, RunState, Status, StepRow, Update};
use crossterm::event::{KeyEvent, MouseEvent};
use std::ops::Range;

/// An event.
#[derive(Debug, Clone, PartialEq)]
pub enum Msg {
    /// A key was pressed.
    Key(KeyEvent),
    /// Text was pasted.
    Paste(String),
    /// The mouse moved, clicked or scrolled.
    Mouse(MouseEvent),
    /// The terminal was resized: columns, rows.
    Resize(u16, u16),
    /// The keeper sent an update.
    Keeper(Update),
    /// The keeper answers again.
    KeeperBack,
    /// The keeper does not answer; holds the operating system's error.
    KeeperLost(String),
    /// Status of the run while no keeper answers.
    Standing(Option<Box<Status>>),
    /// The history was read, or could not be.
    History {
        /// Number of the request.
        asked: u64,
        /// The history, or the error.
        history: Result<HistoryBox, String>,
    },
    /// Rows for a zoomed-in chart.
    Rows(Vec<StepRow>),
    /// The run at a past moment was read, or could not be.
    Moment {
        /// The moment, Unix milliseconds.
        at_ms: i64,
        /// The history up to that moment, or the error.
        history: Result<HistoryBox, String>,
    },
    /// The runs in the folder.
    Runs(Vec<RunRow>),
    /// Another run was read, or could not be.
    Other {
        /// Name of the run.
        name: String,
        /// Its data, or the error.
        run: Result<OtherBox, String>,
    },
    /// The terminal was released and taken again.
    Woken,
    /// Another process asked this one to stop until it is resumed.
    Stopped,
    /// Whether the run directory is at its expected path.
    Home(bool),
    /// New lines of the worker's log.
    Log(Vec<String>),
    /// The current time, Unix milliseconds.
    Tick(i64),
    /// The terminal will deliver no more keys.
    InputLost,
}

/// A boxed [`History`], which keeps messages small.
#[derive(Debug, Clone)]
pub struct HistoryBox(pub Box<History>);

impl PartialEq for HistoryBox {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(&raw const *self.0, &raw const *other.0)
    }
}

/// A boxed [`OtherRun`].
#[derive(Debug, Clone)]
pub struct OtherBox(pub Box<OtherRun>);

impl PartialEq for OtherBox {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(&raw const *self.0, &raw const *other.0)
    }
}

/// A side effect to perform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Draw: something visible has changed.
    Redraw,
    /// Redraw every cell.
    Repaint,
    /// Send a request to the keeper.
    Send(Request),
    /// Read the store; the reply carries this number.
    LoadHistory(u64),
    /// Read the run's status without its keeper.
    LoadStanding,
    /// Read this range of steps from the store.
    LoadRows(Range<u64>),
    /// Read the store up to a moment, Unix milliseconds.
    LoadMoment(i64),
    /// List the runs in the folder.
    ListRuns,
    /// Read another run: with its curve if true, otherwise only its config.
    LoadOther(String, bool),
    /// Close this cockpit and open one on the named run.
    Open(String),
    /// Release the terminal and stop until `fg`.
    Suspend,
    /// Read new lines of the worker's log.
    ReadLog,
    /// Check whether the run directory still exists.
    LookForHome,
    /// Ring the terminal's bell.
    Bell,
    /// Close the cockpit.
    Quit,
}

const NOTICE_MS: i64 = 4_000;
const BELL_MS: i64 = 10_000;

/// Applies a message to the state; returns the effects.
pub fn update(state: &mut State, msg: Msg) -> Vec<Effect> {
    let mut effects = take(state, msg);
    effects.extend(detail::wanted(state));
    // The replay uses the screen settings and the notice of the present state.
    if let Some(past) = state.replay.as_mut().and_then(|replay| replay.shown.as_mut()) {
        past.screen.clone_from(&state.screen);
        past.notice.clone_from(&state.notice);
    }
    effects
}

fn take(state: &mut State, msg: Msg) -> Vec<Effect> {
    match msg {
        Msg::Key(key) => keys::press(state, key),
        Msg::Paste(text) => keys::paste(state, &text),
        Msg::Mouse(event) => mouse::mouse(state, event),
        Msg::Resize(width, height) => {
            state.screen.size = (width, height);
            act::close_unseen(state);
            vec![Effect::Redraw]
        }
        Msg::Keeper(update) => keeper(state, update),
        Msg::KeeperBack => {
            state.link = Link::Live;
            state.screen.trouble_hidden = false;
            state.facts.heard_ms = Some(state.now_ms);
            state.facts.loading = Loading::Needed;
            vec![Effect::Redraw]
        }
        Msg::KeeperLost(reason) => lost(state, reason),
        Msg::Standing(status) => standing(state, status.map(|status| *status)),
        Msg::History { asked, history } => {
            state.facts.load(asked, history.map(|history| *history.0), state.now_ms);
            vec![Effect::Redraw]
        }
        Msg::Rows(rows) => {
            state.facts.series.fill(&rows);
            vec![Effect::Redraw]
        }
        Msg::Moment { at_ms, history } => past::arrived(state, at_ms, history.map(|history| *history.0)),
        Msg::Runs(rows) => others::listed(state, rows),
        Msg::Other { name, run } => {
            state.runs.take(name, run.map(|run| *run.0));
            vec![Effect::Redraw]
        }
        Msg::Woken => vec![Effect::Repaint],
        Msg::Stopped => vec![Effect::Suspend],
        Msg::Home(there) => {
            let since = state.facts.homeless_ms;
            let gone = (!there).then(|| since.unwrap_or(state.now_ms));
            state.facts.homeless_ms = gone;
            if gone == since { Vec::new() } else { vec![Effect::Redraw] }
        }
        Msg::Log(lines) if lines.is_empty() => Vec::new(),
        Msg::Log(lines) => {
            state.facts.log_lines(lines);
            vec![Effect::Redraw]
        }
        Msg::Tick(now_ms) => tick(state, now_ms),
        Msg::InputLost => vec![Effect::Quit],
    }
}

fn keeper(state: &mut State, update: Update) -> Vec<Effect> {
    let mut effects = vec![Effect::Redraw];
    let before = state.run_state();
    if let Update::Reply { accepted, message } = &update {
        say(state, message.clone(), !accepted);
    }
    let is_status = matches!(update, Update::Status(_));
    state.facts.apply(update, state.now_ms);
    if is_status {
        effects.extend(state.facts.ask_for_history().map(Effect::LoadHistory));
        if let Some(status) = &state.facts.status {
            let passage = state.passage.after(status, state.now_ms);
            let arrived = std::mem::replace(&mut state.passage, passage) != passage && passage.is_news(state.now_ms);
            let rests = before != Some(status.state) && (status.state.is_over() || status.state == RunState::Paused);
            // The request that the notice acknowledged has been carried out.
            state.notice.take_if(|notice| !notice.refused && (arrived || rests));
        }
        if before != state.run_state() && state.is_broken() {
            state.screen.trouble_hidden = false;
            effects.push(Effect::ReadLog);
        }
        let alarming = |now| matches!(now, RunState::NeedsPerson | RunState::Failed | RunState::Finished);
        if before.is_some() && before != state.run_state() && state.run_state().is_some_and(alarming) {
            effects.extend(bell(state));
        }
    }
    effects
}

fn lost(state: &mut State, reason: String) -> Vec<Effect> {
    let mut effects = vec![Effect::Redraw];
    if !matches!(state.link, Link::Lost { .. }) {
        if state.link == Link::Live && !state.is_over() {
            effects.extend(bell(state));
        }
        state.link = Link::Lost { since_ms: state.now_ms, reason };
    }
    effects.extend(state.facts.ask_for_history().map(Effect::LoadHistory));
    if !state.is_over() {
        effects.push(Effect::LoadStanding);
    }
    effects
}

/// Stores the status read while no keeper answers; the reason may change while the keeper is being restarted.
fn standing(state: &mut State, status: Option<Status>) -> Vec<Effect> {
    if let Some(status) = status.filter(|_| matches!(state.link, Link::Lost { .. })) {
        state.facts.status = Some(status);
    }
    vec![Effect::Redraw]
}

fn bell(state: &mut State) -> Option<Effect> {
    let rested = state.now_ms.saturating_sub(state.bell_ms) >= BELL_MS;
    rested.then(|| {
        state.bell_ms = state.now_ms;
        Effect::Bell
    })
}

fn tick(state: &mut State, now_ms: i64) -> Vec<Effect> {
    let interval = state.tick_ms();
    let seen = |ms: i64| ms.div_euclid(interval);
    let before = state.now_ms;
    let changed = seen(now_ms) != seen(before);
    state.now_ms = now_ms;
    if state.notice.as_ref().is_some_and(|notice| notice.until_ms <= now_ms) {
        state.notice = None;
    }
    let mut effects = Vec::new();
    if changed {
        effects.push(Effect::Redraw);
        if places_of(state).area_of(Panel::Log).is_some() {
            effects.push(Effect::ReadLog);
        }
        if state.screen.view == View::Runs && now_ms.div_euclid(5_000) != before.div_euclid(5_000) {
            effects.push(Effect::ListRuns);
        }
        effects.extend(past::play(state));
    }
    if now_ms.div_euclid(1_000) != before.div_euclid(1_000) && state.link == Link::Live && !state.is_over() {
        effects.push(Effect::LookForHome);
    }
    effects
}

impl State {
    /// Returns how often the current screen needs a tick, in milliseconds.
    #[must_use]
    pub fn tick_ms(&self) -> i64 {
        match self.passage {
            _ if self.replay.as_ref().is_some_and(|replay| replay.playing) => 250,
            super::state::passage::PassageView::Under { hidden: false, .. } => 100,
            _ => 1000,
        }
    }
}

/// Shows a notice in place of the verdict for some seconds.
fn say(state: &mut State, text: impl Into<String>, refused: bool) {
    let until_ms = state.now_ms.saturating_add(if refused { 2 * NOTICE_MS } else { NOTICE_MS });
    state.notice = Some(Notice { text: text.into(), refused, until_ms });
}

#[cfg(test)]
mod tests;
