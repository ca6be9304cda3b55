//! The frame of a plot: values at the left, steps or times below.
//!
//! ```text
//!  2.0 ┤⡇
//!      │⠈⢆⡀            ← plot
//!  1.0 ┤  ⠑⢄
//!      └──────┬──────
//!            500
//! ```

use super::scale::Scale;
use crate::cockpit::format;
use ratatui::{buffer::Buffer, layout::Rect, style::Style};
use unicode_width::UnicodeWidthStr;

/// Writes `text` from column `x`, as far as `area` reaches.
pub fn write(buffer: &mut Buffer, area: Rect, x: u16, y: u16, text: &str, style: Style) {
    if area.contains((x, y).into()) && buffer.area.contains((x, y).into()) {
        buffer.set_stringn(x, y, text, usize::from(area.right() - x), style);
    }
}

/// Room for the values at the left: as wide as the widest of them, with a space.
#[must_use]
pub fn gutter(scale: Scale, rows: u16) -> u16 {
    let widest = labels(scale, rows).iter().map(|(_, label)| label.width()).max().unwrap_or(0);
    u16::try_from(widest).unwrap_or(8).clamp(4, 9) + 1
}

/// Ticks with their text, all written to the same number of places.
fn labels(scale: Scale, rows: u16) -> Vec<(f64, String)> {
    let ticks = scale.ticks(usize::from(rows / 3).clamp(2, 8));
    let smallest = ticks.windows(2).map(|pair| (pair[1] - pair[0]).abs()).fold(f64::INFINITY, f64::min);
    let places = if scale.is_log() || !smallest.is_finite() {
        None
    } else {
        Some(usize::try_from((-smallest.log10()).ceil() as i64).unwrap_or(0).min(4))
    };
    let text = |tick: f64| match places {
        Some(places) if (1e-4..1e5).contains(&smallest) && tick.abs() < 1e6 => format!("{tick:.places$}"),
        _ => short(tick),
    };
    ticks.into_iter().map(|tick| (tick, text(tick))).collect()
}

/// A value without zeros that say nothing: `0.05`, `2`, `1e-5`.
fn short(value: f64) -> String {
    if value != 0.0 && !(1e-3..1e5).contains(&value.abs()) { format!("{value:.0e}") } else { format!("{value}") }
}

/// Draws the left axis: `area` is the plot, the values stand left of it. Values too close to the
/// one before are left out. Returns the rows that have one.
pub fn left(buffer: &mut Buffer, area: Rect, gutter: u16, scale: Scale, line: Style, text: Style) -> Vec<u16> {
    let axis = area.x.saturating_sub(1);
    for y in area.top()..area.bottom() {
        write(buffer, buffer.area, axis, y, "│", line);
    }
    let mut rows: Vec<u16> = Vec::new();
    for (tick, label) in labels(scale, area.height) {
        let dots = usize::from(area.height) * 4;
        let y = area.y + u16::try_from(scale.row(tick, dots) / 4).unwrap_or(0);
        if rows.last().is_some_and(|last| last.abs_diff(y) < 2) {
            continue;
        }
        rows.push(y);
        let width = u16::try_from(label.width()).unwrap_or(0);
        let start = area.x.saturating_sub(2 + width).max(area.x.saturating_sub(gutter + 1));
        write(buffer, buffer.area, start, y, &label, text);
        write(buffer, buffer.area, axis, y, "┤", line);
    }
    rows
}

/// Draws the axis below `area` and its labels one row further down; `place` gives the share of the
/// width for a value. Labels that would touch the one before, or end beyond the area, are left out.
pub fn below(buffer: &mut Buffer, area: Rect, labels: impl Iterator<Item = (f64, String)>, line: Style, text: Style) {
    let y = area.bottom();
    write(buffer, buffer.area, area.x.saturating_sub(1), y, "└", line);
    for x in area.left()..area.right() {
        write(buffer, buffer.area, x, y, "─", line);
    }
    let mut free = area.x.saturating_sub(1);
    for (share, label) in labels.filter(|(share, _)| (0.0..=1.0).contains(share)) {
        let x = area.x + (share * f64::from(area.width.saturating_sub(1))).round() as u16;
        let width = u16::try_from(label.width()).unwrap_or(u16::MAX);
        let start = x.saturating_sub(width / 2).max(area.x.saturating_sub(1));
        if start < free || start.saturating_add(width) > area.right().saturating_add(1) {
            continue;
        }
        write(buffer, buffer.area, x, y, "┬", line);
        write(buffer, buffer.area, start, y + 1, &label, text);
        free = start + width + 2;
    }
}

/// Round steps within a window, with their text.
#[must_use]
pub fn step_labels(start: f64, end: f64, width: u16) -> Vec<(f64, String)> {
    let wanted = usize::from(width / 12).clamp(1, 12);
    super::scale::round_values(start, end, wanted)
        .into_iter()
        .filter(|step| *step >= 0.0 && step.fract() == 0.0)
        .map(|step| ((step - start) / (end - start), format::count(step as u64)))
        .collect()
}
