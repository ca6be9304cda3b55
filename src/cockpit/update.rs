//! Applies one message to the state and returns effects. Nothing here reads a clock or performs I/O.

pub mod actions;
pub mod charts;
mod copy;
mod focus;
mod keys;
pub mod layers;
pub mod menu;
mod message;
mod missing_rows;
mod mouse;
mod palette;
mod replay;
pub mod run_list;
pub mod samples;
mod typing;
mod worker_end;

use super::layout::lay_out_state;
use super::state::facts::Loading;
use super::state::screen::{Panel, View};
use super::state::shift_progress::ShiftProgress;
use super::state::{Link, State};
use super::verdict::alerts::alerts;
use crate::protocol::control::{Request, RunState, Status, Update};
use crate::untrusted::text;
pub use focus::focus_visible_panel;
pub use message::{ChangeError, Effect, HistoryBox, Msg, OtherBox, RunChange};
pub use typing::join_bursts;

const BELL_MS: i64 = 10_000;

/// Applies a message to the state; returns the effects.
pub fn update(state: &mut State, msg: Msg) -> Vec<Effect> {
    let (previewed, mode) = (state.previewed_rung(), state.screen.mode);
    // Alerts cost more than a step: the steps between two ticks are judged together, at the time of the last one.
    let ticks = matches!(msg, Msg::Tick(now_ms) if is_new_tick(state, now_ms));
    let waits = matches!(msg, Msg::Keeper(Update::Steps { .. }));
    if ticks && state.unjudged_steps {
        observe_alerts(state);
    }
    let judges = ticks || !(waits || matches!(msg, Msg::Tick(_)));
    let mut effects = apply_message(state, msg);
    typing::observe_question(state, mode);
    state.unjudged_steps |= waits;
    if judges {
        observe_alerts(state);
    }
    effects.extend(stand_by_for_preview(state, previewed));
    effects.extend(missing_rows::request_missing_rows(state));
    state.refresh_past();
    effects.extend(samples::request_missing_samples(state));
    effects.extend(layers::request_missing_layers(state));
    effects
}

fn observe_alerts(state: &mut State) {
    let found = alerts(state).into_iter().map(|alert| (alert.kind, alert.began_ms));
    state.alerts = state.alerts.observe(found, state.is_stale(), state.now_ms);
    state.unjudged_steps = false;
}

/// Reports whether the screen shows another time at `now_ms`.
fn is_new_tick(state: &State, now_ms: i64) -> bool {
    let interval = state.tick_ms();
    now_ms.div_euclid(interval) != state.now_ms.div_euclid(interval)
}

/// Tells the keeper which shift is likely, if the run's command can import ahead for it. A confirmed one was sent before.
fn stand_by_for_preview(state: &State, before: Option<usize>) -> Option<Effect> {
    let now = state.previewed_rung();
    let imports_ahead = state.status()?.companion.as_ref().is_some_and(|companion| companion.imports_ahead);
    (now != before && imports_ahead).then(|| {
        let rung = now.and_then(|rung| state.ladder.get(rung)).map(|rung| rung.name.clone());
        Effect::Send(Request::StandBy { rung })
    })
}

