//! Handles actions.

use super::{Effect, charts, others, palette, past, say};
use crate::cockpit::action::Action;
use crate::cockpit::layout::{SMALLEST, places_of};
use crate::cockpit::state::screen::{Mode, Panel, View};
use crate::cockpit::state::{Link, State};
use crate::protocol::control::{Request, RunState, Target};

/// Performs an action the user requested.
pub fn act(state: &mut State, action: Action) -> Vec<Effect> {
    if let Some(effects) = charts::act(state, action) {
        return effects;
    }
    match action {
        Action::Quit => return vec![Effect::Quit],
        Action::Suspend => return vec![Effect::Suspend],
        Action::Repaint => return vec![Effect::Repaint],
        Action::ShiftDown => return preview(state, 1),
        Action::ShiftUp => return preview(state, -1),
        Action::Checkpoint => return ask(state, Request::Checkpoint, "asked the keeper for a checkpoint"),
        Action::Restart => return ask(state, Request::Restart, "asked the keeper to restart the worker"),
        Action::Pause => return pause(state),
        Action::Autopilot => return autopilot(state),
        Action::Accept => return accept(state),
        Action::Stop => return stop(state),
        Action::View(view) => return show(state, view),
        Action::NextPanel => return focus(state, 1),
        Action::PreviousPanel => return focus(state, -1),
        Action::Up => return scroll(state, state.screen.focus, 1),
        Action::Down => return scroll(state, state.screen.focus, -1),
        Action::PageUp | Action::PageDown if state.screen.view == View::Curves => {
            return charts::page(state, if action == Action::PageUp { -1 } else { 1 });
        }
        Action::PageUp => return scroll(state, state.screen.focus, 10),
        Action::PageDown => return scroll(state, state.screen.focus, -10),
        Action::Confirm => return open(state),
        Action::Back => return back(state),
        Action::Palette | Action::Help if unseen(state).is_some() => {
            let why = unseen(state).unwrap_or_default();
            return refuse(state, why);
        }
        Action::Palette => return palette::open(state),
        Action::Replay => return past::toggle(state),
        Action::Toggle if state.screen.view == View::Runs => return others::mark(state),
        Action::Filter => return filter(state),
        Action::Theme => {
            state.screen.theme = state.screen.theme.wrapping_add(1);
            let name = state.themes.get(state.screen.theme % state.themes.len().max(1)).cloned();
            if let Some(name) = name {
                say(state, format!("theme: {name}"), false);
            }
        }
        Action::Help => state.screen.mode = Mode::Help { from: 0 },
        // The remaining actions concern charts and were handled above, or have no meaning here.
        _ => return Vec::new(),
    }
    vec![Effect::Redraw]
}

fn filter(state: &mut State) -> Vec<Effect> {
    let words = |panel: &Panel| matches!(panel, Panel::Log | Panel::Journal);
    if !places_of(state).panels.iter().any(|(panel, _)| *panel == Panel::Log) {
        state.screen.view = View::Words;
    }
    if !words(&state.screen.focus) {
        state.screen.focus = Panel::Log;
    }
    state.screen.mode = Mode::Filter;
    vec![Effect::Redraw, Effect::ReadLog]
}

/// Returns the reason why no request to the run is currently possible, if there is one.
#[must_use]
pub fn refusal(state: &State) -> Option<String> {
    if state.read_only {
        return Some("this cockpit was opened to look only (--read-only)".to_owned());
    }
    if state.replay.is_some() || state.moment.is_some() {
        let back = state.keys.key_of(Action::Back);
        return Some(format!("this is the past; {back} comes back to the run, where it can be asked"));
    }
    match (&state.link, state.run_state()) {
        (_, Some(over)) if over.is_over() => {
            let resume = state.resume_command();
            Some(match over {
                RunState::Finished => "the run is finished; nothing is left to do".to_owned(),
                _ => format!("the run has ended; `{resume}` goes on"),
            })
        }
        (Link::Lost { .. }, _) => Some("no keeper answers; nothing was asked".to_owned()),
        (Link::Waiting, _) | (_, None) => Some("not connected to the keeper yet; nothing was asked".to_owned()),
        _ => None,
    }
}

/// Returns the reason why a confirmation box cannot open: the screen is too small to show it.
fn unseen(state: &State) -> Option<String> {
    let (width, height) = state.screen.size;
    (width < SMALLEST.0 || height < SMALLEST.1)
        .then(|| format!("too small to ask here; from {}×{} on, or as a command", SMALLEST.0, SMALLEST.1))
}

