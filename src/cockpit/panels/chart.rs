//! A chart: a heading with the legend and the cursor's reading, the curve, and, on the loss, the
//! evaluations.

use super::component::{Click, Component};
use super::curve::{Plot, draw_curve, evaluation_lines};
use super::geometry::{Curve, Geometry};
use crate::cockpit::action::{Action, ChartAction};
use crate::cockpit::chart_data::evaluation_spot;
use crate::cockpit::plot::axis;
use crate::cockpit::quantity::Quantity;
use crate::cockpit::state::State;
use crate::cockpit::state::opened::Opened;
use crate::cockpit::state::requests::Refusal;
use crate::cockpit::state::screen::{Panel, View};
use crate::cockpit::ui;
use crate::cockpit::update::Effect;
use crate::cockpit::update::charts;
use crate::format::{UNKNOWN, clock, count, figure};
use crate::protocol::control::EvalRow;
use crate::protocol::metrics::LOSS;
use crate::series::Axis;
use crate::store::summary::Spot;
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};
use std::fmt::Write;
use unicode_width::UnicodeWidthStr;

/// Steps after which a value that was not printed again may not be in force any more.
const RECENT: u64 = 200;

/// A metric over the run.
pub struct Chart(pub Quantity);

impl Component for Chart {
    fn render(&self, frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
        let quantity = self.0;
        let focused = state.screen.focus == Panel::Chart(quantity);
        let inner = below_heading(area);
        let plot = draw_curve(frame, inner, curve_of(quantity, state), state, theme);
        if let Some(plot) = plot.filter(|_| quantity == Quantity::Loss) {
            draw_evaluations(frame, inner, plot, state, theme);
        }
        if plot.is_none() {
            ui::render_placeholder(frame, inner, &quantity.why_empty(state), theme);
        }
        let unit = plot.map_or("", |plot| plot.geometry.unit);
        let name = quantity.title(&state.facts.metrics);
        let title = if unit.is_empty() { name } else { format!("{name}, {unit}") };
        let title = if state.is_pinned(quantity) { format!("• {title}") } else { title };
        let room = usize::from(area.width).saturating_sub(title.width() + 6);
        let legend = legend(quantity, plot, state, theme, room);
        ui::render_heading(frame, area, &title, legend, focused, theme);
    }

    fn own_view(&self) -> View {
        View::Charts
    }

    fn actions(&self, _state: &State) -> &'static [Action] {
        &[
            Action::Chart(ChartAction::Cursor),
            Action::Filter,
            Action::PageDown,
            Action::Pin,
            Action::Chart(ChartAction::Smoothing),
            Action::NextGroup,
            Action::Chart(ChartAction::ZoomIn),
            Action::Chart(ChartAction::LogScale),
            Action::Chart(ChartAction::Axis),
        ]
    }

    fn can_act(&self, state: &State, action: Action) -> bool {
        action != Action::PageDown || (state.screen.view == View::Charts && charts::has_more(state))
    }

    fn open(&self, _state: &State) -> Result<Opened, Refusal> {
        Ok(Opened::Chart(self.0))
    }

    fn copy(&self, state: &State) -> Option<String> {
        read_value(state, self.0)
    }

    fn scroll(&self, state: &mut State, lines: isize) -> Vec<Effect> {
        let zoom = if lines > 0 { ChartAction::ZoomIn } else { ChartAction::ZoomOut };
        charts::perform_chart_action(state, zoom)
    }

    fn wheel(&self, state: &mut State, column: u16, lines: isize) -> Vec<Effect> {
        charts::zoom_at(state, column, self.0, if lines > 0 { 0.5 } else { 2.0 })
    }

    fn click(&self, state: &mut State, click: Click) -> Vec<Effect> {
        if click.again { charts::place_cursor(state, click.at.0, self.0) } else { vec![Effect::Redraw] }
    }

    fn drag(&self, state: &mut State, column: u16) -> Vec<Effect> {
        charts::place_cursor(state, column, self.0)
    }
}