fn apply_message(state: &mut State, msg: Msg) -> Vec<Effect> {
    match msg {
        Msg::Key(key) => keys::press_key(state, key),
        Msg::Burst(keys) => typing::press_burst(state, keys, keys::press_key),
        Msg::Paste(text) => keys::paste_text(state, &text),
        Msg::Mouse(event) => mouse::handle_mouse(state, event),
        Msg::Resize(width, height) => {
            state.screen.size = (width, height);
            actions::close_hidden_box(state);
            vec![Effect::Redraw]
        }
        Msg::Keeper(update) => apply_keeper_update(state, update),
        Msg::KeeperBack => greet_keeper(state),
        Msg::KeeperLost(reason) => lose_keeper(state, reason),
        Msg::StoredStatus(status) => apply_stored_status(state, status.map(|status| *status)),
        Msg::History { asked, history } => {
            state.facts.load_history(asked, history.map(|history| *history.0), state.now_ms);
            vec![Effect::Redraw]
        }
        Msg::Rows(rows) => {
            state.facts.series.fill(&rows);
            vec![Effect::Redraw]
        }
        Msg::Moment { at_ms, history } => replay::show_moment(state, at_ms, history.map(|history| *history.0)),
        Msg::Runs(rows) => run_list::replace_list(state, rows),
        Msg::RunMeasured { name, size } => menu::store_size(state, &name, size),
        Msg::RunChanged { name, change } => menu::show_change(state, &name, change),
        Msg::Other { name, run } => {
            state.runs.store_run(name, run.map(|run| *run.0));
            vec![Effect::Redraw]
        }
        Msg::Copied(text) => copy::confirm_copy(state, &text),
        Msg::TmuxRefused(text) => vec![Effect::CopyByTerminal(text)],
        Msg::ChartWritten(path) => show_result(state, format!("wrote {}", text::path(&path)), false),
        Msg::ChartRefused(why) => show_result(state, why, true),
        Msg::Resumed => actions::repaint(state),
        Msg::SuspendRequested => vec![Effect::Suspend],
        Msg::RunDirExists(exists) => note_run_dir(state, exists),
        Msg::Log(lines) if lines.is_empty() => Vec::new(),
        Msg::Log(lines) => {
            state.facts.add_log_lines(lines);
            vec![Effect::Redraw]
        }
        Msg::Tick(now_ms) => advance_clock(state, now_ms),
        Msg::InputLost => vec![Effect::Quit],
        other => store_samples(state, other),
    }
}

/// Stores what was read about samples and layers.
fn store_samples(state: &mut State, msg: Msg) -> Vec<Effect> {
    match msg {
        Msg::Pictures(support) => state.samples.support = support,
        Msg::SampleSets(sets) => state.samples.replace_list(sets),
        Msg::SampleSet { id, set } => state.samples.store_set(id, set),
        Msg::Picture { order, picture } => state.samples.pictures.store(order, picture),
        Msg::LayerHistory(history) => state.layers.store_history(history),
        _ => return Vec::new(),
    }
    vec![Effect::Redraw]
}

fn greet_keeper(state: &mut State) -> Vec<Effect> {
    state.link = Link::Live;
    // A refusal may have said that the keeper was gone.
    state.notice.take_if(|notice| notice.refused);
    state.screen.trouble_hidden = false;
    state.facts.heard_ms = Some(state.now_ms);
    state.facts.loading = Loading::Needed;
    state.layers.note_gap();
    vec![Effect::Redraw]
}

fn note_run_dir(state: &mut State, exists: bool) -> Vec<Effect> {
    let since = state.facts.run_dir_missing_ms;
    let missing = (!exists).then(|| since.unwrap_or(state.now_ms));
    state.facts.run_dir_missing_ms = missing;
    if missing == since { Vec::new() } else { vec![Effect::Redraw] }
}

fn show_result(state: &mut State, text: String, refused: bool) -> Vec<Effect> {
    state.show_notice(text, refused);
    vec![Effect::Redraw]
}

fn apply_keeper_update(state: &mut State, update: Update) -> Vec<Effect> {
    let mut effects = vec![Effect::Redraw];
    let before = state.run_state();
    if let Update::Reply { accepted, message } = &update {
        state.show_notice(message.clone(), !accepted);
    }
    match &update {
        Update::Samples { step } => state.samples.note_written(*step),
        Update::Layers(row) => state.layers.push(row.clone()),
        Update::WentBack { .. } => state.layers.note_gap(),
        _ => {}
    }
    let is_status = matches!(update, Update::Status(_));
    state.facts.apply_update(update, state.now_ms);
    if is_status {
        effects.extend(state.facts.ask_for_history().map(Effect::LoadHistory));
        if let Some(status) = &state.facts.status {
            let progress = state.shift_progress.after(status, state.now_ms);
            let before_it = std::mem::replace(&mut state.shift_progress, progress);
            let arrived = before_it != progress && progress.is_news(state.now_ms);
            let rests = before != Some(status.state) && (status.state.is_over() || status.state == RunState::Paused);
            // The request that the notice acknowledged has been carried out.
            state.notice.take_if(|notice| !notice.refused && (arrived || rests));
        }
        effects.extend(react_to_run_state(state, before));
    }
    effects
}

