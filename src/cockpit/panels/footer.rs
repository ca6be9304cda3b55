//! The last line: keys and their actions, from the table of actions. Actions that are currently
//! impossible are dimmed. If space is short, entries are dropped from the end, except for the palette,
//! help and close.

use crate::cockpit::action::{Action, entry_of};
use crate::cockpit::state::State;
use crate::cockpit::state::screen::{Mode, View};
use crate::config::theme::Theme;
use crate::protocol::control::RunState;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};
use unicode_width::UnicodeWidthStr;

const SHOWN: [Action; 12] = [
    Action::ShiftDown,
    Action::ShiftUp,
    Action::Checkpoint,
    Action::Restart,
    Action::Pause,
    Action::Autopilot,
    Action::Stop,
    Action::View(View::Overview),
    Action::Cursor,
    Action::Replay,
    Action::Filter,
    Action::Smoothing,
];

/// Draws the line.
pub fn render(frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
    frame.buffer_mut().set_style(area, theme.bar);
    let inner = Rect { x: area.x + 1, width: area.width.saturating_sub(2), ..area };
    if state.screen.mode == Mode::Filter {
        let text = vec![
            Span::styled("filter: ", theme.dim),
            Span::styled(state.screen.filter.clone(), theme.strong),
            Span::styled("▏", theme.accent),
            Span::styled("   Enter keep   Esc clear", theme.dim),
        ];
        return frame.render_widget(Line::from(text), inner);
    }
    for (x, action) in place_actions(state, inner) {
        let item = action_item(state, action, theme);
        let width = inner.right().saturating_sub(x);
        frame.render_widget(item, Rect { x, width, ..inner });
    }
}

/// Returns the column of each action on the line.
fn place_actions(state: &State, inner: Rect) -> Vec<(u16, Action)> {
    let width = |action: Action| {
        let (key, label) = key_and_label(state, action);
        key.width() + 1 + label.width() + 2
    };
    let last = [Action::Palette, Action::Help, Action::Quit];
    let mut room = usize::from(inner.width).saturating_sub(last.iter().map(|action| width(*action)).sum());
    // Actions on the run are dropped once the run is gone, which makes room.
    let gone = state.request_refusal().is_some();
    let mut shown: Vec<Action> = Vec::new();
    // A decision waiting for the user comes first.
    let asked = state.is_possible(Action::Accept).then_some(Action::Accept);
    for action in asked.into_iter().chain(SHOWN).filter(|action| !gone || state.is_possible(*action)) {
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
    let inner = Rect { x: area.x + 1, width: area.width.saturating_sub(2), ..area };
    let (_, action) = place_actions(state, inner).into_iter().rev().find(|(x, _)| *x <= column)?;
    state.is_possible(action).then_some(action)
}

/// Returns an action's current key and label.
fn key_and_label(state: &State, action: Action) -> (String, &'static str) {
    let label = entry_of(action).map_or("", |entry| entry.label);
    match action {
        Action::View(_) => ("1-6".to_owned(), "views"),
        Action::Pause if state.run_state() == Some(RunState::Paused) => (state.keys.key_of(action), "resume"),
        _ => (state.keys.key_of(action), label),
    }
}

fn action_item(state: &State, action: Action, theme: &Theme) -> Line<'static> {
    let (key, label) = key_and_label(state, action);
    if state.is_possible(action) {
        Line::from(vec![Span::styled(key, theme.key), Span::raw(format!(" {label}"))])
    } else {
        Line::from(Span::styled(format!("{key} {label}"), theme.faint))
    }
}
