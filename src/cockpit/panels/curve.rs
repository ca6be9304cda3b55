//! A curve of a quantity over the run, with axes and marks: the part all charts share.
//!
//! ```text
//!          ┊ accumulate           where a shift or restart happened, or the learning rate was lowered
//!          ┊      ▾               a skipped step
//! 2.0 ┤⡇
//!     │⠈⠑⠢⢄⡀┊          0.312      the newest value, as measured
//!     └────┴─────┬──────          ┴ a checkpoint that is kept
//! ```

use super::geometry::{Curve, Geometry, RIGHT};
use crate::cockpit::chart_data::evaluation_spot;
use crate::cockpit::plot::{axis, braille::Braille, curve};
use crate::cockpit::quantity::Quantity;
use crate::cockpit::state::State;
use crate::format::learning_rate;
use crate::series::{Column, Extent};
use crate::store::summary::Spot;
use crate::theme::Theme;
use ratatui::{Frame, buffer::Buffer, layout::Rect, style::Style};
use std::borrow::Cow;

/// Thickness of a smoothed line: heavier than the single dots that were measured.
const SMOOTH_DOTS: usize = 2;

/// A drawn curve.
#[derive(Debug, Clone, Copy)]
pub struct Plot {
    /// Where it was drawn.
    pub geometry: Geometry,
    /// Newest value as measured, in the unit of the quantity.
    pub newest: Option<f64>,
    /// Position and value of the minimum: of the smoothed line if there is one, else as measured.
    pub least: Option<(f64, f64)>,
    /// Style of the line at its end.
    pub style: Style,
}

/// Draws a curve with its axes and marks; returns `None` if there is nothing to draw yet.
pub fn draw_curve(frame: &mut Frame<'_>, area: Rect, curve: Curve, state: &State, theme: &Theme) -> Option<Plot> {
    let geometry = Geometry::lay_out(area, curve, state)?;
    let (window, plot_area) = (geometry.window, geometry.area);
    draw_axes(frame, area, geometry, state, theme);
    let limit = curve.quantity.limit(state).map(|limit| limit * geometry.factor);
    draw_limit(frame, geometry, limit, theme);
    draw_marks(frame, geometry, state, theme);
    let dots = usize::from(plot_area.width) * 2;
    let mut columns = curve.quantity.columns(state, geometry.axis, window.0..window.1, dots);
    if (geometry.factor - 1.0).abs() > f64::EPSILON {
        for column in &mut columns {
            column.extent = column.extent.map(|extent| extent.times(geometry.factor as f32));
        }
    }
    let mut plot = draw_lines(frame, geometry, curve, &columns, state, theme);
    draw_skips(frame, geometry, &columns, theme);
    draw_cursor(frame, geometry, state, theme);
    if let Some(value) = plot.newest.filter(|_| curve.quantity.names_newest()) {
        let text = curve.quantity.format_bare(value, geometry.unit);
        // Use the colour at the end of the line.
        axis::write_text(frame.buffer_mut(), area, plot_area.right() + 1, geometry.row(value), &text, plot.style);
    }
    plot.newest = plot.newest.map(|newest| newest / geometry.factor);
    Some(plot)
}

fn draw_axes(frame: &mut Frame<'_>, area: Rect, geometry: Geometry, state: &State, theme: &Theme) {
    let (buffer, plot, window) = (frame.buffer_mut(), geometry.area, geometry.window);
    for y in axis::draw_left_axis(buffer, plot, plot.x - area.x, geometry.scale, theme.faint, theme.dim) {
        axis::write_text(buffer, plot, plot.x, y, &"┈".repeat(usize::from(plot.width)), theme.faint);
    }
    let labels = axis::position_labels(geometry.axis, window.0, window.1, plot.width, state.utc_offset_s);
    axis::draw_bottom_axis(buffer, plot, labels.into_iter(), theme.faint, theme.dim);
    let (unit, margin) = (geometry.axis.unit(), usize::from((plot.x - area.x).saturating_sub(1)));
    if unit.len() < margin {
        let x = plot.x - 2 - u16::try_from(unit.len()).unwrap_or(0);
        axis::write_text(buffer, buffer.area, x, plot.bottom() + 1, unit, theme.dim);
    }
}

/// Draws the warning threshold of a quantity as a thin line.
fn draw_limit(frame: &mut Frame<'_>, plot: Geometry, limit: Option<f64>, theme: &Theme) {
    let Some(limit) = limit.filter(|limit| (0.0..1.0).contains(&plot.scale.share(*limit)) && *limit > 0.0) else {
        return;
    };
    let dashes = "╌".repeat(usize::from(plot.area.width));
    axis::write_text(frame.buffer_mut(), plot.area, plot.area.x, plot.row(limit), &dashes, theme.warn);
}

