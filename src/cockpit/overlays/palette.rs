//! Every action with its key, searchable as you type.

use super::ClickTarget;
use crate::cockpit::search::matching_actions;
use crate::cockpit::state::State;
use crate::cockpit::ui::{self, Popup, Stand};
use crate::cockpit::verdict::Tone;
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

const WIDTH: u16 = 66;
const MOST: u16 = 16;

/// Returns the box and the number of visible list rows.
fn box_area(within: Rect) -> (Rect, usize) {
    let rows = within.height.saturating_sub(6).min(MOST);
    (ui::popup_area(within, (WIDTH, rows + 2), Stand::Middle), usize::from(rows))
}

/// Returns the first visible row of the list.
fn first_visible(chosen: usize, rows: usize) -> usize {
    chosen.saturating_sub(rows.saturating_sub(1))
}

/// Draws the box.
pub fn render(frame: &mut Frame<'_>, within: Rect, chosen: usize, state: &State, theme: &Theme) {
    let (_, rows) = box_area(within);
    let inner = Popup {
        title: "actions",
        size: (WIDTH, u16::try_from(rows).unwrap_or(MOST) + 2),
        tone: Tone::Plain,
        stand: Stand::Middle,
    }
    .open(frame, within, theme);
    let found = matching_actions(&state.screen.search);
    let search = Line::from(vec![
        Span::styled(": ", theme.accent),
        Span::styled(state.screen.search.clone(), theme.strong),
        Span::styled("▏", theme.accent),
        Span::styled(if state.screen.search.is_empty() { "type to search" } else { "" }, theme.dim),
    ]);
    let mut lines = vec![search, Line::default()];
    let width = usize::from(inner.width);
    for (place, entry) in found.iter().enumerate().skip(first_visible(chosen, rows)).take(rows) {
        let keys: Vec<_> = state.keys.keys_of(entry.action).iter().map(|key| key.name()).collect();
        let text = ui::pad(entry.help, width.saturating_sub(12));
        let possible = state.is_possible(entry.action);
        let style = if possible { ratatui::style::Style::new() } else { theme.faint };
        let mut line =
            Line::from(vec![Span::styled(text, style), Span::styled(ui::pad_left(&keys.join(" "), 12), theme.accent)]);
        if place == chosen {
            line = line.patch_style(theme.selected);
        }
        lines.push(line);
    }
    if found.is_empty() {
        lines.push(Line::styled("no matching action", theme.dim));
    }
    ui::render_lines(frame, inner, lines);
}

/// Returns the click target under the mouse.
pub fn click_target(within: Rect, chosen: usize, state: &State, at: (u16, u16)) -> ClickTarget {
    let (area, rows) = box_area(within);
    if !area.contains(at.into()) {
        return ClickTarget::Outside;
    }
    let inner = ui::popup_inner(within, area, Stand::Middle);
    let Some(row) = at.1.checked_sub(inner.y + 2).map(usize::from).filter(|row| *row < rows) else {
        return ClickTarget::Nothing;
    };
    let row = row + first_visible(chosen, rows);
    if row < matching_actions(&state.screen.search).len() { ClickTarget::Row(row) } else { ClickTarget::Nothing }
}
