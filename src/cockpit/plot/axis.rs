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
    u16::try_from(widest).unwrap_or(8).clamp(4, WIDEST_LABEL) + 1
}

/// Widest label that gets room of its own.
const WIDEST_LABEL: u16 = 11;

/// Returns the ticks with their labels, no two of them alike.
fn tick_labels(scale: Scale, rows: u16) -> Vec<(f64, String)> {
    let ticks = scale.ticks(usize::from(rows / 3).clamp(2, 8));
    // Within a decade, a logarithmic scale has evenly spaced ticks too.
    let geometric = scale.is_log() && ticks.windows(2).all(|pair| pair[1] > pair[0] * 1.9);
    let labels = if geometric { None } else { plain_labels(&ticks) };
    let labels = labels.unwrap_or_else(|| shortest_labels(&ticks));
    ticks.into_iter().zip(labels).collect()
}

/// Labels evenly spaced ticks, all with the same number of decimals; `None` if the numbers would be too long.
fn plain_labels(ticks: &[f64]) -> Option<Vec<String>> {
    let smallest = ticks.windows(2).map(|pair| (pair[1] - pair[0]).abs()).fold(f64::INFINITY, f64::min);
    let largest = ticks.iter().map(|tick| tick.abs()).fold(0.0, f64::max);
    if !(1e-7..1e6).contains(&smallest) || largest >= 1e6 {
        return None;
    }
    // The distance is a sum of rounded numbers: 0.0999… must count as 0.1.
    let places = (-smallest.log10() - 1e-6).ceil().max(0.0) as usize;
    Some(ticks.iter().map(|tick| format!("{tick:.places$}")).collect())
}

/// Labels each tick as shortly as possible, with enough digits to tell all of them apart.
fn shortest_labels(ticks: &[f64]) -> Vec<String> {
    let write = |digits: usize| ticks.iter().map(|tick| format_tick(*tick, digits)).collect::<Vec<_>>();
    let distinct = |labels: &Vec<String>| labels.windows(2).all(|pair| pair[0] != pair[1]);
    (0..MOST_DIGITS).map(write).find(distinct).unwrap_or_else(|| write(MOST_DIGITS))
}

/// Digits after the point of a label in scientific notation, at most; a range is never narrower than these show.
const MOST_DIGITS: usize = 9;

/// Formats a value without trailing zeros: `0.05`, `2`, `1e-5`.
fn format_tick(value: f64, digits: usize) -> String {
    if value != 0.0 && !(1e-3..1e5).contains(&value.abs()) {
        return format!("{value:.digits$e}");
    }
    // A tick is a sum of rounded numbers: 0.35000000000000003 is 0.35.
    format!("{}", (value * 1e9).round() / 1e9)
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
        ROUND_S.into_iter().find(enough).unwrap_or_else(|| ((span_s / wanted as f64) as i64 / DAY_S + 1) * DAY_S);
    let offset = i64::from(offset_s);
    let first = (start / 1e3) as i64 + offset;
    let mut at = first.div_euclid(step) * step;
    let mut labels = Vec::new();
    while (at - offset) as f64 * 1e3 <= end && labels.len() <= 2 * wanted {
        let time = (at - offset) * 1000;
        if time as f64 >= start {
            labels.push((time as f64, time_label(time, step, offset_s)));
        }
        at += step;
    }
    labels
}

const DAY_S: i64 = 86_400;

/// Labels a time on an axis with this distance between labels. Midnight has its date, so that no two labels are alike
/// on an axis of several days.
fn time_label(time_ms: i64, step_s: i64, offset_s: i32) -> String {
    let local_s = time_ms.div_euclid(1000) + i64::from(offset_s);
    if local_s.rem_euclid(DAY_S) == 0 && step_s >= 60 {
        return format::date(time_ms, offset_s);
    }
    let text = format::clock(time_ms, offset_s);
    if step_s < 60 { text } else { text[..5].to_owned() }
}

#[cfg(test)]
mod tests {
    use super::{format_tick, position_labels, tick_labels};
    use crate::series::Axis;
    use crate::series::scale::Scale;
    use proptest::prelude::*;

    fn labels(low: f64, high: f64, log: bool) -> Vec<String> {
        tick_labels(Scale::new(low, high, log).unwrap(), 12).into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_labelled_as_shortly_as_they_differ() {
        assert_eq!(labels(0.0, 2.4, false), ["0.0", "0.5", "1.0", "1.5", "2.0"]);
        assert_eq!(labels(0.42, 0.83, false), ["0.5", "0.6", "0.7", "0.8"]);
        assert_eq!(labels(1.2e6, 1.45e6, false), ["1.20e6", "1.25e6", "1.30e6", "1.35e6", "1.40e6", "1.45e6"]);
        assert_eq!(labels(1.1e5, 1.9e5, false), ["120000", "140000", "160000", "180000"]);
        assert_eq!(labels(3.1e-4, 3.6e-4, true), ["0.00031", "0.00032", "0.00033", "0.00034", "0.00035", "0.00036"]);
        assert_eq!(labels(2e-5, 3.0, true), ["1e-4", "0.001", "0.01", "0.1", "1"]);
        assert_eq!(format_tick(0.1 + 0.2, 0), "0.3");
    }

    #[test]
    fn a_week_has_dates() {
        let day = 86_400e3;
        let labels = position_labels(Axis::Time, 20.5 * day, 24.5 * day, 60, 0);
        let texts: Vec<_> = labels.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["22 Jan", "23 Jan", "24 Jan", "25 Jan"]);
        let labels = position_labels(Axis::Time, 20.6 * day, 21.6 * day, 60, 0);
        assert!(labels.iter().any(|(_, text)| text == "22 Jan"), "{labels:?}");
    }

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
        fn labels_of_one_axis_differ(exponent in -30i32..30, from in 0.1f64..10.0, span in 1e-5f64..1e5, log: bool) {
            let low = from * 10f64.powi(exponent);
            let labels = labels(low, low * (1.0 + span), log);
            prop_assert!(labels.windows(2).all(|pair| pair[0] != pair[1]), "{:?}", labels);
        }

        #[test]
        fn no_window_panics(start: f64, end: f64, width in 0u16..400, offset in -50_000i32..50_000) {
            for axis in [Axis::Steps, Axis::Samples, Axis::Time] {
                prop_assert!(position_labels(axis, start, end, width, offset).len() < 100);
            }
        }
    }
}
