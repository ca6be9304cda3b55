//! What a key means, by mode.

use super::act::{act, confirm_shift, move_preview};
use super::{Effect, say};
use crate::cockpit::action::{Action, Key, TABLE, action_of};
use crate::cockpit::state::State;
use crate::cockpit::state::screen::Mode;
use crate::protocol::control::Request;
use crossterm::event::{KeyCode, KeyEvent, KeyEventKind};

/// A key was pressed.
pub fn press(state: &mut State, event: KeyEvent) -> Vec<Effect> {
    if event.kind == KeyEventKind::Release {
        return Vec::new();
    }
    let key = Key::of(event);
    let action = action_of(key);
    // These mean the same everywhere.
    if key.ctrl {
        return action.map_or_else(Vec::new, |action| act(state, action));
    }
    match state.screen.mode {
        Mode::Normal => action.map_or_else(Vec::new, |action| act(state, action)),
        Mode::Filter => typed(state, key.code),
        Mode::Help { from } => match action {
            Some(Action::Quit) => vec![Effect::Quit],
            Some(Action::Up) => help(state, from.saturating_sub(1)),
            Some(Action::Down) => help(state, from + 1),
            Some(Action::PageUp) => help(state, from.saturating_sub(10)),
            Some(Action::PageDown) => help(state, from + 10),
            _ => close(state),
        },
        Mode::Stop => match (action, key.code) {
            (Some(Action::Confirm), _) | (_, KeyCode::Char('y')) => {
                state.screen.mode = Mode::Normal;
                say(state, "asked the keeper to stop the run", false);
                vec![Effect::Send(Request::Stop), Effect::Redraw]
            }
            (Some(Action::Back | Action::Quit), _) | (_, KeyCode::Char('n')) => close(state),
            _ => Vec::new(),
        },
        Mode::Preview { to } => match action {
            Some(Action::Confirm) => confirm_shift(state, to),
            Some(Action::ShiftDown | Action::Down) => move_preview(state, to, 1),
            Some(Action::ShiftUp | Action::Up) => move_preview(state, to, -1),
            Some(Action::Back | Action::Quit) => close(state),
            _ => Vec::new(),
        },
    }
}

/// Text was pasted: only the filter takes it.
pub fn paste(state: &mut State, text: &str) -> Vec<Effect> {
    if state.screen.mode != Mode::Filter {
        return Vec::new();
    }
    let room = FILTER.saturating_sub(state.screen.filter.chars().count());
    state.screen.filter.extend(text.chars().filter(|letter| !letter.is_control()).take(room));
    state.screen.log_back = 0;
    vec![Effect::Redraw]
}

/// The longest filter, in letters.
const FILTER: usize = 120;

fn typed(state: &mut State, code: KeyCode) -> Vec<Effect> {
    let filter = &mut state.screen.filter;
    match code {
        KeyCode::Char(letter) if filter.chars().count() < FILTER => filter.push(letter),
        KeyCode::Backspace => {
            filter.pop();
        }
        KeyCode::Enter => return close(state),
        KeyCode::Esc => {
            filter.clear();
            return close(state);
        }
        _ => return Vec::new(),
    }
    state.screen.log_back = 0;
    vec![Effect::Redraw]
}

fn help(state: &mut State, from: usize) -> Vec<Effect> {
    // Every entry and a heading and an empty line for each group: more than there are lines.
    state.screen.mode = Mode::Help { from: from.min(TABLE.len()) };
    vec![Effect::Redraw]
}

fn close(state: &mut State) -> Vec<Effect> {
    state.screen.mode = Mode::Normal;
    vec![Effect::Redraw]
}
