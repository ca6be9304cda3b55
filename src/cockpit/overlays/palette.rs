//! Every action with its key, searchable as you type.

use super::Hit;
use crate::cockpit::state::State;
use crate::cockpit::ui;
use crate::cockpit::update::act::is_possible;
use crate::cockpit::update::palette::found;
use crate::cockpit::verdict::Tone;
use crate::config::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

const WIDTH: u16 = 66;
const MOST: u16 = 16;

/// Returns the box and the number of visible list rows.
fn area(within: Rect) -> (Rect, usize) {
    let rows = within.height.saturating_sub(6).min(MOST);
    (ui::popup_area(within, (WIDTH, rows + 2), ui::Stand::Middle), usize::from(rows))
}

/// Returns the first visible row of the list.
fn first_shown(chosen: usize, rows: usize) -> usize {
    chosen.saturating_sub(rows.saturating_sub(1))
}

/// Draws the box.
pub fn render(frame: &mut Frame<'_>, within: Rect, chosen: usize, state: &State, theme: &Theme) {
    let (_, rows) = area(within);
    let inner =
        ui::popup(frame, within, (WIDTH, u16::try_from(rows).unwrap_or(MOST) + 2), "actions", Tone::Plain, theme);
    let found = found(&state.screen.search);
    let search = Line::from(vec![
        Span::styled(": ", theme.accent),
        Span::styled(state.screen.search.clone(), theme.strong),
        Span::styled("▏", theme.accent),
        Span::styled(if state.screen.search.is_empty() { "type a few letters" } else { "" }, theme.dim),
    ]);
    let mut lines = vec![search, Line::default()];
    let width = usize::from(inner.width);
    for (place, entry) in found.iter().enumerate().skip(first_shown(chosen, rows)).take(rows) {
        let keys: Vec<_> = state.keys.keys_of(entry.action).iter().map(|key| key.name()).collect();
        let text = ui::pad(entry.help, width.saturating_sub(12));
        let possible = is_possible(state, entry.action);
        let style = if possible { ratatui::style::Style::new() } else { theme.faint };
        let mut line =
            Line::from(vec![Span::styled(text, style), Span::styled(ui::pad_left(&keys.join(" "), 12), theme.accent)]);
        if place == chosen {
            line = line.patch_style(theme.selected);
        }
        lines.push(line);
    }
    if found.is_empty() {
        lines.push(Line::styled("nothing by these letters", theme.dim));
    }
    ui::lines(frame, inner, lines);
}

/// Returns the click target under the mouse.
pub fn hit(within: Rect, chosen: usize, state: &State, at: (u16, u16)) -> Hit {
    let (area, rows) = area(within);
    if !area.contains(at.into()) {
        return Hit::Outside;
    }
    let inner = ui::popup_inner(within, area, ui::Stand::Middle);
    let Some(row) = at.1.checked_sub(inner.y + 2).map(usize::from).filter(|row| *row < rows) else {
        return Hit::Nothing;
    };
    let row = row + first_shown(chosen, rows);
    if row < found(&state.screen.search).len() { Hit::Row(row) } else { Hit::Nothing }
}
