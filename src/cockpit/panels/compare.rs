//! Smoothed losses of several runs on one chart, this run first.

use crate::cockpit::plot::{axis, braille::Braille, curve};
use crate::cockpit::state::State;
use crate::cockpit::state::screen::Panel;
use crate::cockpit::ui;
use crate::config::theme::Theme;
use crate::format::figure;
use crate::series::scale::Scale;
use crate::series::{Axis, Metric, Series};
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};
use unicode_width::UnicodeWidthStr;

/// A run on the chart.
struct Entry<'a> {
    name: &'a str,
    series: Result<&'a Series, String>,
}

const READING: &str = "reading …";

/// Draws the panel.
pub fn render(frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
    let focused = state.screen.focus == Panel::Compare;
    let chart = state.screen.chart;
    let over = if chart.axis == Axis::Samples { "over samples" } else { "over steps" };
    let note = Line::styled(format!("{over}   smoothed {:.2}", chart.weight()), theme.dim);
    let inner = ui::render_heading(frame, area, "losses", note, focused, theme);
    let entries = compared_runs(state);
    let legend_rows = u16::try_from(entries.len()).unwrap_or(0).min(inner.height / 3);
    let legend_area = Rect { y: inner.bottom() - legend_rows, height: legend_rows, ..inner };
    let room = Rect { height: inner.height - legend_rows, ..inner };
    let newest = draw_losses(frame, room, &entries, state, theme);
    let lines = entries.iter().enumerate().map(|(place, entry)| {
        let (text, style) = match &entry.series {
            Err(why) => (why.clone(), theme.warn),
            Ok(_) => {
                (newest.get(place).copied().flatten().map_or_else(|| "no loss yet".to_owned(), figure), theme.strong)
            }
        };
        let width = usize::from(inner.width).saturating_sub(text.width() + 6);
        Line::from(vec![
            Span::styled("━ ", theme.line(place)),
            Span::raw(ui::pad(entry.name, width)),
            Span::raw("  "),
            Span::styled(text, style),
        ])
    });
    ui::render_lines(frame, legend_area, lines.collect());
}

fn compared_runs(state: &State) -> Vec<Entry<'_>> {
    let mut entries = vec![Entry { name: state.run_name(), series: Ok(&state.facts.series) }];
    for name in &state.runs.marked {
        let series = match state.runs.read.get(name) {
            Some(Ok(run)) => run.series.as_ref().ok_or_else(|| READING.to_owned()),
            Some(Err(why)) => Err(why.to_string()),
            None => Err(READING.to_owned()),
        };
        entries.push(Entry { name, series });
    }
    entries
}

/// Draws the curves; returns the newest value of each.
fn draw_losses(
    frame: &mut Frame<'_>,
    area: Rect,
    entries: &[Entry<'_>],
    state: &State,
    theme: &Theme,
) -> Vec<Option<f64>> {
    let chart = state.screen.chart;
    // Runs happened at different times, so they have no common time axis.
    let over = if chart.axis == Axis::Time { Axis::Steps } else { chart.axis };
    let known: Vec<_> = entries.iter().map(|entry| entry.series.as_ref().ok().copied()).collect();
    let ends = known.iter().flatten().filter_map(|series| series.spots()).fold(None, |ends, (first, last)| {
        let (first, last) = (first.on(over), last.on(over));
        Some(ends.map_or((first, last), |(low, high): (f64, f64)| (low.min(first), high.max(last))))
    });
    let Some((start, end)) = ends.filter(|_| area.width >= 20 && area.height >= 5) else {
        ui::render_placeholder(frame, area, "no steps yet", theme);
        return Vec::new();
    };
    let (start, end) = if chart.axis == over { chart.window((start, end)) } else { (start, end) };
    let smooth = |series: &Series, width: usize| {
        let columns = series.columns_on(Metric::Loss, over, start..end, width);
        let before = series.before_on(Metric::Loss, over, start, 256);
        curve::smooth_columns(&columns, chart.weight(), &before)
    };
    let rough: Vec<f64> =
        known.iter().flatten().flat_map(|series| smooth(series, usize::from(area.width))).flatten().collect();
    let (low, high) = (rough.iter().copied().reduce(f64::min), rough.iter().copied().reduce(f64::max));
    let Some(scale) = low.zip(high).and_then(|(low, high)| Scale::new(low, high, chart.log)) else {
        ui::render_placeholder(frame, area, "no finite loss yet", theme);
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
    for (place, series) in known.iter().enumerate().rev() {
        let Some(series) = series else { continue };
        let values = smooth(series, usize::from(plot.width) * 2);
        let mut line = Braille::new(usize::from(plot.width), usize::from(plot.height));
        curve::draw_line(&mut line, &values, |_| false, scale);
        line.paint(plot, buffer, theme.line(place));
        newest[place] = values.into_iter().rev().flatten().next();
    }
    newest
}
