//! GPU and machine over the last minutes: one small plot a figure. A reading that is missing is a
//! gap.

use crate::cockpit::format::{age, bytes, percent};
use crate::cockpit::plot::{braille::Braille, curve, scale::Scale};
use crate::cockpit::series::{Column, Extent};
use crate::cockpit::state::State;
use crate::cockpit::ui;
use crate::config::theme::Theme;
use crate::protocol::probe::{Gpu, Reading};
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    text::Line,
};

/// A figure over time.
struct Trend {
    label: &'static str,
    value: fn(&Reading) -> Option<f64>,
    words: fn(f64) -> String,
    whole: fn(&Reading) -> Option<f64>,
}

fn gpu<T>(reading: &Reading, value: impl Fn(&Gpu) -> Option<T>) -> Option<T> {
    reading.gpu.as_ref().ok().and_then(value)
}

fn no_whole(_: &Reading) -> Option<f64> {
    None
}

fn byte_words(value: f64) -> String {
    bytes(value.max(0.0) as u64)
}

const TRENDS: [Trend; 7] = [
    Trend {
        label: "VRAM",
        value: |reading| gpu(reading, |gpu| gpu.vram_used_bytes.get()).map(|bytes| bytes as f64),
        words: byte_words,
        whole: |reading| gpu(reading, |gpu| gpu.vram_total_bytes.get()).map(|bytes| bytes as f64),
    },
    Trend {
        label: "GPU temperature",
        value: |reading| gpu(reading, |gpu| gpu.temperature_c.get()),
        words: |value| format!("{value:.0} °C"),
        whole: |reading| gpu(reading, |gpu| gpu.slowdown_c.get()).or(Some(100.0)),
    },
    Trend {
        label: "GPU load",
        value: |reading| gpu(reading, |gpu| gpu.utilisation.get()),
        words: percent,
        whole: |_| Some(1.0),
    },
    Trend {
        label: "GPU power",
        value: |reading| gpu(reading, |gpu| gpu.power_w.get()),
        words: |value| format!("{value:.0} W"),
        whole: |reading| gpu(reading, |gpu| gpu.power_limit_w.get()),
    },
    Trend {
        label: "RAM of the worker",
        value: |reading| reading.host.ram_worker_bytes.get().map(|bytes| bytes as f64),
        words: byte_words,
        whole: no_whole,
    },
    Trend {
        label: "RAM in use",
        value: |reading| reading.host.ram_used_bytes.get().map(|bytes| bytes as f64),
        words: byte_words,
        whole: |reading| reading.host.ram_total_bytes.get().map(|bytes| bytes as f64),
    },
    Trend { label: "CPU", value: |reading| reading.host.cpu.get(), words: percent, whole: |_| Some(1.0) },
];

/// Draws the panel.
pub fn render(frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
    let known = |trend: &&Trend| state.facts.samples.iter().any(|row| (trend.value)(&row.reading).is_some());
    let trends: Vec<_> = TRENDS.iter().filter(known).collect();
    if trends.is_empty() {
        let inner = ui::heading(frame, area, "over time", Line::default(), true, theme);
        return ui::quiet(frame, inner, "no reading of the probe yet", theme);
    }
    let most = usize::from(area.height / 5).max(1);
    let wide = area.width >= 90 && trends.len() > most.min(3);
    let columns = if wide { 2 } else { 1 };
    let shown = trends.len().min(most * columns);
    let rows = shown.div_ceil(columns);
    let lanes = Layout::horizontal(vec![Constraint::Fill(1); columns]).spacing(3).split(area);
    for (lane, trends) in lanes.iter().zip(trends[..shown].chunks(rows)) {
        let cells = Layout::vertical(vec![Constraint::Fill(1); rows]).split(*lane);
        for (cell, trend) in cells.iter().zip(trends) {
            one_trend(frame, *cell, trend, state, theme);
        }
    }
}

fn one_trend(frame: &mut Frame<'_>, area: Rect, trend: &Trend, state: &State, theme: &Theme) {
    let samples = &state.facts.samples;
    let newest = samples.back().and_then(|row| (trend.value)(&row.reading));
    let value = newest.map_or_else(|| "n/a".to_owned(), trend.words);
    let inner = ui::heading(frame, area, trend.label, Line::styled(value, theme.strong), false, theme);
    let (Some(first), Some(last)) = (samples.front(), samples.back()) else { return };
    let span = last.time_ms.saturating_sub(first.time_ms).clamp(60_000, 3_600_000) as f64;
    if inner.height < 2 || inner.width < 12 {
        return;
    }
    let plot = Rect { height: inner.height - 1, ..inner };
    let mut columns = vec![Column::default(); usize::from(plot.width) * 2];
    let right = columns.len().saturating_sub(1);
    for row in samples {
        let Some(value) = (trend.value)(&row.reading).filter(|value| value.is_finite()) else { continue };
        let before = last.time_ms.saturating_sub(row.time_ms) as f64 / span;
        if before <= 1.0 {
            let place = ((1.0 - before) * right as f64).round() as usize;
            let value = value as f32;
            let extent = Extent { min: value, max: value, mean: value, count: 1 };
            columns[place].extent = Some(columns[place].extent.map_or(extent, |known| known.with(extent)));
        }
    }
    let whole = samples.back().and_then(|row| (trend.whole)(&row.reading));
    // From nothing to the whole, or to a little above what was seen: noise shall look like noise.
    let Some((_, high, _)) = curve::range(&columns) else { return };
    let high = whole.map_or(high * 1.25, |whole| high.max(whole));
    let Some(scale) = Scale::new(0.0, high, false) else { return };
    let mut canvas = Braille::new(usize::from(plot.width), usize::from(plot.height));
    curve::draw_band(&mut canvas, &columns, scale);
    canvas.paint(plot, frame.buffer_mut(), theme.smooth);
    let axis_row = Rect { y: plot.bottom(), height: 1, ..plot };
    let left = Line::styled(format!("{} ago", age(span as i64).trim_end_matches(" 00 s")), theme.dim);
    let range = Line::styled(format!("0 to {}", (trend.words)(high)), theme.dim);
    ui::two_sides(frame, axis_row, left, range);
}