/// Shows and rings for a change of the run's state that the user should not miss.
fn react_to_run_state(state: &mut State, before: Option<RunState>) -> Vec<Effect> {
    let mut effects = Vec::new();
    if before == state.run_state() {
        return effects;
    }
    if state.is_broken() {
        state.screen.trouble_hidden = false;
        effects.push(Effect::ReadLog);
    }
    let is_alarming =
        |now| matches!(now, RunState::NeedsPerson | RunState::Failed | RunState::Interrupted | RunState::Finished);
    if before.is_some() && state.run_state().is_some_and(is_alarming) {
        effects.extend(ring_bell(state));
    }
    effects
}

fn lose_keeper(state: &mut State, reason: String) -> Vec<Effect> {
    let mut effects = vec![Effect::Redraw];
    if state.link.lost_since_ms().is_none() {
        state.link = Link::Dropped { since_ms: state.now_ms, reason, was_live: state.link == Link::Live };
    }
    effects.extend(state.facts.ask_for_history().map(Effect::LoadHistory));
    if !state.is_over() {
        effects.push(Effect::LoadStatus);
    }
    effects
}

/// Applies the status read while no keeper answers. It decides whether the keeper is being restarted,
/// which needs no attention, or is gone, which does.
fn apply_stored_status(state: &mut State, status: Option<Status>) -> Vec<Effect> {
    let mut effects = vec![Effect::Redraw];
    if state.link.lost_since_ms().is_none() {
        return effects;
    }
    let before = state.run_state();
    if let Some(status) = status {
        state.facts.set_status(status, state.now_ms);
    }
    if let Link::Dropped { since_ms, reason, was_live } = state.link.clone() {
        state.link = Link::Lost { since_ms, reason };
        if was_live && state.run_state() != Some(RunState::Recovering) {
            effects.extend(ring_bell(state));
        }
    }
    effects.extend(react_to_run_state(state, before));
    effects
}

fn ring_bell(state: &mut State) -> Option<Effect> {
    let rested = state.now_ms.saturating_sub(state.bell_ms) >= BELL_MS;
    rested.then(|| {
        state.bell_ms = state.now_ms;
        Effect::Bell
    })
}

fn advance_clock(state: &mut State, now_ms: i64) -> Vec<Effect> {
    let before = state.now_ms;
    let changed = is_new_tick(state, now_ms);
    state.now_ms = now_ms;
    if state.notice.as_ref().is_some_and(|notice| notice.until_ms <= now_ms) {
        state.notice = None;
    }
    let mut effects = Vec::new();
    if changed {
        effects.push(Effect::Redraw);
        if lay_out_state(state).area_of(Panel::Log).is_some() {
            effects.push(Effect::ReadLog);
        }
        if state.screen.view == View::Runs && now_ms.div_euclid(5_000) != before.div_euclid(5_000) {
            effects.push(Effect::ListRuns);
        }
        if state.screen.view == View::Samples && now_ms.div_euclid(5_000) != before.div_euclid(5_000) {
            effects.push(Effect::ListSamples);
        }
        if state.screen.view == View::Layers && now_ms.div_euclid(5_000) != before.div_euclid(5_000) {
            state.layers.retry(now_ms);
        }
        effects.extend(replay::advance_replay(state));
    }
    if now_ms.div_euclid(1_000) != before.div_euclid(1_000) && state.link == Link::Live && !state.is_over() {
        effects.push(Effect::CheckRunDir);
    }
    effects
}

impl State {
    /// Returns how often the current screen needs a tick, in milliseconds.
    #[must_use]
    pub fn tick_ms(&self) -> i64 {
        match self.shift_progress {
            _ if self.replay.as_ref().is_some_and(|replay| replay.playing) => 250,
            ShiftProgress::Running { hidden: false, .. } => 100,
            _ => 1000,
        }
    }
}

#[cfg(test)]
mod tests;