/// Returns the value at the chart's cursor, or the newest one: `loss 0.31234 at step 1204`.
fn read_value(state: &State, quantity: Quantity) -> Option<String> {
    let (axis, facts) = (state.screen.chart.axis, &state.facts);
    let place = state.screen.chart.cursor.or(state.curve_ends().map(|(_, last)| last))?;
    let title = quantity.title(&facts.metrics);
    if let Some(name) = quantity.eval_metric(&facts.metrics) {
        let value = |row: &EvalRow| Some((evaluation_spot(row), row.eval.value(name)?));
        let off = |spot: f64| (spot - place).abs();
        let evals = facts.evals.values().filter_map(value);
        let (spot, value) = evals.min_by(|a, b| off(axis.place(a.0)).total_cmp(&off(axis.place(b.0))))?;
        return Some(format!("{title} {value} at step {}", spot.step));
    }
    let extent = quantity.value_at(state, axis, place)?;
    let written =
        |value: f32| if quantity.may_be_log() { value.to_string() } else { quantity.format_value(value.into()) };
    let value = match extent.count {
        0 | 1 => written(extent.mean),
        many => format!("{} to {} over {many} values", written(extent.min), written(extent.max)),
    };
    Some(format!("{title} {value} at step {}", facts.series.at(axis, place)?.spot().step))
}

/// Returns where the chart draws its curve in its panel; `None` if it draws none.
#[must_use]
pub fn chart_geometry(area: Rect, quantity: Quantity, state: &State) -> Option<Geometry> {
    Geometry::lay_out(below_heading(area), curve_of(quantity, state), state)
}

fn below_heading(area: Rect) -> Rect {
    Rect { y: area.y + area.height.min(1), height: area.height.saturating_sub(1), ..area }
}

fn curve_of(quantity: Quantity, state: &State) -> Curve {
    let chart = state.screen.chart;
    let scale = quantity.scale(chart.scale);
    let evaluations = (quantity == Quantity::Loss).then(|| evaluation_range(state)).flatten();
    Curve { quantity, weight: chart.weight(), scale, hold: quantity.held_range(state).or(evaluations) }
}

/// Returns the visible evaluations: position and loss.
fn visible_evaluations(state: &State) -> Vec<(f64, f64)> {
    let Some(ends) = state.curve_ends() else { return Vec::new() };
    let chart = state.screen.chart;
    let (start, end) = chart.window(ends);
    let place = |row: &EvalRow| chart.axis.place(evaluation_spot(row));
    let evals = state.facts.evals.values().filter_map(|row| Some((place(row), row.eval.loss?)));
    evals.filter(|(place, loss)| (start..=end).contains(place) && loss.is_finite()).collect()
}

/// Returns position and loss of the best evaluation whose weights are on disk, if visible.
fn visible_best(state: &State) -> Option<(f64, f64)> {
    let (row, chart) = (state.best()?, state.screen.chart);
    let (start, end) = chart.window(state.curve_ends()?);
    let place = chart.axis.place(Spot { step: row.step, samples: row.samples, time_ms: row.time_ms });
    (start..=end).contains(&place).then_some((place, row.eval_loss?))
}

fn evaluation_range(state: &State) -> Option<(f64, f64)> {
    let window = state.screen.chart.window(state.curve_ends()?);
    let lines = evaluation_lines(state, window).into_iter().flat_map(|(from, to)| [from, to]);
    let losses: Vec<f64> = visible_evaluations(state).into_iter().chain(lines).map(|(_, loss)| loss).collect();
    Some((losses.iter().copied().reduce(f64::min)?, losses.iter().copied().reduce(f64::max)?))
}

/// Minimum number of columns between diamonds, so that the curve below stays visible.
const APART: u16 = 6;