/// Draws the band of raw values and the line above it, coloured by rung if there were several.
fn draw_lines(
    frame: &mut Frame<'_>,
    plot: Geometry,
    curve: Curve,
    columns: &[Column],
    state: &State,
    theme: &Theme,
) -> Plot {
    let size = (usize::from(plot.area.width), usize::from(plot.area.height));
    let mut band = Braille::new(size.0, size.1);
    curve::draw_band(&mut band, columns, plot.scale);
    let facts = &state.facts;
    let metric = Some(curve.quantity).filter(|quantity| quantity.is_noisy());
    let metric = metric.and_then(|quantity| quantity.step_metric(&facts.metrics, &facts.series));
    let weight = if metric.is_some() { curve.weight } else { 0.0 };
    let before = metric.filter(|_| weight > 0.0).map_or_else(Vec::new, |metric| {
        let raw = facts.series.before_on(metric, plot.axis, plot.window.0, 256);
        let converted = |(value, steps): (f32, u32)| {
            let extent = Extent { min: value, max: value, mean: value, count: steps };
            (curve.quantity.in_chart_unit(extent).mean, steps)
        };
        raw.into_iter().map(converted).collect()
    });
    let smooth = curve::smooth_columns(columns, weight, &before);
    let styles = column_styles(plot, curve.quantity, state, theme);
    let buffer = frame.buffer_mut();
    let style_of = |cell: usize| styles.get(cell).copied().unwrap_or(theme.smooth);
    if weight > 0.0 {
        band.paint(plot.area, buffer, theme.raw);
    } else {
        band.paint_by(plot.area, buffer, style_of);
    }
    // Below the smoothed line, which nothing may hide.
    if curve.quantity == Quantity::Loss {
        draw_evaluation_line(buffer, plot, state, theme);
    }
    if weight > 0.0 {
        let mut line = Braille::new(size.0, size.1);
        let skipped = |x: usize| columns.get(x).is_some_and(|column| column.skipped > 0 && column.extent.is_none());
        curve::draw_line(&mut line, &smooth, skipped, plot.scale, SMOOTH_DOTS);
        line.paint_by(plot.area, buffer, style_of);
    }
    let newest = metric.filter(|_| weight > 0.0).and_then(|metric| {
        let (value, _) = *facts.series.before_on(metric, plot.axis, plot.window.1.next_up(), 1).last()?;
        Some(f64::from(curve.quantity.in_chart_unit(Extent::one(value)?).mean) * plot.factor)
    });
    let newest = newest.or_else(|| smooth.iter().rev().find_map(|value| *value));
    let newest_cell = smooth.iter().rposition(Option::is_some).map_or(0, |place| place / 2);
    let style = styles.get(newest_cell).copied().unwrap_or(theme.smooth);
    let dots = columns.len().saturating_sub(1).max(1) as f64;
    let (start, end) = plot.window;
    // A column holds the mean of its steps; the least one counts, also below a smoothed line.
    let known = columns.iter().enumerate().filter_map(|(x, column)| Some((x, f64::from(column.extent?.min))));
    let smallest = known.min_by(|a, b| a.1.total_cmp(&b.1));
    let least = smallest.map(|(x, value)| (start + (end - start) * x as f64 / dots, value));
    Plot { geometry: plot, newest, least, style }
}

/// Returns the lines between neighbouring evaluations, cut off at the edges of a window.
pub(super) fn evaluation_lines(state: &State, (start, end): (f64, f64)) -> Vec<((f64, f64), (f64, f64))> {
    let axis = state.screen.chart.axis;
    let all = state.facts.evals.values().filter_map(|row| Some((axis.place(evaluation_spot(row)), row.eval.loss?)));
    let all: Vec<(f64, f64)> = all.filter(|(_, loss)| loss.is_finite()).collect();
    let cut = |pair: &[(f64, f64)]| {
        let ((left, from), (right, to)) = (pair[0], pair[1]);
        let at = |place: f64| if right > left { from + (to - from) * (place - left) / (right - left) } else { to };
        let (left, right) = (left.max(start), right.min(end));
        (left <= right).then(|| ((left, at(left)), (right, at(right))))
    };
    all.windows(2).filter_map(cut).collect()
}

/// Draws the line through the evaluations.
fn draw_evaluation_line(buffer: &mut Buffer, plot: Geometry, state: &State, theme: &Theme) {
    let mut line = Braille::new(usize::from(plot.area.width), usize::from(plot.area.height));
    let rows = line.dots_high();
    let dot = |(place, loss): (f64, f64)| Some((plot.dot(place)?, plot.scale.row(loss, rows)));
    for (from, to) in evaluation_lines(state, plot.window) {
        if let (Some(from), Some(to)) = (dot(from), dot(to)) {
            line.line(from, to);
        }
    }
    line.paint(plot.area, buffer, theme.second);
}

