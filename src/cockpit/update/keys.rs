//! Handles keys by mode.

use super::actions::{close_box, confirm_shift, move_preview, perform_action};
use super::focus::focus_visible_panel;
use super::message::Effect;
use super::{menu, palette, replay, typing, worker_end};
use crate::cockpit::action::{Action, Key, TABLE};
use crate::cockpit::overlays;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::{Mode, View};
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
    if let Some(effects) = typing::ignore_key(state, key, action) {
        return effects;
    }
    match (state.screen.mode, key.code) {
        (Mode::Filter, code) => edit_filter(state, code),
        (Mode::Palette { chosen }, code) => palette::press_key(state, code, chosen),
        (Mode::Prompt(prompt), code) => menu::press_prompt_key(state, prompt, code),
        (Mode::Delete, KeyCode::Char('y')) => menu::confirm_delete(state),
        (Mode::WorkerEnd(kind), KeyCode::Char('y')) => worker_end::confirm(state, kind),
        (Mode::Delete | Mode::WorkerEnd(_), KeyCode::Char('n')) => close_box(state),
        (Mode::Help { .. }, _) if action.is_none() => close_box(state),
        _ => action.map_or_else(Vec::new, |action| press_action(state, action)),
    }
}

/// Handles an action in the current mode.
pub fn press_action(state: &mut State, action: Action) -> Vec<Effect> {
    match state.screen.mode {
        Mode::Normal => replay::perform_replay_action(state, action).unwrap_or_else(|| perform_action(state, action)),
        Mode::Filter | Mode::Prompt(_) => Vec::new(),
        Mode::Palette { chosen } => {
            let code = if action == Action::Up { KeyCode::Up } else { KeyCode::Down };
            palette::press_key(state, code, chosen)
        }
        Mode::Help { from } => match action {
            Action::Up => scroll_help(state, from.saturating_sub(1)),
            Action::Down => scroll_help(state, from + 1),
            Action::PageUp => scroll_help(state, from.saturating_sub(10)),
            Action::PageDown => scroll_help(state, from + 10),
            _ => close_box(state),
        },
        Mode::Alerts { from } => match scroll_box(from, overlays::alerts::hidden_rows(state), action) {
            Some(from) => set_mode(state, Mode::Alerts { from }),
            None if closes_box(action) => close_box(state),
            // The remedies that the box names work from here.
            None => {
                state.screen.mode = Mode::Normal;
                perform_action(state, action)
            }
        },
        Mode::Fault { id, from } => match scroll_box(from, overlays::fault::hidden_rows(state.shown(), id), action) {
            Some(from) => set_mode(state, Mode::Fault { id, from }),
            None => close_box(state),
        },
        Mode::Menu { chosen } => match action {
            Action::Confirm => menu::perform_item(state, chosen),
            Action::Up => menu::move_menu(state, chosen, -1),
            Action::Down => menu::move_menu(state, chosen, 1),
            Action::Back | Action::Quit | Action::Menu => close_box(state),
            _ => Vec::new(),
        },
        Mode::Delete => match action {
            Action::Confirm => menu::confirm_delete(state),
            Action::Back | Action::Quit => close_box(state),
            _ => Vec::new(),
        },
        Mode::WorkerEnd(kind) => match action {
            Action::Confirm => worker_end::confirm(state, kind),
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

/// Handles pasted text: only the filter, the palette and a line to type in accept it.
pub fn paste_text(state: &mut State, text: &str) -> Vec<Effect> {
    if let Mode::Prompt(prompt) = state.screen.mode {
        return menu::type_text(state, prompt, text);
    }
    let is_filter = state.screen.mode == Mode::Filter;
    let field = match state.screen.mode {
        Mode::Filter => state.screen.typed_filter(),
        Mode::Palette { .. } => &mut state.screen.search,
        _ => return typing::refuse_paste(state),
    };
    let room = FILTER.saturating_sub(field.chars().count());
    field.extend(text.chars().filter(|letter| !letter.is_control()).take(room));
    if is_filter { apply_filter(state) } else { vec![Effect::Redraw] }
}

/// Maximum length of the filter in characters.
const FILTER: usize = 120;

fn edit_filter(state: &mut State, code: KeyCode) -> Vec<Effect> {
    let filter = state.screen.typed_filter();
    match code {
        KeyCode::Char(letter) if filter.chars().count() < FILTER => filter.push(letter),
        KeyCode::Backspace => {
            filter.pop();
        }
        KeyCode::Enter => return close_box(state),
        KeyCode::Esc => {
            filter.clear();
            state.screen.mode = Mode::Normal;
        }
        _ => return Vec::new(),
    }
    apply_filter(state)
}

/// Shows the first of what a changed filter found.
fn apply_filter(state: &mut State) -> Vec<Effect> {
    (state.screen.log_back, state.screen.journal_back, state.screen.charts_from) = (0, 0, 0);
    if state.screen.view == View::Charts {
        focus_visible_panel(state);
    }
    vec![Effect::Redraw]
}

/// Returns the first visible line of a box after an action that scrolls; `hidden` lines do not fit.
fn scroll_box(from: usize, hidden: usize, action: Action) -> Option<usize> {
    let from = match action {
        Action::Up => from.saturating_sub(1),
        Action::PageUp => from.saturating_sub(10),
        Action::Down => from + 1,
        Action::PageDown => from + 10,
        _ => return None,
    };
    Some(from.min(hidden))
}

fn closes_box(action: Action) -> bool {
    matches!(action, Action::Back | Action::Confirm | Action::Quit | Action::Alerts)
}

fn set_mode(state: &mut State, mode: Mode) -> Vec<Effect> {
    state.screen.mode = mode;
    vec![Effect::Redraw]
}

fn scroll_help(state: &mut State, from: usize) -> Vec<Effect> {
    // Every entry, plus a heading and a blank line per group: an upper bound on the number of lines.
    state.screen.mode = Mode::Help { from: from.min(TABLE.len()) };
    vec![Effect::Redraw]
}