/// Draws evaluations as diamonds on their line: the best one on disk filled, the newest one labeled. Where they are
/// dense only some have a diamond.
fn draw_evaluations(frame: &mut Frame<'_>, area: Rect, plot: Plot, state: &State, theme: &Theme) {
    let (buffer, geometry) = (frame.buffer_mut(), plot.geometry);
    let seen = visible_evaluations(state);
    let best = visible_best(state);
    let mut free_left_of = u16::MAX;
    for (place, loss) in seen.iter().rev() {
        let Some(x) = geometry.column(*place).filter(|x| *x < free_left_of) else { continue };
        axis::write_text(buffer, geometry.area, x, geometry.row(*loss), "◇", theme.second);
        free_left_of = x.saturating_sub(APART);
    }
    if let Some((x, loss)) = best.and_then(|(place, loss)| Some((geometry.column(place)?, loss))) {
        axis::write_text(buffer, geometry.area, x, geometry.row(loss), "◆", theme.good);
    }
    let Some((_, loss)) = seen.last().copied() else { return };
    let y = geometry.row(loss);
    if plot.newest.is_none_or(|value| geometry.row(value) != y) {
        axis::write_text(buffer, area, geometry.area.right() + 1, y, &figure(loss), theme.second);
    }
}

/// Formats a position on an axis, naming it: `step 700`.
pub fn name_place(state: &State, axis: Axis, place: f64) -> String {
    let text = format_place(state, axis, place);
    if axis == Axis::Steps { format!("step {text}") } else { text }
}

/// Formats a position on an axis: `700`, `22 400 samples`, `14:02:11`.
fn format_place(state: &State, axis: Axis, place: f64) -> String {
    match axis {
        Axis::Steps => count(place.max(0.0).round() as u64),
        Axis::Samples => {
            let unit = state.status().map_or("samples", |status| status.unit.as_str());
            format!("{} {unit}", count(place.max(0.0).round() as u64))
        }
        Axis::Time => clock(place as i64, state.utc_offset_s),
    }
}

/// Returns the cursor's reading: the exact value of a step, or the range over the steps of a bucket. Where the line
/// above several charts names the step, they do not repeat it.
fn cursor_reading(quantity: Quantity, state: &State) -> Option<String> {
    let axis = state.screen.chart.axis;
    let place = state.screen.chart.cursor?;
    let at = state.facts.series.at(axis, place)?;
    let shared = state.screen.view == View::Charts && state.screen.full.is_none();
    let whereabouts = if shared { String::new() } else { name_place(state, axis, axis.place(at.spot())) + "  " };
    let skipped = if at.is_skipped() && !shared { ", not finite" } else { "" };
    // Evaluations are apart: the nearest one is read, and says where it is.
    if let Some((near, value)) = quantity.evaluation_at(state, axis, place) {
        return Some(format!("{} @ {}", quantity.format_value(value), format_place(state, axis, near)));
    }
    let value = quantity.value_at(state, axis, place).map_or_else(
        || UNKNOWN.to_owned(),
        |extent| match extent.count {
            0 | 1 => quantity.format_value(f64::from(extent.mean)),
            many => {
                format!(
                    "{} to {} ({many} steps)",
                    figure(f64::from(extent.min)),
                    quantity.format_value(f64::from(extent.max))
                )
            }
        },
    );
    Some(format!("{whereabouts}{value}{skipped}"))
}

/// Returns the step of the newest value, if the run has taken many since: it may not be in force any more.
fn step_of_old(quantity: Quantity, state: &State) -> Option<u64> {
    let metric = quantity.step_metric(&state.facts.metrics, &state.facts.series)?;
    let (step, _) = state.facts.series.newest(metric).filter(|_| state.screen.chart.follows())?;
    let (_, last) = state.facts.series.ends()?;
    (last.saturating_sub(step) > RECENT).then_some(step)
}

/// An entry of the legend.
struct LegendPart {
    spans: Vec<Span<'static>>,
    /// Whether the entries after it make no sense without it.
    explains_rest: bool,
}

impl LegendPart {
    fn new(spans: Vec<Span<'static>>) -> Self {
        Self { spans, explains_rest: false }
    }
}

