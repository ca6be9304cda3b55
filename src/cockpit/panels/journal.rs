//! The run's events, newest at the bottom.

use crate::cockpit::state::State;
use crate::cockpit::state::screen::Panel;
use crate::cockpit::ui;
use crate::config::theme::Theme;
use crate::format::clock;
use crate::protocol::control::{JournalKind, JournalRow};
use crate::protocol::worker::Level;
use ratatui::{
    Frame,
    layout::Rect,
    style::Style,
    text::{Line, Span},
};

/// Draws the panel.
pub fn render(frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
    let focused = state.screen.focus == Panel::Journal;
    let filter = state.screen.filter.to_lowercase();
    let holds = |row: &&JournalRow| filter.is_empty() || row.text.to_lowercase().contains(&filter);
    let found =
        if filter.is_empty() { state.facts.journal.len() } else { state.facts.journal.iter().filter(holds).count() };
    let back = state.screen.journal_back.min(found.saturating_sub(1));
    let note = match (back, filter.is_empty()) {
        (0, true) => String::new(),
        (0, false) => format!("{found} of {} hold \"{filter}\"", state.facts.journal.len()),
        (back, _) => format!("{back} newer below"),
    };
    let inner = ui::heading(frame, area, "journal", Line::styled(note, theme.accent), focused, theme);
    if state.facts.journal.is_empty() {
        return ui::quiet(frame, inner, "nothing has happened yet", theme);
    }
    if found == 0 {
        return ui::quiet(frame, inner, "no line holds these words", theme);
    }
    let room = usize::from(inner.height);
    let mut lines: Vec<Line<'static>> = Vec::new();
    for row in state.facts.journal.iter().rev().filter(holds).skip(back) {
        let entry = entry(row, usize::from(inner.width), state.utc_offset_s, theme);
        // Only the first entry may be cut; any other is shown whole or not at all.
        if !lines.is_empty() && lines.len() + entry.len() > room {
            break;
        }
        lines.extend(entry.into_iter().rev());
    }
    lines.truncate(room);
    lines.reverse();
    ui::lines(frame, inner, lines);
}

fn entry(row: &JournalRow, width: usize, offset_s: i32, theme: &Theme) -> Vec<Line<'static>> {
    const INDENT: usize = 11;
    let text_style = match (row.level, row.kind) {
        (Level::Error, _) => theme.danger,
        (Level::Warn, _) => theme.warn,
        (Level::Info, JournalKind::Checkpoint | JournalKind::Note | JournalKind::Health) => theme.dim,
        (Level::Info, _) => Style::new(),
    };
    let sign = match row.kind {
        JournalKind::Shift => Span::styled("┊", theme.accent),
        JournalKind::Restart | JournalKind::Worker => Span::styled("┊", theme.mark),
        JournalKind::Skip => Span::styled("▾", theme.warn),
        JournalKind::Checkpoint => Span::styled("┴", theme.good),
        JournalKind::Injected => Span::styled("×", theme.warn),
        _ => Span::styled("·", theme.faint),
    };
    let rows = ui::wrap(&row.text, width.saturating_sub(INDENT).max(8));
    let mut lines = Vec::with_capacity(rows.len());
    for (place, text) in rows.into_iter().enumerate() {
        let mut line = if place == 0 {
            let time = Span::styled(clock(row.time_ms, offset_s), theme.dim);
            Line::from(vec![time, Span::raw(" "), sign.clone(), Span::raw(" ")])
        } else {
            Line::from(" ".repeat(INDENT))
        };
        line.push_span(Span::styled(text, text_style));
        lines.push(line);
    }
    lines
}
