//! One message in, the state changed, effects out. Nothing here reads a clock or does anything.

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

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Msg {
    /// A key was pressed.
    Key(KeyEvent),
    /// Text was pasted.
    Paste(String),
    /// The mouse moved, clicked or rolled.
    Mouse(MouseEvent),
    /// The terminal has a new size: columns, rows.
    Resize(u16, u16),
    /// The keeper said something.
    Keeper(Update),
    /// The keeper answers.
    KeeperBack,
    /// The keeper does not answer; what the system said.
    KeeperLost(String),
    /// Where the run stands while no keeper answers.
    Standing(Option<Box<Status>>),
    /// The history was read, or why not.
    History {
        /// The number that the question had.
        asked: u64,
        /// What it is.
        history: Result<HistoryBox, String>,
    },
    /// Steps that a chart shows closely.
    Rows(Vec<StepRow>),
    /// The run as it was at a moment, or why that could not be read.
    Moment {
        /// The moment, Unix milliseconds.
        at_ms: i64,
        /// What the store held by then.
        history: Result<HistoryBox, String>,
    },
    /// The runs of the folder.
    Runs(Vec<RunRow>),
    /// Another run, or why it could not be read.
    Other {
        /// Its name.
        name: String,
        /// What it is.
        run: Result<OtherBox, String>,
    },
    /// The terminal was given back and taken again.
    Woken,
    /// Somebody asked the process to stop until it is told to go on.
    Stopped,
    /// Whether the run's directory is where it should be.
    Home(bool),
    /// New lines of the worker's log.
    Log(Vec<String>),
    /// The time: Unix milliseconds.
    Tick(i64),
    /// The terminal has no more keys to give.
    InputLost,
}

/// A [`History`] behind a pointer, so that messages stay small.
#[derive(Debug, Clone)]
pub struct HistoryBox(pub Box<History>);

impl PartialEq for HistoryBox {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(&raw const *self.0, &raw const *other.0)
    }
}

/// An [`OtherRun`] behind a pointer.
#[derive(Debug, Clone)]
pub struct OtherBox(pub Box<OtherRun>);

impl PartialEq for OtherBox {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(&raw const *self.0, &raw const *other.0)
    }
}

/// Something to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Draw: something that is seen has changed.
    Redraw,
    /// Draw every cell again.
    Repaint,
    /// Ask the keeper.
    Send(Request),
    /// Read the store; the answer carries this number.
    LoadHistory(u64),
    /// Look where the run stands, without its keeper.
    LoadStanding,
    /// Read these steps of the store.
    LoadRows(Range<u64>),
    /// Read the store up to a moment, Unix milliseconds.
    LoadMoment(i64),
    /// List the runs of the folder.
    ListRuns,
    /// Read another run; its curve too, or its config alone.
    LoadOther(String, bool),
    /// Close this cockpit and open one on that run.
    Open(String),
    /// Give the terminal back and stop until somebody says `fg`.
    Suspend,
    /// Read what the worker's log has gained.
    ReadLog,
    /// See whether the run's directory is still there.
    LookForHome,
    /// Ring the terminal's bell.
    Bell,
    /// Close the cockpit.
    Quit,
}

const NOTICE_MS: i64 = 4_000;
const BELL_MS: i64 = 10_000;

/// Takes a message in.
pub fn update(state: &mut State, msg: Msg) -> Vec<Effect> {
    let mut effects = take(state, msg);
    effects.extend(detail::wanted(state));
    // The past is looked at the same way as the present.
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
            // What a key was answered has come to pass.
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

/// Why there is no keeper changes while it is being brought back.
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
    /// How often time must be told for what is on the screen, milliseconds.
    #[must_use]
    pub fn tick_ms(&self) -> i64 {
        match self.passage {
            _ if self.replay.as_ref().is_some_and(|replay| replay.playing) => 250,
            super::state::passage::PassageView::Under { hidden: false, .. } => 100,
            _ => 1000,
        }
    }
}

/// Says something in place of the verdict for some seconds.
fn say(state: &mut State, text: impl Into<String>, refused: bool) {
    let until_ms = state.now_ms.saturating_add(if refused { 2 * NOTICE_MS } else { NOTICE_MS });
    state.notice = Some(Notice { text: text.into(), refused, until_ms });
}

#[cfg(test)]
mod tests;
