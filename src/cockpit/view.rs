//! Renders the state: panels where the layout puts them, boxes on top.

use super::layout::{LayoutInput, Room, lay_out};
use super::overlays;
use super::panels;
use super::state::State;
use crate::theme::Theme;
use ratatui::Frame;

/// Draws everything: the present, or the moment shown in the replay.
pub fn render(frame: &mut Frame<'_>, state: &State, theme: &Theme) {
    draw_panels(frame, state.shown(), theme);
    // Boxes belong to the present, except that of a fault in the journal.
    overlays::render(frame, frame.area(), state, theme);
}

fn draw_panels(frame: &mut Frame<'_>, state: &State, theme: &Theme) {
    let screen = frame.area();
    frame.buffer_mut().set_style(screen, theme.base);
    let places = lay_out((screen.width, screen.height), &LayoutInput::from_state(state));
    if places.room == Room::Tiny {
        return panels::tiny::render(frame, screen, state, theme);
    }
    panels::header::render(frame, places.header, state, theme);
    panels::progress::render(frame, places.progress, state, theme);
    panels::verdict::render(frame, places.verdict, state, theme);
    panels::learning::render(frame, places.learning, state, theme);
    panels::chart_bar::render(frame, places.chart_bar, state, theme);
    for (panel, area) in places.panels {
        panel.component().render(frame, area, state, theme);
    }
    panels::footer::render(frame, places.footer, state, theme);
    panels::tabs::render(frame, places.tabs, state, theme);
}

#[cfg(test)]
mod tests;
