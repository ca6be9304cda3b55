//! A figure of every step as a curve: the part that loss, gradient norm and step time share.
//!
//! ```text
//!          ┊ accumulate           where a shift or restart happened
//!          ┊      ▾               a skipped step
//! 2.0 ┤⡇
//!     │⠈⠑⠢⢄⡀┊          0.312      the newest value, where the curve ends
//!     └────┴─────┬──────          ┴ a checkpoint that is kept
//! ```

use crate::cockpit::format;
use crate::cockpit::plot::{axis, braille::Braille, curve, scale::Scale};
use crate::cockpit::series::{Column, Metric};
use crate::cockpit::state::State;
use crate::cockpit::ui;
use crate::config::theme::Theme;
use ratatui::{Frame, layout::Rect, style::Style};

/// What to draw.
#[derive(Debug, Clone, Copy)]
pub struct Curve {
    /// The figure.
    pub metric: Metric,
    /// Weight of the past in the smoothed line; 0 = as measured alone.
    pub weight: f64,
    /// Logarithmic values.
    pub log: bool,
    /// Further values that the range must hold.
    pub hold: Option<(f64, f64)>,
}

/// Where things lie on a curve that was drawn.
#[derive(Debug, Clone, Copy)]
pub struct Plot {
    /// The cells of the curve itself.
    pub area: Rect,
    /// From values to rows.
    pub scale: Scale,
    /// First and last step seen.
    pub window: (f64, f64),
    /// Whether values lie above the range.
    pub cut: bool,
    /// The newest value as drawn.
    pub newest: Option<f64>,
}

impl Plot {
    /// The column of a step, where it is seen.
    #[must_use]
    pub fn column(&self, step: f64) -> Option<u16> {
        let (start, end) = self.window;
        let share = if end > start { (step - start) / (end - start) } else { 0.0 };
        let last = f64::from(self.area.width.saturating_sub(1));
        (0.0..=1.0).contains(&share).then(|| self.area.x + (share * last).round() as u16)
    }

    /// The row of a value.
    #[must_use]
    pub fn row(&self, value: f64) -> u16 {
        let dots = usize::from(self.area.height) * 4;
        self.area.y + u16::try_from(self.scale.row(value, dots) / 4).unwrap_or(0)
    }
}

const RIGHT: u16 = 8;

/// Draws a curve with its axes and marks; none where there is nothing to draw yet.
pub fn draw(frame: &mut Frame<'_>, area: Rect, curve: Curve, state: &State, theme: &Theme) -> Option<Plot> {
    let series = &state.facts.series;
    let (first, last) = series.ends()?;
    let window = state.screen.chart.window(first, last);
    let names = u16::from(series.segments().len() > 1 && area.height >= 18);
    if area.width < 20 || area.height < 5 {
        return None;
    }
    // The gutter depends on the labels, and they on the range: thin once for it, then draw.
    let rough = series.columns(curve.metric, window.0..window.1, usize::from(area.width));
    let (low, high, cut) = curve::range(&rough)?;
    let (low, high) = curve.hold.map_or((low, high), |(least, most)| (low.min(least), high.max(most)));
    let scale = Scale::new(low, high, curve.log)?;
    let left = axis::gutter(scale, area.height - 3) + 1;
    // Above: names of rungs, skips. Below: the axis and its labels. At the right: the newest value.
    let plot_area = Rect {
        x: area.x + left,
        y: area.y + 1 + names,
        width: area.width.saturating_sub(left + RIGHT),
        height: area.height - 3 - names,
    };
    let mut plot = Plot { area: plot_area, scale, window, cut, newest: None };
    let buffer = frame.buffer_mut();
    let rows = axis::left(buffer, plot_area, left, scale, theme.faint, theme.dim);
    for y in rows {
        axis::write(buffer, plot_area, plot_area.x, y, &"┈".repeat(usize::from(plot_area.width)), theme.faint);
    }
    let labels = axis::step_labels(window.0, window.1, plot_area.width);
    axis::below(buffer, plot_area, labels.into_iter(), theme.faint, theme.dim);
    marks(frame, plot, area.y, state, theme);
    let columns = series.columns(curve.metric, window.0..window.1, usize::from(plot_area.width) * 2);
    plot.newest = lines(frame, &plot, curve, &columns, state, theme);
    skips(frame, plot, &columns, theme);
    if let Some(value) = plot.newest {
        let y = plot.row(value);
        let text = format::figure(value);
        axis::write(frame.buffer_mut(), area, plot_area.right() + 1, y, &text, theme.accent);
    }
    Some(plot)
}