/// Closes a box that no longer fits the screen: no key may answer a question that is not visible.
pub fn close_unseen(state: &mut State) {
    let asks = !matches!(state.screen.mode, Mode::Normal | Mode::Filter);
    if let Some(why) = unseen(state).filter(|_| asks) {
        state.screen.mode = Mode::Normal;
        say(state, why, true);
    }
}

fn refuse(state: &mut State, why: String) -> Vec<Effect> {
    say(state, why, true);
    vec![Effect::Redraw]
}

fn ask(state: &mut State, request: Request, words: &str) -> Vec<Effect> {
    if let Some(why) = refusal(state) {
        return refuse(state, why);
    }
    say(state, words, false);
    vec![Effect::Send(request), Effect::Redraw]
}

fn preview(state: &mut State, direction: isize) -> Vec<Effect> {
    if let Some(why) = refusal(state) {
        return refuse(state, why);
    }
    let Some(rung) = state.rung() else {
        return refuse(state, "this run has no ladder to shift on".to_owned());
    };
    let Some(to) = rung.checked_add_signed(direction).filter(|to| *to < state.ladder.len()) else {
        let end = if direction > 0 { "safest rung; there is none below" } else { "fastest rung; there is none above" };
        let text = format!("{} is the {end}", state.ladder[rung].name);
        return refuse(state, text);
    };
    show_preview(state, to)
}

fn show_preview(state: &mut State, to: usize) -> Vec<Effect> {
    if let Some(why) = unseen(state) {
        refuse(state, why)
    } else {
        state.screen.mode = Mode::Preview { to };
        vec![Effect::Redraw]
    }
}

/// Moves the open preview to another rung, skipping the current one.
pub fn move_preview(state: &mut State, to: usize, direction: isize) -> Vec<Effect> {
    let last = state.ladder.len().saturating_sub(1);
    let mut next = to.saturating_add_signed(direction).min(last);
    if Some(next) == state.rung() {
        next = next.saturating_add_signed(direction).min(last);
    }
    if Some(next) != state.rung() {
        state.screen.mode = Mode::Preview { to: next };
    }
    vec![Effect::Redraw]
}

/// Confirms the open preview.
pub fn confirm_shift(state: &mut State, to: usize) -> Vec<Effect> {
    state.screen.mode = Mode::Normal;
    let Some(name) = state.ladder.get(to).map(|rung| rung.name.clone()) else { return vec![Effect::Redraw] };
    if Some(to) == state.rung() {
        return refuse(state, format!("the run is on {name} already"));
    }
    ask(state, Request::Shift { to: Target::Rung(name.clone()) }, &format!("asked the keeper to shift to {name}"))
}

fn pause(state: &mut State) -> Vec<Effect> {
    match state.run_state() {
        Some(RunState::Paused) => ask(state, Request::Resume, "asked the keeper to go on"),
        _ => ask(state, Request::Pause, "asked the keeper to pause: save, then free the memory"),
    }
}

fn autopilot(state: &mut State) -> Vec<Effect> {
    let on = !state.status().is_some_and(|status| status.autopilot);
    let words = if on { "asked for the autopilot" } else { "asked the autopilot to stand back" };
    ask(state, Request::Autopilot { on }, words)
}

fn accept(state: &mut State) -> Vec<Effect> {
    if state.status().is_none_or(|status| status.proposal.is_none()) {
        return refuse(state, "the keeper proposes nothing".to_owned());
    }
    ask(state, Request::Accept, "accepted what the keeper proposes")
}

fn stop(state: &mut State) -> Vec<Effect> {
    if let Some(why) = refusal(state).or_else(|| unseen(state)) {
        return refuse(state, why);
    }
    state.screen.mode = Mode::Stop;
    vec![Effect::Redraw]
}

fn show(state: &mut State, view: View) -> Vec<Effect> {
    state.screen.view = view;
    state.screen.full = None;
    let panels = places_of(state).panels;
    if !panels.iter().any(|(panel, _)| *panel == state.screen.focus) {
        state.screen.focus = panels.first().map_or(state.screen.focus, |(panel, _)| *panel);
    }
    let list = (view == View::Runs).then_some(Effect::ListRuns);
    [Effect::Redraw, Effect::ReadLog].into_iter().chain(list).collect()
}

fn focus(state: &mut State, direction: isize) -> Vec<Effect> {
    let panels = places_of(state).panels;
    let here = panels.iter().position(|(panel, _)| *panel == state.screen.focus);
    let next = here.map_or(Some(0), |here| here.checked_add_signed(direction)).and_then(|next| panels.get(next));
    // Wrap around at either end.
    let other_end = if direction > 0 { panels.first() } else { panels.last() };
    if let Some((panel, _)) = next.or(other_end) {
        state.screen.focus = *panel;
    }
    vec![Effect::Redraw]
}

