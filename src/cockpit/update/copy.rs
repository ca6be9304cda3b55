//! Copies what is under the cursor: the value of a chart, a line, a path or a name.

use super::message::Effect;
use crate::cockpit::clipboard;
use crate::cockpit::state::State;
use crate::cockpit::state::requests::Refusal;
use crate::untrusted::text::escape_line;

/// Copies the item under the cursor of the focused panel.
pub fn copy_item(state: &mut State) -> Vec<Effect> {
    if let Some(text) = state.screen.focus.component().copy(state.shown()) {
        return copy_text(&text);
    }
    state.show_notice(Refusal::NothingToCopy.to_string(), true);
    vec![Effect::Redraw]
}

/// Copies one line without control characters: what is pasted into a shell must not run.
pub fn copy_text(text: &str) -> Vec<Effect> {
    vec![Effect::Copy(escape_line(&cut(text.to_owned())).into_owned())]
}

/// Says what was copied.
pub fn confirm_copy(state: &mut State, text: &str) -> Vec<Effect> {
    state.show_notice(format!("copied: {text}"), false);
    vec![Effect::Redraw]
}

fn cut(mut text: String) -> String {
    let end = (0..=clipboard::MOST.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or(0));
    text
}
