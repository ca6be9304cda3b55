//! Text typed into the cockpit by mistake, such as a shell command: it starts nothing and confirms nothing.

use super::message::{Effect, Msg};
use crate::cockpit::action::{Action, Key};
use crate::cockpit::state::State;
use crate::cockpit::state::screen::{Mode, Question};
use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// A confirmation counts only this long after its question opened: no one reads it sooner.
const READING_MS: i64 = 300;
/// Number of letters, and of different ones, that arrive at once only as text. A key that is held repeats one letter.
const BURST: (usize, usize) = (4, 3);
/// Number of ignored characters that a notice names.
const NAMED: usize = 24;

/// Starts to guard a question that a message opened.
pub fn observe_question(state: &mut State, before: Mode) {
    let kind = |mode: Mode| std::mem::discriminant(&mode);
    if is_question(state.screen.mode) && kind(state.screen.mode) != kind(before) {
        state.screen.question = Question { opened_ms: state.now_ms, typed: String::new() };
    }
}

/// Handles a key that does not answer the open question; returns `None` for a key that does.
pub fn ignore_key(state: &mut State, key: Key, action: Option<Action>) -> Option<Vec<Effect>> {
    let mode = state.screen.mode;
    if !is_question(mode) || action == Some(Action::Back) {
        return None;
    }
    let question = &mut state.screen.question;
    if question.typed.is_empty() && answers(mode, key, action) {
        let early = state.now_ms.saturating_sub(question.opened_ms) < READING_MS;
        return (early && confirms(key, action))
            .then(|| notice(state, "too early to confirm: read it, then press again"));
    }
    question.typed.push(letter_of(key));
    let typed = shorten(&question.typed);
    let back = state.keys.key_of(Action::Back);
    Some(notice(state, &format!("ignored {typed}: it answers no question; {back} closes this one")))
}

/// Handles the keys of text that arrived at once. Those that would act on the run do nothing.
pub fn press_burst(
    state: &mut State,
    keys: Vec<KeyEvent>,
    press: fn(&mut State, KeyEvent) -> Vec<Effect>,
) -> Vec<Effect> {
    let mut ignored = String::new();
    let mut effects = Vec::new();
    for event in keys {
        let key = Key::from_event(event);
        let acts = state.keys.action_of(key).is_some_and(Action::is_request);
        if state.screen.mode == Mode::Normal && acts {
            ignored.push(letter_of(key));
        } else {
            effects.extend(press(state, event));
        }
    }
    if !ignored.is_empty() {
        let keys = shorten(&ignored);
        effects.extend(notice(state, &format!("ignored {keys}: it arrived as text, not as single keys")));
    }
    effects
}

/// Handles pasted text where nothing accepts text.
pub fn refuse_paste(state: &mut State) -> Vec<Effect> {
    let (filter, palette) = (state.keys.key_of(Action::Filter), state.keys.key_of(Action::Palette));
    notice(state, &format!("ignored the pasted text: {filter} filters, {palette} searches actions"))
}

/// Joins the keys of text that arrived at once.
pub fn join_bursts(batch: impl Iterator<Item = Msg>) -> Vec<Msg> {
    let mut joined = Vec::new();
    let mut text = Vec::new();
    for msg in batch {
        match msg {
            Msg::Key(key) if is_text(key) => text.push(key),
            other => {
                end_burst(&mut joined, &mut text);
                joined.push(other);
            }
        }
    }
    end_burst(&mut joined, &mut text);
    joined
}

fn end_burst(joined: &mut Vec<Msg>, text: &mut Vec<KeyEvent>) {
    let letters: Vec<char> = text.iter().filter_map(|key| key.code.as_char()).collect();
    let mut different = letters.clone();
    different.sort_unstable();
    different.dedup();
    if letters.len() >= BURST.0 && different.len() >= BURST.1 {
        joined.push(Msg::Burst(std::mem::take(text)));
    } else {
        joined.extend(text.drain(..).map(Msg::Key));
    }
}

fn is_text(key: KeyEvent) -> bool {
    let is_plain = (key.modifiers - KeyModifiers::SHIFT).is_empty() && key.kind != KeyEventKind::Release;
    is_plain && matches!(key.code, KeyCode::Char(_) | KeyCode::Enter)
}

fn is_question(mode: Mode) -> bool {
    matches!(mode, Mode::Preview { .. } | Mode::WorkerEnd(_) | Mode::Delete)
}

fn answers(mode: Mode, key: Key, action: Option<Action>) -> bool {
    let moves = matches!(action, Some(Action::ShiftDown | Action::ShiftUp | Action::Down | Action::Up));
    let is_preview = matches!(mode, Mode::Preview { .. });
    let declines = key.code == KeyCode::Char('n') && !is_preview || action == Some(Action::Quit);
    let agrees = if is_preview { action == Some(Action::Confirm) } else { confirms(key, action) };
    agrees || declines || (is_preview && moves) || key.ctrl
}

fn confirms(key: Key, action: Option<Action>) -> bool {
    action == Some(Action::Confirm) || key.code == KeyCode::Char('y')
}

fn letter_of(key: Key) -> char {
    key.code.as_char().unwrap_or('⏎')
}

/// Returns the newest characters, quoted.
fn shorten(typed: &str) -> String {
    let surplus = typed.chars().count().saturating_sub(NAMED);
    let end: String = typed.chars().skip(surplus).collect();
    format!("“{}{end}”", if surplus > 0 { "…" } else { "" })
}

fn notice(state: &mut State, text: &str) -> Vec<Effect> {
    state.show_notice(text, true);
    vec![Effect::Redraw]
}