/// Returns the legend: the visible range and the meaning of the symbols, most important first, as space allows.
fn legend(quantity: Quantity, plot: Option<Plot>, state: &State, theme: &Theme, room: usize) -> Line<'static> {
    let chart = state.screen.chart;
    let mut parts: Vec<LegendPart> = Vec::new();
    if let Some(text) = cursor_reading(quantity, state) {
        parts.push(LegendPart::new(vec![Span::styled(text, theme.accent)]));
    } else if quantity != Quantity::Loss && quantity.names_newest() {
        let newest = plot.and_then(|plot| plot.newest).map(|value| match step_of_old(quantity, state) {
            Some(step) => format!("{} @ {}", quantity.format_value(value), count(step)),
            None => quantity.format_value(value),
        });
        parts.extend(newest.map(|text| LegendPart::new(vec![Span::styled(text, theme.strong)])));
    }
    if let (false, Some(ends)) = (chart.is_fit() && chart.follows(), state.curve_ends()) {
        let (start, end) = chart.window(ends);
        let from = name_place(state, chart.axis, start.ceil());
        let mut text = format!("{from} to {}", format_place(state, chart.axis, end));
        if !chart.follows() {
            let _ = write!(text, ", {} follows", state.keys.key_of(Action::Chart(ChartAction::Follow)));
        }
        parts.push(LegendPart::new(vec![Span::styled(text, theme.accent)]));
    }
    if plot.is_some_and(|plot| plot.geometry.scale.is_log()) {
        parts.push(LegendPart::new(vec![Span::styled("log", theme.accent)]));
    }
    if let Some(highest) = plot.and_then(|plot| plot.geometry.cut) {
        let text = format!("▴ off scale, up to {}", quantity.format_value(highest));
        parts.push(LegendPart::new(vec![Span::styled(text, theme.second)]));
    }
    if quantity == Quantity::Loss {
        parts.extend(loss_legend(plot, state, theme));
    }
    let mut line = Line::default();
    let mut left_out = false;
    for part in parts {
        let width: usize = part.spans.iter().map(Span::width).sum();
        let gap = if line.spans.is_empty() { 0 } else { 3 };
        if left_out || line.width() + gap + width > room {
            left_out |= part.explains_rest;
            continue;
        }
        if !line.spans.is_empty() {
            line.push_span(Span::raw("   "));
        }
        line.spans.extend(part.spans);
    }
    line
}

fn loss_legend(plot: Option<Plot>, state: &State, theme: &Theme) -> Vec<LegendPart> {
    let chart = state.screen.chart;
    let best = visible_best(state);
    // The best evaluation is one whose weights are on disk; without one, only the lowest loss is shown.
    let by = state.status().and_then(|status| status.best.as_ref()).map(|best| best.metric.as_str());
    let (sign, word, best) = match (best, by.filter(|metric| *metric != LOSS)) {
        (Some(best), Some(metric)) => ("◆", format!(" best by {metric} "), Some(best)),
        (Some(best), None) => ("◆", " best ".to_owned(), Some(best)),
        (None, _) => ("", "lowest ".to_owned(), plot.and_then(|plot| plot.least)),
    };
    let mut parts = Vec::new();
    let lowest = best.map(|(place, loss)| {
        let whereabouts = format_place(state, chart.axis, place);
        vec![
            Span::styled(sign, theme.good),
            Span::styled(word, theme.dim),
            Span::raw(figure(loss)),
            Span::styled(format!(" @ {whereabouts}"), theme.dim),
        ]
    });
    let weight = chart.weight();
    let line = plot.map_or(theme.smooth, |plot| plot.style);
    // Without a best evaluation, the lowest value is a measured one, and stands beside that name. A reader would take it for that
    // of the evaluations, if there are any.
    let is_measured = sign.is_empty();
    let lowest = lowest.filter(|_| !is_measured || state.facts.evals.is_empty());
    parts.extend(lowest.clone().filter(|_| !is_measured).map(LegendPart::new));
    let mut measured = vec![Span::styled(" measured", theme.dim)];
    if let Some(lowest) = lowest.filter(|_| is_measured) {
        measured.push(Span::styled(", ", theme.dim));
        measured.extend(lowest);
    }
    if weight > 0.0 {
        let spans = vec![Span::styled("━", line), Span::styled(format!(" smoothing {weight:.2}"), theme.dim)];
        parts.push(LegendPart { spans, explains_rest: true });
        measured.insert(0, Span::styled("⠿", theme.raw));
    } else {
        measured.insert(0, Span::styled("━", line));
    }
    parts.push(LegendPart::new(measured));
    if !visible_evaluations(state).is_empty() {
        parts.push(LegendPart::new(vec![Span::styled("◇", theme.second), Span::styled(" evaluation", theme.dim)]));
    }
    parts
}
