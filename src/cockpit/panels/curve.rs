//! A curve of a quantity over the run, with axes and marks: the part all charts share.
//!
//! ```text
//!          ┊ accumulate           where a shift or restart happened
//!          ┊      ▾               a skipped step
//! 2.0 ┤⡇
//!     │⠈⠑⠢⢄⡀┊          0.312      the newest value, where the curve ends
//!     └────┴─────┬──────          ┴ a checkpoint that is kept
//! ```

use crate::cockpit::plot::{axis, braille::Braille, curve, scale::Scale};
use crate::cockpit::quantity::Quantity;
use crate::cockpit::series::{Axis, Column};
use crate::cockpit::state::State;
use crate::config::theme::Theme;
use crate::store::summary::Spot;
use ratatui::{Frame, layout::Rect, style::Style};

/// Parameters of a curve.
#[derive(Debug, Clone, Copy)]
pub struct Curve {
    /// The quantity.
    pub quantity: Quantity,
    /// Weight of the past in the smoothed line; 0 shows only the raw values.
    pub weight: f64,
    /// Whether values are logarithmic.
    pub log: bool,
    /// Additional values the range must include.
    pub hold: Option<(f64, f64)>,
}

/// Geometry of a drawn curve.
#[derive(Debug, Clone, Copy)]
pub struct Plot {
    /// Cells of the curve itself.
    pub area: Rect,
    /// Maps values to rows.
    pub scale: Scale,
    /// The x axis.
    pub axis: Axis,
    /// First and last visible position.
    pub window: (f64, f64),
    /// Largest value, if it exceeds the range.
    pub cut: Option<f64>,
    /// Newest value as drawn.
    pub newest: Option<f64>,
    /// Position and value of the smoothed minimum.
    pub least: Option<(f64, f64)>,
    /// Unit of the y axis, for a quantity that has several.
    pub unit: &'static str,
    /// Style of the line at its end.
    pub style: Style,
}

impl Plot {
    /// Returns the column of a position, if visible.
    #[must_use]
    pub fn column(&self, place: f64) -> Option<u16> {
        let (start, end) = self.window;
        let share = if end > start { (place - start) / (end - start) } else { 0.0 };
        let last = f64::from(self.area.width.saturating_sub(1));
        (0.0..=1.0).contains(&share).then(|| self.area.x + (share * last).round() as u16)
    }

    /// Returns the row of a value.
    #[must_use]
    pub fn row(&self, value: f64) -> u16 {
        let dots = usize::from(self.area.height) * 4;
        self.area.y + u16::try_from(self.scale.row(value, dots) / 4).unwrap_or(0)
    }
}

/// Columns reserved for the newest value.
const RIGHT: u16 = 8;

/// Returns the first and the newest position of the run.
#[must_use]
pub fn ends(state: &State) -> Option<(f64, f64)> {
    let axis = state.screen.chart.axis;
    state.facts.series.spots().map(|(first, last)| (first.on(axis), last.on(axis)))
}

/// Draws a curve with its axes and marks; returns `None` if there is nothing to draw yet.
pub fn draw(frame: &mut Frame<'_>, area: Rect, curve: Curve, state: &State, theme: &Theme) -> Option<Plot> {
    let over = state.screen.chart.axis;
    let window = state.screen.chart.window(ends(state)?);
    let with_names = curve.quantity == Quantity::Loss && area.height >= 12 && state.facts.series.segments().len() > 1;
    let names = u16::from(with_names);
    if area.width < 20 || area.height < 4 + names {
        return None;
    }
    // The gutter depends on the labels, and these on the range: thin once to measure, then again to draw.
    let rough = curve.quantity.columns(state, over, window.0..window.1, usize::from(area.width));
    let (low, high, cut) = curve::range(&rough)?;
    let (low, high) = curve.hold.map_or((low, high), |(least, most)| (low.min(least), high.max(most)));
    // Values that the range includes anyway are not cut off.
    let cut = cut.filter(|cut| *cut > high);
    let (unit, factor) = curve.quantity.memory_unit(high);
    let (low, high) = (low * factor, high * factor);
    let scale = Scale::new(low, high, curve.log)?;
    let left = axis::gutter(scale, area.height - 3) + 1;
    // Above: names of rungs and skips. Below: the axis and its labels. On the right: the newest value.
    let plot_area = Rect {
        x: area.x + left,
        y: area.y + 1 + names,
        width: area.width.saturating_sub(left + RIGHT),
        height: area.height - 3 - names,
    };
    let style = theme.smooth;
    let mut plot = Plot { area: plot_area, scale, axis: over, window, cut, newest: None, least: None, unit, style };
    let buffer = frame.buffer_mut();
    let rows = axis::left(buffer, plot_area, left, scale, theme.faint, theme.dim);
    for y in rows {
        axis::write(buffer, plot_area, plot_area.x, y, &"┈".repeat(usize::from(plot_area.width)), theme.faint);
    }
    let labels = axis::labels_over(over, window.0, window.1, plot_area.width, state.utc_offset_s);
    axis::below(buffer, plot_area, labels.into_iter(), theme.faint, theme.dim);
    limit(frame, plot, curve.quantity.limit(state).map(|limit| limit * factor), theme);
    marks(frame, plot, with_names.then_some(area.y), state, theme);
    let mut columns = curve.quantity.columns(state, over, window.0..window.1, usize::from(plot_area.width) * 2);
    if (factor - 1.0).abs() > f64::EPSILON {
        for column in &mut columns {
            column.extent = column.extent.map(|extent| extent.times(factor as f32));
        }
    }
    lines(frame, &mut plot, curve, &columns, state, theme);
    skips(frame, plot, &columns, theme);
    cursor(frame, plot, state, theme);
    if let Some(value) = plot.newest.filter(|_| curve.quantity.names_newest()) {
        let y = plot.row(value);
        let text = super::chart::bare(curve.quantity, value, unit);
        // Use the colour at the end of the line.
        axis::write(frame.buffer_mut(), area, plot.area.right() + 1, y, &text, plot.style);
    }
    plot.newest = plot.newest.map(|newest| newest / factor);
    Some(plot)
}