/// Scrolls a panel: positive is up, towards older entries.
pub fn scroll(state: &mut State, panel: Panel, lines: isize) -> Vec<Effect> {
    if matches!(panel, Panel::RunList | Panel::Difference | Panel::Compare) {
        return others::scroll(state, lines);
    }
    if panel == Panel::Rung {
        return scroll(state, Panel::Ladder, lines);
    }
    let screen = &mut state.screen;
    let moved = |back: usize, most: usize| back.saturating_add_signed(lines).min(most.saturating_sub(1));
    match panel {
        Panel::Journal => screen.journal_back = moved(screen.journal_back, state.facts.journal.len()),
        Panel::Log => screen.log_back = moved(screen.log_back, state.facts.log.len()),
        Panel::Checkpoints => screen.checkpoints_back = moved(screen.checkpoints_back, state.facts.checkpoints.len()),
        Panel::Ladder if !state.ladder.is_empty() => {
            let here = screen.chosen_rung.or(state.facts.status.as_ref().map(|status| status.rung)).unwrap_or(0);
            screen.chosen_rung = Some(here.saturating_add_signed(-lines).min(state.ladder.len() - 1));
        }
        Panel::Chart(_) => {
            let zoom = if lines > 0 { Action::ZoomIn } else { Action::ZoomOut };
            return charts::act(state, zoom).unwrap_or_default();
        }
        _ => return Vec::new(),
    }
    vec![Effect::Redraw]
}

/// Handles Enter: opens the chosen rung's preview, the chosen run, or a chart alone; otherwise switches
/// to the focused panel's own view, or from there back to the overview.
fn open(state: &mut State) -> Vec<Effect> {
    match state.screen.focus {
        Panel::Chart(quantity) => return charts::open(state, quantity),
        Panel::RunList => return others::open(state),
        _ => {}
    }
    let on_ladder = matches!(state.screen.focus, Panel::Ladder | Panel::Rung);
    let chosen = state.screen.chosen_rung.filter(|_| on_ladder);
    if let (Some(to), Some(rung)) = (chosen, state.rung())
        && to != rung
        && to < state.ladder.len()
    {
        if let Some(why) = refusal(state) {
            return refuse(state, why);
        }
        return show_preview(state, to);
    }
    let own = state.screen.focus.own_view();
    show(state, if state.screen.view == own { View::Overview } else { own })
}

/// Handles Esc: closes the innermost thing that can be closed.
fn back(state: &mut State) -> Vec<Effect> {
    // The notice expires on its own, so it does not consume the key.
    state.notice = None;
    // An invisible panel does not consume the key either.
    let panels = places_of(state).panels;
    let seen = |wanted: fn(&Panel) -> bool| panels.iter().any(|(panel, _)| wanted(panel));
    if (state.is_orphaned() || state.is_broken()) && !state.screen.trouble_hidden {
        state.screen.trouble_hidden = true;
    } else if state.passage.is_shown(state.now_ms) {
        state.passage = state.passage.closed();
    } else if !state.screen.filter.is_empty() && seen(|panel| *panel == Panel::Journal) {
        state.screen.filter.clear();
    } else if state.screen.chart.cursor.is_some() && seen(|panel| matches!(panel, Panel::Chart(_))) {
        state.screen.chart.cursor = None;
    } else if state.screen.full.is_some() {
        state.screen.full = None;
    } else if state.screen.chosen_rung.is_some() && seen(|panel| *panel == Panel::Ladder) {
        state.screen.chosen_rung = None;
    } else {
        return show(state, View::Overview);
    }
    vec![Effect::Redraw]
}

/// Reports whether an action would currently have an effect; the footer dims the others.
#[must_use]
pub fn is_possible(state: &State, action: Action) -> bool {
    let run = matches!(
        action,
        Action::ShiftDown
            | Action::ShiftUp
            | Action::Checkpoint
            | Action::Restart
            | Action::Pause
            | Action::Autopilot
            | Action::Accept
            | Action::Stop
    );
    if run && refusal(state).is_some() {
        return false;
    }
    match (action, state.rung()) {
        (Action::ShiftDown, Some(rung)) => rung + 1 < state.ladder.len(),
        (Action::ShiftUp, Some(rung)) => rung > 0,
        (Action::ShiftDown | Action::ShiftUp, None) => false,
        (Action::Accept, _) => state.status().is_some_and(|status| status.proposal.is_some()),
        (Action::Checkpoint | Action::Restart, _) => state.run_state() != Some(RunState::Paused),
        _ => true,
    }
}
