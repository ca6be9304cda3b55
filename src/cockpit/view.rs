//! The screen as a function of the state: panels where the layout puts them, boxes above.

use super::layout::{Room, places};
use super::overlays;
use super::panels;
use super::state::State;
use super::state::screen::Panel;
use crate::config::theme::Theme;
use ratatui::Frame;

/// Draws everything.
pub fn render(frame: &mut Frame<'_>, state: &State, theme: &Theme) {
    let screen = frame.area();
    frame.buffer_mut().set_style(screen, theme.base);
    let places = places((screen.width, screen.height), state.screen.view);
    if places.room == Room::Tiny {
        return panels::tiny::render(frame, screen, state, theme);
    }
    panels::header::render(frame, places.header, state, theme);
    panels::progress::render(frame, places.progress, state, theme);
    panels::verdict::render(frame, places.verdict, state, theme);
    for (panel, area) in places.panels {
        let render = match panel {
            Panel::Loss => panels::loss::render,
            Panel::GradNorm => panels::grad_norm::render,
            Panel::StepTime => panels::step_time::render,
            Panel::Gauges => panels::gauges::render,
            Panel::Trends => panels::trends::render,
            Panel::Ladder => panels::ladder::render,
            Panel::Checkpoints => panels::checkpoints::render,
            Panel::Journal => panels::journal::render,
            Panel::Log => panels::log::render,
        };
        render(frame, area, state, theme);
    }
    panels::footer::render(frame, places.footer, state, theme);
    overlays::render(frame, screen, state, theme);
}

#[cfg(test)]
mod tests;