/// Draws the warning threshold of a quantity as a thin line.
fn limit(frame: &mut Frame<'_>, plot: Plot, limit: Option<f64>, theme: &Theme) {
    let Some(limit) = limit.filter(|limit| (0.0..1.0).contains(&plot.scale.share(*limit)) && *limit > 0.0) else {
        return;
    };
    let dashes = "╌".repeat(usize::from(plot.area.width));
    axis::write(frame.buffer_mut(), plot.area, plot.area.x, plot.row(limit), &dashes, theme.warn);
}

/// Draws the band of raw values and the line above it, coloured by rung if there were several.
fn lines(frame: &mut Frame<'_>, plot: &mut Plot, curve: Curve, columns: &[Column], state: &State, theme: &Theme) {
    let size = (usize::from(plot.area.width), usize::from(plot.area.height));
    let mut band = Braille::new(size.0, size.1);
    curve::draw_band(&mut band, columns, plot.scale);
    let metric = curve.quantity.smoothed();
    let weight = if metric.is_some() { curve.weight } else { 0.0 };
    let before = metric.filter(|_| weight > 0.0).map_or_else(Vec::new, |metric| {
        let raw = state.facts.series.before_on(metric, plot.axis, plot.window.0, 256);
        let shown = |(value, steps): (f32, u32)| {
            let extent = crate::cockpit::series::Extent { min: value, max: value, mean: value, count: steps };
            (curve.quantity.shown(extent).mean, steps)
        };
        raw.into_iter().map(shown).collect()
    });
    let smooth = curve::smooth(columns, weight, &before);
    let styles = styles(*plot, curve.quantity, state, theme);
    let buffer = frame.buffer_mut();
    let style_of = |cell: usize| styles.get(cell).copied().unwrap_or(theme.smooth);
    if weight > 0.0 {
        band.paint(plot.area, buffer, theme.raw);
        let mut line = Braille::new(size.0, size.1);
        let skipped = |x: usize| columns.get(x).is_some_and(|column| column.skipped > 0 && column.extent.is_none());
        curve::draw_line(&mut line, &smooth, skipped, plot.scale);
        line.paint_by(plot.area, buffer, style_of);
    } else {
        band.paint_by(plot.area, buffer, style_of);
    }
    plot.newest = smooth.iter().rev().find_map(|value| *value);
    let newest_cell = smooth.iter().rposition(Option::is_some).map_or(0, |place| place / 2);
    plot.style = styles.get(newest_cell).copied().unwrap_or(theme.smooth);
    let dots = columns.len().saturating_sub(1).max(1) as f64;
    let (start, end) = plot.window;
    let known = smooth.iter().enumerate().filter_map(|(x, value)| Some((x, (*value)?)));
    let smallest = known.min_by(|a, b| a.1.total_cmp(&b.1));
    plot.least = smallest.map(|(x, value)| (start + (end - start) * x as f64 / dots, value));
}

