//! A metric of several runs on one chart, smoothed where it is noisy, this run first.

use super::component::Component;
use super::run_list::RunList;
use crate::cockpit::action::{Action, ChartAction};
use crate::cockpit::chart_data::evaluation_columns;
use crate::cockpit::plot::braille::Braille;
use crate::cockpit::plot::{axis, curve};
use crate::cockpit::quantity::Quantity;
use crate::cockpit::read_error::ReadError;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::{Panel, View};
use crate::cockpit::update::Effect;
use crate::cockpit::update::run_list::next_compared;
use crate::cockpit::{run_cells as cell, ui};
use crate::protocol::control::EvalRow;
use crate::series::scale::{Scale, above_zero};
use crate::series::{Axis, Extent, Series};
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};
use std::fmt::{self, Write};
use unicode_width::UnicodeWidthStr;

/// A run on the chart.
struct ComparedRun<'a> {
    name: &'a str,
    curves: Result<Curves<'a>, Missing<'a>>,
}

/// Reason why a run has no curve yet.
enum Missing<'a> {
    Reading,
    Failed(&'a ReadError),
}

/// The values of a run.
struct Curves<'a> {
    series: &'a Series,
    evals: Vec<&'a EvalRow>,
}

impl fmt::Display for Missing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reading => f.write_str("reading …"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

/// A metric of several runs.
pub struct Compare;

impl Component for Compare {
    fn render(&self, frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
        let focused = state.screen.focus == Panel::Compare;
        let (chart, quantity) = (state.screen.chart, state.screen.compared);
        let over = if chart.axis == Axis::Samples { "over samples" } else { "over steps" };
        let mut note = over.to_owned();
        if quantity.is_noisy() {
            let _ = write!(note, "   smoothed {:.2}", chart.weight());
        }
        if focused {
            let _ = write!(note, "   {} next metric", state.keys.key_of(Action::PageDown));
        }
        let title = if quantity == Quantity::Loss { "losses".to_owned() } else { quantity.title(&state.facts.metrics) };
        let inner = ui::render_heading(frame, area, &title, Line::styled(note, theme.dim), focused, theme);
        let entries = compared_runs(state);
        let legend_rows = u16::try_from(entries.len()).unwrap_or(0).min(inner.height / 3);
        let legend_area = Rect { y: inner.bottom() - legend_rows, height: legend_rows, ..inner };
        let room = Rect { height: inner.height - legend_rows, ..inner };
        let newest = draw_curves(frame, room, &entries, state, theme);
        let lines = entries.iter().enumerate().map(|(place, entry)| {
            let newest = newest.get(place).copied().flatten().map(|value| quantity.format_value(value));
            let (text, style) = match &entry.curves {
                Err(why) => (why.to_string(), theme.warn),
                Ok(_) => (newest.unwrap_or_else(|| "no value yet".to_owned()), theme.strong),
            };
            // The best value is the ranking metric's, whatever the chart shows.
            let best = state
                .runs
                .row(entry.name)
                .and_then(cell::saved_best)
                .map_or_else(String::new, |best| format!("  best {best}   "));
            let width = usize::from(inner.width).saturating_sub(text.width() + 6);
            let best = if best.width() + 24 <= width { best } else { String::new() };
            Line::from(vec![
                Span::styled("━ ", theme.line(place)),
                Span::raw(ui::pad(entry.name, width - best.width())),
                Span::styled(best, theme.dim),
                Span::raw("  "),
                Span::styled(text, style),
            ])
        });
        ui::render_lines(frame, legend_area, lines.collect());
    }

    fn own_view(&self) -> View {
        View::Runs
    }

    fn actions(&self, _state: &State) -> &'static [Action] {
        &[Action::PageDown, Action::Chart(ChartAction::Axis)]
    }

    fn label(&self, _state: &State, action: Action) -> Option<&'static str> {
        (action == Action::PageDown).then_some("metric")
    }

    fn copy(&self, state: &State) -> Option<String> {
        RunList.copy(state)
    }

    fn scroll(&self, state: &mut State, lines: isize) -> Vec<Effect> {
        RunList.scroll(state, lines)
    }

    fn page(&self, state: &mut State, pages: isize) -> Vec<Effect> {
        next_compared(state, -pages)
    }
}

fn compared_runs(state: &State) -> Vec<ComparedRun<'_>> {
    let facts = &state.facts;
    let own = Curves { series: &facts.series, evals: facts.evals.values().collect() };
    let mut entries = vec![ComparedRun { name: state.run_name(), curves: Ok(own) }];
    for name in &state.runs.marked {
        let curves = match state.runs.read.get(name) {
            Some(Ok(run)) => run
                .series
                .as_ref()
                .map(|series| Curves { series, evals: run.evals.iter().collect() })
                .ok_or(Missing::Reading),
            Some(Err(error)) => Err(Missing::Failed(error)),
            None => Err(Missing::Reading),
        };
        entries.push(ComparedRun { name, curves });
    }
    entries
}

