//! The last line: the keys that are useful in this view and panel, from the table of actions. Actions that
//! are currently impossible are dimmed. If space is short, entries are dropped from the end, except for the
//! palette, help and close.

use crate::cockpit::action::{Action, ChartAction, entry_of};
use crate::cockpit::state::State;
use crate::cockpit::state::screen::{Mode, Prompt, View};
use crate::cockpit::ui;
use crate::protocol::control::RunState;
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};
use unicode_width::UnicodeWidthStr;

/// Actions on the run.
const RUN: [Action; 7] = [
    Action::ShiftDown,
    Action::ShiftUp,
    Action::Pause,
    Action::Checkpoint,
    Action::Restart,
    Action::Autopilot,
    Action::Stop,
];

/// Actions that every view has.
const ANYWHERE: [Action; 2] = [Action::Replay, Action::Filter];

/// Draws the line.
pub fn render(frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
    // The tabs may stand on the same line.
    let line = Rect { x: 0, width: area.right(), ..area };
    frame.buffer_mut().set_style(line, theme.bar);
    let inner = inner(area);
    if state.screen.mode == Mode::Filter {
        let mut text = Vec::new();
        // The search for charts is written above them.
        if state.screen.view != View::Charts {
            text.extend([
                Span::styled("filter: ", theme.dim),
                Span::styled(state.screen.filter.clone(), theme.strong),
                Span::styled("▏   ", theme.accent),
            ]);
        }
        text.push(Span::styled("Enter keep   Esc clear", theme.dim));
        return ui::render_line(frame, inner, Line::from(text));
    }
    if let Mode::Prompt(prompt) = state.screen.mode {
        return render_prompt(frame, inner, prompt, &state.screen.input, theme);
    }
    for (x, action) in place_actions(state, inner) {
        let item = action_item(state, action, theme);
        let width = inner.right().saturating_sub(x);
        ui::render_line(frame, Rect { x, width, ..inner }, item);
    }
}

/// Draws a line to type in; of a long text, its end.
fn render_prompt(frame: &mut Frame<'_>, area: Rect, prompt: Prompt, input: &str, theme: &Theme) {
    let keys = if prompt == Prompt::FindRuns { "   Enter keep   Esc clear" } else { "   Enter save   Esc back" };
    let room = usize::from(area.width).saturating_sub(prompt.label().width() + keys.width() + 2);
    let text = vec![
        Span::styled(prompt.label(), theme.dim),
        Span::styled(ui::cut_start(input, room), theme.strong),
        Span::styled("▏", theme.accent),
        Span::styled(keys, theme.dim),
    ];
    ui::render_line(frame, area, Line::from(text));
}

fn inner(area: Rect) -> Rect {
    Rect { x: area.x + 1, width: area.width.saturating_sub(2), ..area }
}

/// Returns the actions worth a place here, most important first: on the overview those on the run, in
/// other views those of the focused panel.
fn useful_actions(state: &State) -> Vec<Action> {
    // The menu of an ended run comes first, then a decision waiting for the user, then the alerts.
    let ended = state.is_over().then_some(Action::Menu);
    let asked = [Action::Accept, Action::Alerts].into_iter().filter(|action| state.is_possible(*action));
    let panel = state.screen.focus.component();
    let here: Vec<Action> =
        panel.actions(state).iter().copied().filter(|action| panel.can_act(state, *action)).collect();
    let (first, second) =
        if state.screen.view == View::Overview { (&RUN[..], &here[..]) } else { (&here[..], &RUN[..]) };
    let mut actions: Vec<Action> = Vec::new();
    let all = ended.into_iter().chain(asked).chain(first.iter().copied()).chain(second.iter().copied());
    for action in all.chain(ANYWHERE) {
        if !actions.contains(&action) {
            actions.push(action);
        }
    }
    // Once the run is gone, actions on it give up their place.
    let gone = state.request_refusal().is_some();
    actions.retain(|action| !gone || state.is_possible(*action));
    actions
}

/// Returns the column of each action on the line.
fn place_actions(state: &State, inner: Rect) -> Vec<(u16, Action)> {
    let width = |action: Action| {
        let (key, label) = key_and_label(state, action);
        key.width() + 1 + label.width() + 2
    };
    let last = [Action::Palette, Action::Help, Action::Quit];
    // The last one needs no gap after it.
    let mut room = usize::from(inner.width + 2).saturating_sub(last.iter().map(|action| width(*action)).sum());
    let mut shown: Vec<Action> = Vec::new();
    for action in useful_actions(state) {
        if width(action) > room {
            break;
        }
        room -= width(action);
        shown.push(action);
    }
    let mut x = inner.x;
    let place = |action: Action| {
        let here = x;
        x = x.saturating_add(u16::try_from(width(action)).unwrap_or(u16::MAX));
        (here, action)
    };
    shown.into_iter().chain(last).map(place).collect()
}

/// Returns the action whose text is at a column of the line.
#[must_use]
pub fn action_at(state: &State, area: Rect, column: u16) -> Option<Action> {
    let (_, action) = place_actions(state, inner(area)).into_iter().rev().find(|(x, _)| *x <= column)?;
    state.is_possible(action).then_some(action)
}

/// Returns an action's current key and label.
fn key_and_label(state: &State, action: Action) -> (String, &'static str) {
    let own = state.screen.focus.component().label(state, action);
    let key = match action {
        Action::Chart(ChartAction::Left) => {
            format!("{}{}", state.keys.key_of(action), state.keys.key_of(Action::Chart(ChartAction::Right)))
        }
        Action::Down => arrows(state),
        _ => state.keys.key_of(action),
    };
    let usual = || match action {
        Action::Chart(ChartAction::Left) => "step",
        Action::Down => "scroll",
        Action::Filter if state.screen.view == View::Charts => "find",
        Action::PageDown => "more",
        Action::Pause if state.run_state() == Some(RunState::Paused) => "resume",
        _ => entry_of(action).map_or("", |entry| entry.label),
    };
    (key, own.unwrap_or_else(usual))
}

fn arrows(state: &State) -> String {
    format!("{}{}", state.keys.key_of(Action::Up), state.keys.key_of(Action::Down))
}

fn action_item(state: &State, action: Action, theme: &Theme) -> Line<'static> {
    let (key, label) = key_and_label(state, action);
    if state.is_possible(action) {
        Line::from(vec![Span::styled(key, theme.key), Span::raw(format!(" {label}"))])
    } else {
        Line::from(Span::styled(format!("{key} {label}"), theme.faint))
    }
}
