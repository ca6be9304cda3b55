//! A chart: a heading with the legend and the cursor's reading, the curve, and, on the loss, the
//! evaluations.

use super::curve::{self, Curve, Plot, ends};
use crate::cockpit::plot::axis;
use crate::cockpit::quantity::{Quantity, spot_of};
use crate::cockpit::series::Axis;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::Panel;
use crate::cockpit::ui;
use crate::config::theme::Theme;
use crate::format::{clock, count, figure};
use crate::store::summary::Spot;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

/// Draws the panel.
pub fn render(frame: &mut Frame<'_>, area: Rect, quantity: Quantity, state: &State, theme: &Theme) {
    let focused = state.screen.focus == Panel::Chart(quantity);
    let chart = state.screen.chart;
    let log = chart.log
        && matches!(quantity, Quantity::Loss | Quantity::GradNorm | Quantity::LearningRate | Quantity::Evaluation);
    let evals = (quantity == Quantity::Loss).then(|| eval_range(state)).flatten();
    let hold = quantity.hold(state).or(evals);
    let inner = Rect { y: area.y + area.height.min(1), height: area.height.saturating_sub(1), ..area };
    let plot = curve::draw(frame, inner, Curve { quantity, weight: chart.weight(), log, hold }, state, theme);
    if let Some(plot) = plot.filter(|_| quantity == Quantity::Loss) {
        evaluations(frame, inner, plot, state, theme);
    }
    if plot.is_none() {
        ui::quiet(frame, inner, &quantity.why_nothing(state), theme);
    }
    let unit = plot.map_or("", |plot| plot.unit);
    let title = if unit.is_empty() { quantity.title().to_owned() } else { format!("{}, {unit}", quantity.title()) };
    let room = usize::from(area.width).saturating_sub(title.len() + 6);
    let legend = legend(quantity, plot, state, theme, room);
    ui::heading(frame, area, &title, legend, focused, theme);
}

/// Formats a value for the end of its curve, where the unit does not fit.
#[must_use]
pub fn bare(quantity: Quantity, value: f64, unit: &str) -> String {
    match quantity {
        Quantity::Vram | Quantity::Ram if unit == "MiB" => format!("{value:.1}"),
        Quantity::Throughput => crate::format::rate(value),
        Quantity::Vram | Quantity::Ram => format!("{value:.2}"),
        Quantity::StepTime => figure(value),
        _ => quantity.words(value),
    }
}

/// Returns the visible evaluations: position and loss.
fn seen(state: &State) -> Vec<(f64, f64)> {
    let Some(ends) = ends(state) else { return Vec::new() };
    let chart = state.screen.chart;
    let (start, end) = chart.window(ends);
    let evals = state.facts.evals.values().map(|row| (spot_of(row).on(chart.axis), row.eval.loss));
    evals.filter(|(place, loss)| (start..=end).contains(place) && loss.is_finite()).collect()
}

/// Returns position and loss of the best evaluation whose weights are on disk, if visible.
fn best_seen(state: &State) -> Option<(f64, f64)> {
    let (row, chart) = (state.best()?, state.screen.chart);
    let (start, end) = chart.window(ends(state)?);
    let place = Spot { step: row.step, samples: row.samples, time_ms: row.time_ms }.on(chart.axis);
    (start..=end).contains(&place).then_some((place, row.eval_loss?))
}

fn eval_range(state: &State) -> Option<(f64, f64)> {
    let seen = seen(state);
    let losses = || seen.iter().map(|(_, loss)| *loss);
    Some((losses().reduce(f64::min)?, losses().reduce(f64::max)?))
}

/// Minimum number of columns between diamonds, so that the curve below stays visible.
const APART: u16 = 6;

/// Draws evaluations as diamonds: the best one on disk filled, the newest one labeled. Where they are
/// dense only some are drawn; the evaluation chart shows all of them.
fn evaluations(frame: &mut Frame<'_>, area: Rect, plot: Plot, state: &State, theme: &Theme) {
    let buffer = frame.buffer_mut();
    let seen = seen(state);
    let best = best_seen(state);
    let mut free_left_of = u16::MAX;
    for (place, loss) in seen.iter().rev() {
        let Some(x) = plot.column(*place).filter(|x| *x < free_left_of) else { continue };
        axis::write(buffer, plot.area, x, plot.row(*loss), "◇", theme.second);
        free_left_of = x.saturating_sub(APART);
    }
    if let Some((x, loss)) = best.and_then(|(place, loss)| Some((plot.column(place)?, loss))) {
        axis::write(buffer, plot.area, x, plot.row(loss), "◆", theme.good);
    }
    let Some((_, loss)) = seen.last().copied() else { return };
    let y = plot.row(loss);
    if plot.newest.is_none_or(|value| plot.row(value) != y) {
        axis::write(buffer, area, plot.area.right() + 1, y, &figure(loss), theme.second);
    }
}