/// The band of what was measured and the line above it; the value where the line ends.
fn lines(
    frame: &mut Frame<'_>,
    plot: &Plot,
    curve: Curve,
    columns: &[Column],
    state: &State,
    theme: &Theme,
) -> Option<f64> {
    let size = (usize::from(plot.area.width), usize::from(plot.area.height));
    let mut band = Braille::new(size.0, size.1);
    curve::draw_band(&mut band, columns, plot.scale);
    let before = state.facts.series.before(curve.metric, plot.window.0, 256);
    let smooth = curve::smooth(columns, curve.weight, before);
    let buffer = frame.buffer_mut();
    if curve.weight > 0.0 {
        band.paint(plot.area, buffer, theme.raw);
        let mut line = Braille::new(size.0, size.1);
        let skipped = |x: usize| columns.get(x).is_some_and(|column| column.skipped > 0 && column.extent.is_none());
        curve::draw_line(&mut line, &smooth, skipped, plot.scale);
        line.paint(plot.area, buffer, theme.smooth);
    } else {
        band.paint(plot.area, buffer, theme.smooth);
    }
    smooth.iter().rev().find_map(|value| *value)
}

/// Shifts and restarts as broken lines with the rung's name, kept checkpoints on the axis.
fn marks(frame: &mut Frame<'_>, plot: Plot, top: u16, state: &State, theme: &Theme) {
    let segments = state.facts.series.segments();
    let row = Rect { y: top, height: 1, ..plot.area };
    let mut free = plot.area.x;
    let buffer = frame.buffer_mut();
    for (before, segment) in segments.iter().zip(segments.iter().skip(1)) {
        let Some(x) = plot.column(segment.first as f64) else { continue };
        for y in top..plot.area.bottom() {
            axis::write(buffer, buffer.area, x, y, "┊", theme.mark);
        }
        let name = state.ladder.get(segment.rung).map_or("", |rung| &rung.name);
        let (name, style) = if before.rung == segment.rung { ("again", theme.dim) } else { (name, theme.mark) };
        let width = u16::try_from(name.chars().count()).unwrap_or(u16::MAX);
        if x >= free && x.saturating_add(width).saturating_add(2) <= plot.area.right() + RIGHT {
            let row = Rect { width: row.width + RIGHT, ..row };
            axis::write(buffer, row, x + 2, top, name, style);
            free = x + width + 3;
        }
    }
    for step in state.facts.checkpoints.values().filter(|row| row.kept).map(|row| row.step) {
        if let Some(x) = plot.column(step as f64) {
            axis::write(buffer, buffer.area, x, plot.area.bottom(), "┴", theme.good);
        }
    }
}

/// Skipped steps, and values beyond the range, in the row above the curve.
fn skips(frame: &mut Frame<'_>, plot: Plot, columns: &[Column], theme: &Theme) {
    let top = plot.area.y - 1;
    let buffer = frame.buffer_mut();
    let mut mark = |place: usize, symbol: &str, style: Style| {
        let x = plot.area.x + u16::try_from(place).unwrap_or(u16::MAX);
        // The name of a rung may stand there.
        let free = buffer.cell((x, top)).is_some_and(|cell| matches!(cell.symbol(), " " | "┊"));
        if free {
            axis::write(buffer, buffer.area, x, top, symbol, style);
        }
    };
    for (place, pair) in columns.chunks(2).enumerate() {
        let above =
            |column: &Column| column.extent.is_some_and(|extent| plot.scale.share(f64::from(extent.max)) >= 1.0);
        if pair.iter().any(|column| column.skipped > 0) {
            mark(place, "▾", theme.warn);
        } else if plot.cut && pair.iter().any(above) {
            mark(place, "▴", theme.dim);
        }
    }
}

/// Says why there is no curve.
pub fn nothing(frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
    let text = match (&state.facts.history_error, state.facts.series.is_empty()) {
        (Some(reason), true) => format!("the run's history could not be read: {reason}"),
        (None, true) if state.is_over() => "the run ended before its first step".to_owned(),
        (None, true) => "no step yet; the curve begins with the first one".to_owned(),
        (_, false) => "no finite value yet".to_owned(),
    };
    ui::quiet(frame, area, &text, theme);
}
