//! The time of a step, waiting for data included, in milliseconds.

use super::curve::{self, Curve};
use crate::cockpit::format::percent;
use crate::cockpit::series::Metric;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::Panel;
use crate::cockpit::ui;
use crate::config::theme::Theme;
use ratatui::{Frame, layout::Rect, text::Line};

/// Draws the panel.
pub fn render(frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
    let focused = state.screen.focus == Panel::StepTime;
    let waiting = state.facts.pace().and_then(|pace| pace.waiting);
    let note = waiting.map_or_else(Line::default, |share| {
        Line::styled(format!("{} of it waiting for data", percent(share)), theme.dim)
    });
    let inner = ui::heading(frame, area, "step time, ms", note, focused, theme);
    let curve = Curve { metric: Metric::StepMs, weight: state.screen.chart.weight(), log: false, hold: None };
    if curve::draw(frame, inner, curve, state, theme).is_none() {
        curve::nothing(frame, inner, state, theme);
    }
}