/// Returns the style of each column of cells: that of the rung active there.
fn column_styles(plot: Geometry, quantity: Quantity, state: &State, theme: &Theme) -> Vec<Style> {
    let segments = state.facts.series.segments();
    if quantity != Quantity::Loss || segments.iter().all(|segment| segment.rung == segments[0].rung) {
        return vec![theme.smooth; usize::from(plot.area.width)];
    }
    let (start, end) = plot.window;
    let cells = f64::from(plot.area.width.saturating_sub(1).max(1));
    let rung_at = |cell: u16| {
        let place = start + (end - start) * f64::from(cell) / cells;
        let after =
            segments.partition_point(|segment| plot.axis.place(segment.spot) <= place + (end - start) / cells / 2.0);
        segments[after.saturating_sub(1)].rung
    };
    (0..plot.area.width).map(|cell| theme.line(rung_at(cell))).collect()
}

/// A dashed line on a chart, with its name.
struct Mark<'a> {
    spot: Spot,
    name: Cow<'a, str>,
    style: Style,
}

/// Returns shifts, restarts and reductions of the learning rate, oldest first.
fn marks<'a>(state: &'a State, theme: &Theme) -> Vec<Mark<'a>> {
    let segments = state.facts.series.segments();
    let started = segments.iter().zip(segments.iter().skip(1)).map(|(before, segment)| {
        let again = before.rung == segment.rung;
        let name = if again { "restart" } else { state.ladder.get(segment.rung).map_or("", |rung| &rung.name) };
        let style = if again { theme.dim } else { theme.line(segment.rung) };
        Mark { spot: segment.spot, name: name.into(), style }
    });
    let reduced = state.facts.evals.values().filter_map(|row| {
        let reduced = row.eval.reduced.as_ref()?;
        let spot = Spot { step: row.eval.step, samples: row.eval.samples, time_ms: row.time_ms };
        Some(Mark { spot, name: format!("lr {}", learning_rate(reduced.to)).into(), style: theme.dim })
    });
    let mut marks: Vec<Mark<'_>> = started.chain(reduced).collect();
    marks.sort_by_key(|mark| mark.spot.step);
    marks
}

/// Draws shifts, restarts and lower learning rates as dashed lines (newest names win where they would overlap), and
/// kept checkpoints on the axis.
fn draw_marks(frame: &mut Frame<'_>, plot: Geometry, state: &State, theme: &Theme) {
    let buffer = frame.buffer_mut();
    let mut free = plot.area.right() + RIGHT;
    for Mark { spot, name, style } in marks(state, theme).into_iter().rev() {
        let Some(x) = plot.column(plot.axis.place(spot)) else { continue };
        for y in plot.area.y - 1..plot.area.bottom() {
            axis::write_text(buffer, buffer.area, x, y, "┊", theme.mark);
        }
        let Some(top) = plot.names_row else { continue };
        let width = u16::try_from(unicode_width::UnicodeWidthStr::width(&*name)).unwrap_or(u16::MAX);
        if x.saturating_add(width).saturating_add(3) <= free {
            axis::write_text(buffer, buffer.area, x, top, "┊", theme.mark);
            axis::write_text(buffer, buffer.area, x + 2, top, &name, style);
            free = x;
        }
    }
    for row in state.facts.checkpoints.values().filter(|row| row.kept) {
        let spot = Spot { step: row.step, samples: row.samples, time_ms: row.time_ms };
        if let Some(x) = plot.column(plot.axis.place(spot)) {
            axis::write_text(buffer, buffer.area, x, plot.area.bottom(), "┴", theme.good);
        }
    }
}

/// Draws skipped steps, and values beyond the range, in the row above the curve.
fn draw_skips(frame: &mut Frame<'_>, plot: Geometry, columns: &[Column], theme: &Theme) {
    let top = plot.area.y - 1;
    let buffer = frame.buffer_mut();
    for (place, pair) in columns.chunks(2).enumerate() {
        let x = plot.area.x + u16::try_from(place).unwrap_or(u16::MAX);
        let above =
            |column: &Column| column.extent.is_some_and(|extent| plot.scale.share(f64::from(extent.max)) >= 1.0);
        if pair.iter().any(|column| column.skipped > 0) {
            axis::write_text(buffer, buffer.area, x, top, "▾", theme.warn);
        } else if plot.cut.is_some() && pair.iter().any(above) {
            axis::write_text(buffer, buffer.area, x, top, "▴", theme.second);
        }
    }
}

/// Draws the cursor where exact values are read.
fn draw_cursor(frame: &mut Frame<'_>, plot: Geometry, state: &State, theme: &Theme) {
    let Some(x) = state.screen.chart.cursor.and_then(|place| plot.column(place)) else { return };
    let buffer = frame.buffer_mut();
    for y in plot.area.top()..plot.area.bottom() {
        let cell = buffer.cell_mut((x, y));
        if let Some(cell) = cell {
            if matches!(cell.symbol(), " " | "┈" | "╌") {
                cell.set_symbol("│");
            }
            cell.set_style(theme.accent);
        }
    }
    axis::write_text(buffer, buffer.area, x, plot.area.bottom(), "┼", theme.accent);
}