/// Returns the style of each column of cells: that of the rung active there.
fn styles(plot: Plot, quantity: Quantity, state: &State, theme: &Theme) -> Vec<Style> {
    let segments = state.facts.series.segments();
    if quantity != Quantity::Loss || segments.iter().all(|segment| segment.rung == segments[0].rung) {
        return vec![theme.smooth; usize::from(plot.area.width)];
    }
    let (start, end) = plot.window;
    let cells = f64::from(plot.area.width.saturating_sub(1).max(1));
    let rung_at = |cell: u16| {
        let place = start + (end - start) * f64::from(cell) / cells;
        let after =
            segments.partition_point(|segment| segment.spot.on(plot.axis) <= place + (end - start) / cells / 2.0);
        segments[after.saturating_sub(1)].rung
    };
    (0..plot.area.width).map(|cell| theme.line(rung_at(cell))).collect()
}

/// Draws shifts and restarts as dashed lines (newest names win where they would overlap), and kept
/// checkpoints on the axis.
fn marks(frame: &mut Frame<'_>, plot: Plot, names: Option<u16>, state: &State, theme: &Theme) {
    let segments = state.facts.series.segments();
    let buffer = frame.buffer_mut();
    let mut free = plot.area.right() + RIGHT;
    for (before, segment) in segments.iter().zip(segments.iter().skip(1)).rev() {
        let Some(x) = plot.column(segment.spot.on(plot.axis)) else { continue };
        for y in plot.area.y - 1..plot.area.bottom() {
            axis::write(buffer, buffer.area, x, y, "┊", theme.mark);
        }
        let Some(top) = names else { continue };
        let again = before.rung == segment.rung;
        let name = if again { "again" } else { state.ladder.get(segment.rung).map_or("", |rung| &rung.name) };
        let style = if again { theme.dim } else { theme.line(segment.rung) };
        let width = u16::try_from(unicode_width::UnicodeWidthStr::width(name)).unwrap_or(u16::MAX);
        if x.saturating_add(width).saturating_add(3) <= free {
            axis::write(buffer, buffer.area, x, top, "┊", theme.mark);
            axis::write(buffer, buffer.area, x + 2, top, name, style);
            free = x;
        }
    }
    for row in state.facts.checkpoints.values().filter(|row| row.kept) {
        let spot = Spot { step: row.step, samples: row.samples, time_ms: row.time_ms };
        if let Some(x) = plot.column(spot.on(plot.axis)) {
            axis::write(buffer, buffer.area, x, plot.area.bottom(), "┴", theme.good);
        }
    }
}

/// Draws skipped steps, and values beyond the range, in the row above the curve.
fn skips(frame: &mut Frame<'_>, plot: Plot, columns: &[Column], theme: &Theme) {
    let top = plot.area.y - 1;
    let buffer = frame.buffer_mut();
    for (place, pair) in columns.chunks(2).enumerate() {
        let x = plot.area.x + u16::try_from(place).unwrap_or(u16::MAX);
        let above =
            |column: &Column| column.extent.is_some_and(|extent| plot.scale.share(f64::from(extent.max)) >= 1.0);
        if pair.iter().any(|column| column.skipped > 0) {
            axis::write(buffer, buffer.area, x, top, "▾", theme.warn);
        } else if plot.cut.is_some() && pair.iter().any(above) {
            axis::write(buffer, buffer.area, x, top, "▴", theme.second);
        }
    }
}

/// Draws the cursor where exact values are read.
fn cursor(frame: &mut Frame<'_>, plot: Plot, state: &State, theme: &Theme) {
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
    axis::write(buffer, buffer.area, x, plot.area.bottom(), "┼", theme.accent);
}

/// Returns the first and last column of the curve in a chart's area, if there is one.
#[must_use]
pub fn plot_columns(state: &State, panel: crate::cockpit::state::screen::Panel, area: Rect) -> Option<(u16, u16)> {
    let crate::cockpit::state::screen::Panel::Chart(quantity) = panel else { return None };
    let chart = state.screen.chart;
    let window = chart.window(ends(state)?);
    let rough = quantity.columns(state, chart.axis, window.0..window.1, usize::from(area.width));
    let (low, high, _) = curve::range(&rough)?;
    let (low, high) = quantity.hold(state).map_or((low, high), |(least, most)| (low.min(least), high.max(most)));
    let (_, factor) = quantity.memory_unit(high);
    let scale = Scale::new(low * factor, high * factor, false)?;
    let left = axis::gutter(scale, area.height.saturating_sub(4)) + 1;
    let width = area.width.saturating_sub(left + RIGHT);
    (width > 0).then(|| (area.x + left, area.x + left + width - 1))
}
