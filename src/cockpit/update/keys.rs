//! Handles keys by mode.

use super::actions::{close_box, confirm_shift, move_preview, perform_action};
use super::message::Effect;
use super::{palette, replay};
use crate::cockpit::action::{Action, Key, TABLE};
use crate::cockpit::state::State;
use crate::cockpit::state::screen::Mode;
use crate::protocol::control::Request;
use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// Handles a key press.
pub fn press_key(state: &mut State, event: KeyEvent) -> Vec<Effect> {
    if event.kind == KeyEventKind::Release {
        return Vec::new();
    }
    // Esc followed quickly by a key arrives as that key with Alt.
    if event.modifiers.contains(KeyModifiers::ALT) && event.code != KeyCode::Esc {
        let apart = |code, modifiers| KeyEvent { code, modifiers, ..event };
        let mut effects = press_key(state, apart(KeyCode::Esc, KeyModifiers::NONE));
        effects.extend(press_key(state, apart(event.code, event.modifiers - KeyModifiers::ALT)));
        return effects;
    }
    let key = Key::from_event(event);
    let action = state.keys.action_of(key);
    // These have the same meaning in every mode.
    if key.ctrl {
        return action.map_or_else(Vec::new, |action| perform_action(state, action));
    }
    match (state.screen.mode, key.code) {
        (Mode::Filter, code) => edit_filter(state, code),
        (Mode::Palette { chosen }, code) => palette::press_key(state, code, chosen),
        (Mode::Stop, KeyCode::Char('y')) => confirm_stop(state),
        (Mode::Stop, KeyCode::Char('n')) => close_box(state),
        (Mode::Help { .. }, _) if action.is_none() => close_box(state),
        _ => action.map_or_else(Vec::new, |action| press_action(state, action)),
    }
}

/// Handles an action in the current mode.
pub fn press_action(state: &mut State, action: Action) -> Vec<Effect> {
    match state.screen.mode {
        Mode::Normal => replay::perform_replay_action(state, action).unwrap_or_else(|| perform_action(state, action)),
        Mode::Filter => Vec::new(),
        Mode::Palette { chosen } => {
            let code = if action == Action::Up { KeyCode::Up } else { KeyCode::Down };
            palette::press_key(state, code, chosen)
        }
        Mode::Help { from } => match action {
            Action::Quit => vec![Effect::Quit],
            Action::Up => scroll_help(state, from.saturating_sub(1)),
            Action::Down => scroll_help(state, from + 1),
            Action::PageUp => scroll_help(state, from.saturating_sub(10)),
            Action::PageDown => scroll_help(state, from + 10),
            _ => close_box(state),
        },
        Mode::Stop => match action {
            Action::Confirm => confirm_stop(state),
            Action::Back | Action::Quit => close_box(state),
            _ => Vec::new(),
        },
        Mode::Preview { to } => match action {
            Action::Confirm => confirm_shift(state, to),
            Action::ShiftDown | Action::Down => move_preview(state, to, 1),
            Action::ShiftUp | Action::Up => move_preview(state, to, -1),
            Action::Back | Action::Quit => close_box(state),
            _ => Vec::new(),
        },
    }
}

fn confirm_stop(state: &mut State) -> Vec<Effect> {
    state.screen.mode = Mode::Normal;
    state.show_notice("stop requested", false);
    vec![Effect::Send(Request::Stop), Effect::Redraw]
}

/// Handles pasted text: only the filter and the palette accept it.
pub fn paste_text(state: &mut State, text: &str) -> Vec<Effect> {
    let field = match state.screen.mode {
        Mode::Filter => &mut state.screen.filter,
        Mode::Palette { .. } => &mut state.screen.search,
        _ => return Vec::new(),
    };
    let room = FILTER.saturating_sub(field.chars().count());
    field.extend(text.chars().filter(|letter| !letter.is_control()).take(room));
    (state.screen.log_back, state.screen.journal_back) = (0, 0);
    vec![Effect::Redraw]
}

/// Maximum length of the filter in characters.
const FILTER: usize = 120;

fn edit_filter(state: &mut State, code: KeyCode) -> Vec<Effect> {
    let filter = &mut state.screen.filter;
    match code {
        KeyCode::Char(letter) if filter.chars().count() < FILTER => filter.push(letter),
        KeyCode::Backspace => {
            filter.pop();
        }
        KeyCode::Enter => return close_box(state),
        KeyCode::Esc => {
            filter.clear();
            return close_box(state);
        }
        _ => return Vec::new(),
    }
    (state.screen.log_back, state.screen.journal_back) = (0, 0);
    vec![Effect::Redraw]
}

fn scroll_help(state: &mut State, from: usize) -> Vec<Effect> {
    // Every entry, plus a heading and a blank line per group: an upper bound on the number of lines.
    state.screen.mode = Mode::Help { from: from.min(TABLE.len()) };
    vec![Effect::Redraw]
}
