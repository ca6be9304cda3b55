//! The norm of the gradient over steps, before clipping.

use super::curve::{self, Curve};
use crate::cockpit::series::Metric;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::Panel;
use crate::cockpit::ui;
use crate::config::theme::Theme;
use ratatui::{Frame, layout::Rect, text::Line};

/// Draws the panel.
pub fn render(frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
    let focused = state.screen.focus == Panel::GradNorm;
    let note = match state.recent_lr() {
        Some(lr) => Line::styled(format!("learning rate {lr:.1e}"), theme.dim),
        None => Line::default(),
    };
    let inner = ui::heading(frame, area, "gradient norm", note, focused, theme);
    let chart = state.screen.chart;
    let curve = Curve { metric: Metric::GradNorm, weight: chart.weight(), log: chart.log, hold: None };
    if curve::draw(frame, inner, curve, state, theme).is_none() {
        curve::nothing(frame, inner, state, theme);
    }
}