impl Curves<'_> {
    /// Returns the values of a quantity in `width` columns of a window, smoothed if it is noisy.
    fn values(&self, state: &State, over: Axis, (start, end): (f64, f64), width: usize) -> Vec<Option<f64>> {
        let (quantity, metrics) = (state.screen.compared, &state.facts.metrics);
        if let Some(name) = quantity.eval_metric(metrics) {
            let columns = evaluation_columns(self.evals.iter().copied(), name, over, start..end, width);
            return curve::smooth_columns(&columns, 0.0, &[]);
        }
        let Some(metric) = quantity.step_metric(metrics, self.series) else { return vec![None; width] };
        let mut columns = self.series.columns_on(metric, over, start..end, width);
        for column in &mut columns {
            column.extent = column.extent.map(|extent| quantity.in_chart_unit(extent));
        }
        let weight = if quantity.is_noisy() { state.screen.chart.weight() } else { 0.0 };
        let mut before = self.series.before_on(metric, over, start, 256);
        for (value, count) in &mut before {
            let extent = Extent { min: *value, max: *value, mean: *value, count: *count };
            *value = quantity.in_chart_unit(extent).mean;
        }
        curve::smooth_columns(&columns, weight, &before)
    }
}

impl Curves<'_> {
    /// Returns the newest value of a step, as it was measured.
    fn newest(&self, state: &State, over: Axis, end: f64) -> Option<f64> {
        let quantity = state.screen.compared;
        let metric = quantity.step_metric(&state.facts.metrics, self.series)?;
        let (value, _) = *self.series.before_on(metric, over, end.next_up(), 1).last()?;
        Some(f64::from(quantity.in_chart_unit(Extent::one(value)?).mean))
    }
}

/// Draws the curves; returns the newest value of each.
fn draw_curves(
    frame: &mut Frame<'_>,
    area: Rect,
    entries: &[ComparedRun<'_>],
    state: &State,
    theme: &Theme,
) -> Vec<Option<f64>> {
    let chart = state.screen.chart;
    // Runs happened at different times, so they have no common time axis.
    let over = if chart.axis == Axis::Time { Axis::Steps } else { chart.axis };
    let known: Vec<Option<&Curves<'_>>> = entries.iter().map(|entry| entry.curves.as_ref().ok()).collect();
    let ends = known.iter().flatten().filter_map(|curves| curves.series.spots()).fold(None, |ends, (first, last)| {
        let (first, last) = (over.place(first), over.place(last));
        Some(ends.map_or((first, last), |(low, high): (f64, f64)| (low.min(first), high.max(last))))
    });
    let Some((start, end)) = ends.filter(|_| area.width >= 20 && area.height >= 5) else {
        ui::render_placeholder(frame, area, "no steps yet", theme);
        return Vec::new();
    };
    let (start, end) = if chart.axis == over { chart.window((start, end)) } else { (start, end) };
    let values = |curves: &Curves<'_>, width: usize| curves.values(state, over, (start, end), width);
    let rough: Vec<f64> =
        known.iter().flatten().flat_map(|curves| values(curves, usize::from(area.width))).flatten().collect();
    let (low, high) = (rough.iter().copied().reduce(f64::min), rough.iter().copied().reduce(f64::max));
    let value_scale = state.screen.compared.scale(chart.scale);
    let scale = |(low, high): (f64, f64)| {
        let above = above_zero(rough.iter().copied()).unwrap_or(low);
        let log = value_scale.is_log((above, high));
        Scale::new(if log { above } else { low }, high, log)
    };
    let Some(scale) = low.zip(high).and_then(scale) else {
        ui::render_placeholder(frame, area, "no value yet", theme);
        return Vec::new();
    };
    let left = axis::gutter_width(scale, area.height - 2) + 1;
    let plot = Rect { x: area.x + left, width: area.width.saturating_sub(left + 1), height: area.height - 2, ..area };
    let buffer = frame.buffer_mut();
    for y in axis::draw_left_axis(buffer, plot, left, scale, theme.faint, theme.dim) {
        axis::write_text(buffer, plot, plot.x, y, &"┈".repeat(usize::from(plot.width)), theme.faint);
    }
    let labels = axis::position_labels(over, start, end, plot.width, state.utc_offset_s);
    axis::draw_bottom_axis(buffer, plot, labels.into_iter(), theme.faint, theme.dim);
    let mut newest = vec![None; known.len()];
    // This run last, so that it is drawn on top.
    for (place, curves) in known.iter().enumerate().rev() {
        let Some(curves) = curves else { continue };
        let values = values(curves, usize::from(plot.width) * 2);
        let mut line = Braille::new(usize::from(plot.width), usize::from(plot.height));
        curve::draw_line(&mut line, &values, |_| false, scale, 1);
        line.paint_beside(plot, buffer, theme.line(place));
        newest[place] = curves.newest(state, over, end).or_else(|| values.into_iter().rev().flatten().next());
    }
    newest
}