/// Formats a position on an axis.
fn place_words(state: &State, axis: Axis, place: f64) -> String {
    match axis {
        Axis::Steps => format!("step {}", count(place.max(0.0).round() as u64)),
        Axis::Samples => {
            let unit = state.status().map_or("samples", |status| status.unit.as_str());
            format!("{} {unit}", count(place.max(0.0).round() as u64))
        }
        Axis::Time => clock(place as i64, state.utc_offset_s),
    }
}

/// Returns the cursor's reading: the exact value of a step, or the range over the steps of a bucket.
fn reading(quantity: Quantity, state: &State) -> Option<String> {
    let axis = state.screen.chart.axis;
    let place = state.screen.chart.cursor?;
    let at = state.facts.series.at(axis, place)?;
    let whereabouts = place_words(state, axis, at.spot().on(axis));
    let skipped = if at.is_skipped() { ", skipped" } else { "" };
    let value = quantity.at(state, axis, place).map_or_else(
        || crate::format::UNKNOWN.to_owned(),
        |extent| match extent.count {
            0 | 1 => quantity.words(f64::from(extent.mean)),
            many => {
                format!("{} to {} ({many} steps)", figure(f64::from(extent.min)), quantity.words(f64::from(extent.max)))
            }
        },
    );
    Some(format!("{whereabouts}  {value}{skipped}"))
}

/// Returns the legend: the visible range and the meaning of the symbols, most important first, as space allows.
fn legend(quantity: Quantity, plot: Option<Plot>, state: &State, theme: &Theme, room: usize) -> Line<'static> {
    let chart = state.screen.chart;
    let mut parts: Vec<Vec<Span<'static>>> = Vec::new();
    if let Some(text) = reading(quantity, state) {
        parts.push(vec![Span::styled(text, theme.accent)]);
    } else if quantity != Quantity::Loss && quantity.names_newest() {
        let newest = plot.and_then(|plot| plot.newest).map(|value| quantity.words(value));
        parts.extend(newest.map(|text| vec![Span::styled(text, theme.strong)]));
    }
    if let (false, Some(ends)) = (chart.is_fit() && chart.follows(), ends(state)) {
        let (start, end) = chart.window(ends);
        let from = place_words(state, chart.axis, start.ceil());
        let text = format!("{from} to {}", place_words(state, chart.axis, end).trim_start_matches("step "));
        parts.push(vec![Span::styled(text, theme.accent)]);
    }
    if chart.log && plot.is_some_and(|plot| plot.scale.is_log()) {
        parts.push(vec![Span::styled("log", theme.accent)]);
    }
    if let Some(highest) = plot.and_then(|plot| plot.cut) {
        let text = format!("▴ beyond, up to {}", quantity.words(highest));
        parts.push(vec![Span::styled(text, theme.second)]);
    }
    if quantity == Quantity::Loss {
        parts.extend(loss_parts(plot, state, theme));
    }
    let mut line = Line::default();
    let mut left_out = false;
    for part in parts {
        let width: usize = part.iter().map(Span::width).sum();
        // The entries after the smoothed line's make no sense without it.
        if left_out || line.width() + width + 3 > room {
            left_out |= part.iter().any(|span| span.content.contains("smoothed"));
            continue;
        }
        if !line.spans.is_empty() {
            line.push_span(Span::raw("   "));
        }
        line.spans.extend(part);
    }
    line
}

fn loss_parts(plot: Option<Plot>, state: &State, theme: &Theme) -> Vec<Vec<Span<'static>>> {
    let chart = state.screen.chart;
    let best = best_seen(state);
    // The best evaluation is one whose weights are on disk; without one, only the lowest loss is shown.
    let (sign, word, best) = match best {
        Some(best) => ("◆", " best ", Some(best)),
        None => ("", "lowest ", plot.and_then(|plot| plot.least)),
    };
    let mut parts = Vec::new();
    if let Some((place, loss)) = best {
        let whereabouts = place_words(state, chart.axis, place).replace("step ", "");
        parts.push(vec![
            Span::styled(sign, theme.good),
            Span::styled(word, theme.dim),
            Span::raw(figure(loss)),
            Span::styled(format!(" @ {whereabouts}"), theme.dim),
        ]);
    }
    let weight = chart.weight();
    let line = plot.map_or(theme.smooth, |plot| plot.style);
    if weight > 0.0 {
        parts.push(vec![Span::styled("━", line), Span::styled(format!(" smoothed {weight:.2}"), theme.dim)]);
        parts.push(vec![Span::styled("⠿", theme.raw), Span::styled(" measured", theme.dim)]);
    } else {
        parts.push(vec![Span::styled("━", line), Span::styled(" measured", theme.dim)]);
    }
    if !seen(state).is_empty() {
        parts.push(vec![Span::styled("◇", theme.second), Span::styled(" evaluation", theme.dim)]);
    }
    parts
}
