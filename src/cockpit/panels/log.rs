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
    let matches = |line: &&String| filter.is_empty() || line.to_lowercase().contains(&filter);
    let found = state.facts.log.iter().filter(matches).count();
    let note = match (filter.is_empty(), state.screen.mode) {
        (true, Mode::Filter) => "type to filter".to_owned(),
        (false, _) => {
            format!("{} of {} match \"{filter}\"", count(found as u64), count(state.facts.log.len() as u64))
        }
        (true, _) => format!("{} filter", state.keys.key_of(Action::Filter)),
    };
    let inner = ui::render_heading(frame, area, "worker log", Line::styled(note, theme.dim), focused, theme);
    if found == 0 {
        let text = match (filter.is_empty(), state.moment.is_some()) {
            (_, true) => "the replay leaves out the worker log",
            (true, false) => "no output yet",
            (false, false) => "no matching lines",
        };
        return ui::render_placeholder(frame, inner, text, theme);
    }
    let room = usize::from(inner.height);
    let back = state.screen.log_back.min(found.saturating_sub(1));
    let newest = state.facts.log.iter().rev().filter(matches).skip(back).take(room);
    let mut lines: Vec<_> =
        newest.map(|text| Line::styled(ui::cut(text, usize::from(inner.width)), line_style(text, theme))).collect();
    lines.reverse();
    ui::render_lines(frame, inner, lines);
}

/// Highlights errors and warnings, recognised by the words loggers use.
fn line_style(text: &str, theme: &Theme) -> Style {
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if has(&["ERROR", "panicked", "error:"]) {
        theme.danger
    } else if has(&["WARN", "warning:"]) {
        theme.warn
    } else {
        theme.dim
    }
}
