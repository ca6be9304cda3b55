//! The menu of a run or a checkpoint. Items that are not possible now are dimmed, with the reason.

use super::ClickTarget;
use crate::cockpit::action::Action;
use crate::cockpit::state::State;
use crate::cockpit::ui::{self, KeyLine, Popup, Stand};
use crate::cockpit::verdict::Tone;
use crate::format::count;
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    style::Style,
    text::{Line, Span},
};
use unicode_width::UnicodeWidthStr;

const WIDTH: u16 = 72;

fn title(state: &State) -> String {
    match state.subject.checkpoint {
        Some(step) => format!("checkpoint {}", count(step)),
        None => ui::cut(&state.subject.run, usize::from(WIDTH)),
    }
}

fn size(state: &State) -> (u16, u16) {
    (WIDTH, u16::try_from(state.menu_items().len() + 2).unwrap_or(u16::MAX))
}

fn keys(state: &State) -> KeyLine {
    KeyLine(vec![
        (state.keys.key_of(Action::Confirm), "choose", Action::Confirm),
        (state.keys.key_of(Action::Back), "back", Action::Back),
    ])
}

/// Draws the box.
pub fn render(frame: &mut Frame<'_>, within: Rect, chosen: usize, state: &State, theme: &Theme) {
    let title = title(state);
    let inner =
        Popup { title: &title, size: size(state), tone: Tone::Plain, stand: Stand::Middle }.open(frame, within, theme);
    let width = usize::from(inner.width);
    let mut lines: Vec<Line<'static>> = Vec::new();
    for (place, (item, refusal)) in state.menu_items().into_iter().enumerate() {
        let label = state.item_label(item);
        let line = match refusal {
            None => Line::from(ui::pad(label, width)),
            Some(why) => {
                // The reason is cut rather than the label.
                let room = width.saturating_sub(label.width() + 2);
                let why = ui::pad_left(&why.to_string(), room);
                Line::from(vec![Span::styled(format!("{label}  "), theme.faint), Span::styled(why, theme.dim)])
            }
        };
        lines.push(if place == chosen { line.patch_style(theme.selected) } else { line.style(Style::new()) });
    }
    lines.push(Line::default());
    lines.push(keys(state).render(width, theme));
    ui::render_lines(frame, inner, lines);
}

/// Returns the click target under the mouse.
pub fn click_target(within: Rect, state: &State, at: (u16, u16)) -> ClickTarget {
    let area = ui::popup_area(within, size(state), Stand::Middle);
    if !area.contains(at.into()) {
        return ClickTarget::Outside;
    }
    let inner = ui::popup_inner(within, area, Stand::Middle);
    let (Some(column), Some(row)) = (at.0.checked_sub(inner.x), at.1.checked_sub(inner.y)) else {
        return ClickTarget::Nothing;
    };
    let (row, items) = (usize::from(row), state.menu_items().len());
    match row {
        row if row < items => ClickTarget::Row(row),
        row if row == items + 1 => keys(state)
            .action_at(usize::from(column), usize::from(inner.width))
            .map_or(ClickTarget::Nothing, ClickTarget::Action),
        _ => ClickTarget::Nothing,
    }
}
