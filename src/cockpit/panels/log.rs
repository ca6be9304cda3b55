//! The worker's output, newest at the bottom; only lines that match the filter.

use crate::cockpit::action::Action;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::{Mode, Panel};
use crate::cockpit::ui;
use crate::config::theme::Theme;
use crate::format::count;
use ratatui::{Frame, layout::Rect, style::Style, text::Line};

/// Draws the panel.
pub fn render(frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
    let focused = state.screen.focus == Panel::Log;
    let filter = state.screen.filter.to_lowercase();
    let holds = |line: &&String| filter.is_empty() || line.to_lowercase().contains(&filter);
    let found = state.facts.log.iter().filter(holds).count();
    let note = match (filter.is_empty(), state.screen.mode) {
        (true, Mode::Filter) | (false, _) => {
            format!("{} of {} hold \"{filter}\"", count(found as u64), count(state.facts.log.len() as u64))
        }
        (true, _) => format!("{} filters", state.keys.key_of(Action::Filter)),
    };
    let inner = ui::heading(frame, area, "worker's log", Line::styled(note, theme.dim), focused, theme);
    if found == 0 {
        let text = if filter.is_empty() { "the worker has printed nothing" } else { "no line holds these words" };
        return ui::quiet(frame, inner, text, theme);
    }
    let room = usize::from(inner.height);
    let back = state.screen.log_back.min(found.saturating_sub(1));
    let newest = state.facts.log.iter().rev().filter(holds).skip(back).take(room);
    let mut lines: Vec<_> =
        newest.map(|text| Line::styled(ui::cut(text, usize::from(inner.width)), style(text, theme))).collect();
    lines.reverse();
    ui::lines(frame, inner, lines);
}

/// Highlights errors and warnings, recognised by the words loggers use.
fn style(text: &str, theme: &Theme) -> Style {
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if has(&["ERROR", "panicked", "error:"]) {
        theme.danger
    } else if has(&["WARN", "warning:"]) {
        theme.warn
    } else {
        theme.dim
    }
}
