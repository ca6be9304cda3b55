//! The frame of a plot: values on the left, steps or times below.
//!
//! ```text
//!  2.0 ┤⡇
//!      │⠈⢆⡀            ← plot
//!  1.0 ┤  ⠑⢄
//!      └──────┬──────
//!            500
//! ```

use crate::format;
use crate::series::Axis;
use crate::series::scale::{Scale, round_values};
use ratatui::{buffer::Buffer, layout::Rect, style::Style};
use unicode_width::UnicodeWidthStr;

/// Writes `text` from column `x`, clipped to `area`.
pub fn write_text(buffer: &mut Buffer, area: Rect, x: u16, y: u16, text: &str, style: Style) {
    if area.contains((x, y).into()) && buffer.area.contains((x, y).into()) {
        buffer.set_stringn(x, y, text, usize::from(area.right() - x), style);
    }
}

/// Returns the width of the left gutter: the widest value plus a space.
#[must_use]
pub fn gutter_width(scale: Scale, rows: u16) -> u16 {
    let widest = tick_labels(scale, rows).iter().map(|(_, label)| label.width()).max().unwrap_or(0);
    u16::try_from(widest).unwrap_or(8).clamp(4, 9) + 1
}

/// Returns the ticks with their labels, all with the same number of decimals.
fn tick_labels(scale: Scale, rows: u16) -> Vec<(f64, String)> {
    let ticks = scale.ticks(usize::from(rows / 3).clamp(2, 8));
    let smallest = ticks.windows(2).map(|pair| (pair[1] - pair[0]).abs()).fold(f64::INFINITY, f64::min);
    let places = if scale.is_log() || !smallest.is_finite() {
        None
    } else {
        Some(usize::try_from((-smallest.log10()).ceil() as i64).unwrap_or(0).min(7))
    };
    let text = |tick: f64| match places {
        Some(places) if (1e-7..1e5).contains(&smallest) && tick.abs() < 1e6 => format!("{tick:.places$}"),
        _ => format_tick(tick),
    };
    ticks.into_iter().map(|tick| (tick, text(tick))).collect()
}

/// Formats a value without trailing zeros: `0.05`, `2`, `1e-5`.
fn format_tick(value: f64) -> String {
    if value != 0.0 && !(1e-3..1e5).contains(&value.abs()) { format!("{value:.0e}") } else { format!("{value}") }
}

/// Draws the left axis: `area` is the plot, the labels go to its left. Labels too close to the previous
/// one are dropped. Returns the rows that have a label.
pub fn draw_left_axis(
    buffer: &mut Buffer,
    area: Rect,
    gutter: u16,
    scale: Scale,
    line: Style,
    text: Style,
) -> Vec<u16> {
    let axis = area.x.saturating_sub(1);
    for y in area.top()..area.bottom() {
        write_text(buffer, buffer.area, axis, y, "│", line);
    }
    let mut rows: Vec<u16> = Vec::new();
    for (tick, label) in tick_labels(scale, area.height) {
        let dots = usize::from(area.height) * 4;
        let y = area.y + u16::try_from(scale.row(tick, dots) / 4).unwrap_or(0);
        if rows.last().is_some_and(|last| last.abs_diff(y) < 2) {
            continue;
        }
        rows.push(y);
        let width = u16::try_from(label.width()).unwrap_or(0);
        let start = area.x.saturating_sub(2 + width).max(area.x.saturating_sub(gutter + 1));
        write_text(buffer, buffer.area, start, y, &label, text);
        write_text(buffer, buffer.area, axis, y, "┤", line);
    }
    rows
}

/// Draws the axis below `area`, with its labels one row further down; `place` maps a value to a
/// fraction of the width. Labels that would touch the previous one or exceed the area are dropped.
pub fn draw_bottom_axis(
    buffer: &mut Buffer,
    area: Rect,
    labels: impl Iterator<Item = (f64, String)>,
    line: Style,
    text: Style,
) {
    let y = area.bottom();
    write_text(buffer, buffer.area, area.x.saturating_sub(1), y, "└", line);
    for x in area.left()..area.right() {
        write_text(buffer, buffer.area, x, y, "─", line);
    }
    let mut free = area.x.saturating_sub(1);
    for (share, label) in labels.filter(|(share, _)| (0.0..=1.0).contains(share)) {
        let x = area.x + (share * f64::from(area.width.saturating_sub(1))).round() as u16;
        let width = u16::try_from(label.width()).unwrap_or(u16::MAX);
        let start = x.saturating_sub(width / 2).max(area.x.saturating_sub(1));
        if start < free || start.saturating_add(width) > area.right().saturating_add(1) {
            continue;
        }
        write_text(buffer, buffer.area, x, y, "┬", line);
        write_text(buffer, buffer.area, start, y + 1, &label, text);
        free = start + width + 2;
    }
}

/// Returns round positions within a window, with their labels.
#[must_use]
pub fn position_labels(axis: Axis, start: f64, end: f64, width: u16, offset_s: i32) -> Vec<(f64, String)> {
    let wanted = usize::from(width / 12).clamp(1, 12);
    let share = |place: f64| (place - start) / (end - start);
    if axis == Axis::Time {
        return time_labels(start, end, wanted, offset_s).into_iter().map(|(at, text)| (share(at), text)).collect();
    }
    round_values(start, end, wanted)
        .into_iter()
        .filter(|place| *place >= 0.0 && place.fract() == 0.0)
        .map(|place| (share(place), format::count(place as u64)))
        .collect()
}

/// Round durations, in seconds.
const ROUND_S: [i64; 17] = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 43_200, 86_400];

fn time_labels(start: f64, end: f64, wanted: usize, offset_s: i32) -> Vec<(f64, String)> {
    let span_s = (end - start) / 1e3;
    if !(span_s.is_finite() && span_s > 0.0) || start.abs().max(end.abs()) > 1e15 {
        return Vec::new();
    }
    let enough = |step: &i64| span_s / *step as f64 <= wanted as f64;
    let step =
        ROUND_S.into_iter().find(enough).unwrap_or_else(|| ((span_s / wanted as f64) as i64 / 86_400 + 1) * 86_400);
    let offset = i64::from(offset_s);
    let first = (start / 1e3) as i64 + offset;
    let mut at = first.div_euclid(step) * step;
    let mut labels = Vec::new();
    while (at - offset) as f64 * 1e3 <= end && labels.len() <= 2 * wanted {
        let time = (at - offset) * 1000;
        if time as f64 >= start {
            let text = format::clock(time, offset_s);
            labels.push((time as f64, if step < 60 { text } else { text[..5].to_owned() }));
        }
        at += step;
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::position_labels;
    use crate::series::Axis;
    use proptest::prelude::*;

    #[test]
    fn times_are_round_in_local_time() {
        let hour = 3_600e3;
        let labels = position_labels(Axis::Time, 10.0 * hour, 13.0 * hour, 60, 1_800);
        let texts: Vec<_> = labels.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["11:00", "12:00", "13:00"]);
        assert!((labels[0].0 - 1.0 / 6.0).abs() < 1e-9);
    }

    proptest! {
        #[test]
        fn no_window_panics(start: f64, end: f64, width in 0u16..400, offset in -50_000i32..50_000) {
            for axis in [Axis::Steps, Axis::Samples, Axis::Time] {
                prop_assert!(position_labels(axis, start, end, width, offset).len() < 100);
            }
        }
    }
}
