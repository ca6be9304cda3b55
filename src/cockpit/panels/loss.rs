//! The loss over steps: as measured, smoothed, and what evaluations found.

use super::curve::{self, Curve, Plot};
use crate::cockpit::format::{count, figure};
use crate::cockpit::plot::axis;
use crate::cockpit::series::Metric;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::Panel;
use crate::cockpit::ui;
use crate::config::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

/// Draws the panel.
pub fn render(frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
    let focused = state.screen.focus == Panel::Loss;
    let inner = ui::heading(frame, area, "loss", legend(state, theme, area.width), focused, theme);
    let chart = state.screen.chart;
    let curve = Curve { metric: Metric::Loss, weight: chart.weight(), log: chart.log, hold: eval_range(state) };
    match curve::draw(frame, inner, curve, state, theme) {
        Some(plot) => evaluations(frame, inner, plot, state, theme),
        None => curve::nothing(frame, inner, state, theme),
    }
}

fn seen(state: &State) -> impl Iterator<Item = (f64, f64)> + '_ {
    let ends = state.facts.series.ends();
    let (start, end) = ends.map_or((0.0, -1.0), |(first, last)| state.screen.chart.window(first, last));
    let evals = state.facts.evals.values().map(|row| (row.eval.step as f64, row.eval.loss));
    evals.filter(move |(step, loss)| (start..=end).contains(step) && loss.is_finite())
}

fn eval_range(state: &State) -> Option<(f64, f64)> {
    let losses = || seen(state).map(|(_, loss)| loss);
    Some((losses().reduce(f64::min)?, losses().reduce(f64::max)?))
}

fn evaluations(frame: &mut Frame<'_>, area: Rect, plot: Plot, state: &State, theme: &Theme) {
    let buffer = frame.buffer_mut();
    let mut newest = None;
    for (step, loss) in seen(state) {
        if let Some(x) = plot.column(step) {
            axis::write(buffer, plot.area, x, plot.row(loss), "◆", theme.second);
            newest = Some(loss);
        }
    }
    let Some(loss) = newest else { return };
    let y = plot.row(loss);
    if plot.newest.is_none_or(|value| plot.row(value) != y) {
        axis::write(buffer, area, plot.area.right() + 1, y, &figure(loss), theme.second);
    }
}

/// What the signs mean, or which part is seen; shorter where there is less room.
fn legend(state: &State, theme: &Theme, width: u16) -> Line<'static> {
    let chart = state.screen.chart;
    let mut parts = Vec::new();
    if let (false, Some((first, last))) = (chart.is_fit(), state.facts.series.ends()) {
        let (start, end) = chart.window(first, last);
        let text = format!("steps {} to {}", count(start.ceil() as u64), count(end as u64));
        parts.push(vec![Span::styled(text, theme.accent)]);
    }
    if width >= 70 && !state.facts.evals.is_empty() {
        parts.push(vec![Span::styled("◆", theme.second), Span::styled(" evaluation", theme.dim)]);
    }
    if chart.weight() > 0.0 {
        if width >= 70 {
            parts.push(vec![Span::styled("━", theme.raw), Span::styled(" measured", theme.dim)]);
        }
        let text = format!(" smoothed {:.2}", chart.weight());
        parts.push(vec![Span::styled("━", theme.smooth), Span::styled(text, theme.dim)]);
    } else {
        parts.push(vec![Span::styled("━", theme.smooth), Span::styled(" measured", theme.dim)]);
    }
    if chart.log {
        parts.push(vec![Span::styled("log", theme.accent)]);
    }
    let mut line = Line::default();
    for part in parts {
        if !line.spans.is_empty() {
            line.push_span(Span::raw("   "));
        }
        line.spans.extend(part);
    }
    line
}
