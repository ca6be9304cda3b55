//! Writes charts as SVG: axes with round ticks, then the legend and the marks.

mod legend;
mod marks;

use super::Loaded;
use super::figure::Figure;
use super::palette::Palette;
use super::panel::{self, ChartOptions, Dot, Panel};
use crate::format::{count, figure};
use crate::series::scale::round_values;
use crate::untrusted::text::is_unsafe;
use std::fmt::Write;

/// Colours for several runs, distinguishable by the colour-blind (Okabe and Ito).
const LINES: [&str; 6] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"];

/// The position of a chart.
#[derive(Clone, Copy)]
struct Area {
    left: f64,
    top: f64,
    width: f64,
    height: f64,
}

impl Area {
    fn x(self, share: f64) -> f64 {
        self.left + share * self.width
    }

    fn bottom(self) -> f64 {
        self.top + self.height
    }

    fn place(self, panel: &Panel, (share, value): Dot) -> (f64, f64) {
        (self.x(share), self.bottom() - panel.height(value) * self.height)
    }
}

const RIGHT: f64 = 40.0;
const HEAD: f64 = 52.0;
const FOOT: f64 = 44.0;
/// Space above each chart for its title and the names of rungs.
const TITLE: f64 = 44.0;

/// Draws the plot; returns none if there is nothing to draw.
pub fn draw(
    runs: &[Loaded],
    figures: &[Figure],
    (width, height): (f64, f64),
    options: &ChartOptions,
    palette: &Palette,
) -> Option<String> {
    let window = panel::shared_window(runs, options)?;
    let pixels = (width - 80.0).max(60.0) as usize;
    let panels: Vec<Panel> =
        figures.iter().filter_map(|figure| panel::lay_out_panel(runs, figure, window, pixels, options)).collect();
    if panels.is_empty() {
        return None;
    }
    let ticks: Vec<Vec<(f64, String)>> = panels.iter().map(value_ticks).collect();
    let longest = ticks.iter().flatten().map(|(_, text)| text.chars().count()).max().unwrap_or(3);
    let left = 26.0 + 7.2 * longest as f64;
    let each = (height - HEAD - FOOT) / panels.len() as f64;
    let mut out = Svg { text: String::new(), palette };
    out.open(width, height);
    out.head(runs, options, width);
    for (index, (panel, ticks)) in panels.iter().zip(&ticks).enumerate() {
        let top = HEAD + each * index as f64 + TITLE;
        let area = Area { left, top, width: width - left - RIGHT, height: (each - TITLE).max(40.0) };
        out.axes(area, panel, ticks, window, index + 1 == panels.len());
        out.shifts(area, runs, window, (index == 0).then_some(if panel.cut.is_some() { 380.0 } else { 60.0 }));
        for (number, trace) in panel.traces.iter().enumerate() {
            out.trace(area, panel, trace, index * 100 + number, colour(runs.len(), number));
        }
        if index + 1 == panels.len() {
            out.checkpoints(area, runs, window);
        }
    }
    out.text.push_str("</svg>\n");
    Some(out.text)
}

fn colour(runs: usize, number: usize) -> Option<&'static str> {
    (runs > 1).then(|| LINES[number % LINES.len()])
}

/// Returns the ticks of the value axis, with as many decimals as they need.
fn value_ticks(panel: &Panel) -> Vec<(f64, String)> {
    let ticks = panel.scale.ticks(5);
    let step = ticks.windows(2).map(|pair| pair[1] - pair[0]).reduce(f64::min).unwrap_or(1.0);
    let largest = ticks.iter().fold(0.0, |most: f64, tick| most.max(tick.abs()));
    let text = |tick: f64| {
        if tick == 0.0 {
            "0".to_owned()
        } else if panel.scale.is_log() || !(1e-2..1e6).contains(&largest) {
            let plain = (1e-3..1e6).contains(&tick.abs()) && largest >= 1e-2;
            if plain { format!("{}", (tick * 1e9).round() / 1e9) } else { short_power(tick) }
        } else {
            let decimals = (-(step * 1.0001).log10().floor()).clamp(0.0, 9.0) as usize;
            format!("{tick:.decimals$}").replace('-', "−")
        }
    };
    ticks.iter().map(|tick| (*tick, text(*tick))).collect()
}

/// Formats a power such as `2e−4`, without a needless `.0`.
fn short_power(value: f64) -> String {
    let power = value.abs().log10().floor();
    let lead = (value / 10f64.powf(power) * 100.0).round() / 100.0;
    format!("{lead}e{power}").replace('-', "−")
}

struct Svg<'a> {
    text: String,
    palette: &'a Palette,
}

impl Svg<'_> {
    fn add(&mut self, piece: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.text.write_fmt(piece);
        self.text.push('\n');
    }

    fn open(&mut self, width: f64, height: f64) {
        let Palette { ground, .. } = self.palette;
        self.add(format_args!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="Inter, 'Helvetica Neue', Helvetica, Arial, sans-serif" font-size="12">"#
        ));
        self.add(format_args!(r#"<rect width="100%" height="100%" fill="{ground}"/>"#));
    }

    fn add_text(&mut self, (x, y): (f64, f64), anchor: &str, fill: &str, more: &str, text: &str) {
        let text = escaped(text);
        self.add(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="{fill}"{more}>{text}</text>"#
        ));
    }

    fn axes(&mut self, area: Area, panel: &Panel, ticks: &[(f64, String)], window: (f64, f64), last: bool) {
        let palette = self.palette;
        let title = panel.figure.title();
        self.add_text((24.0, area.top - 18.0), "start", &palette.text, r#" font-weight="600" font-size="13""#, title);
        if let Some(most) = panel.cut {
            let text = format!("the range ends below the largest value, {}", figure(most));
            let x = 24.0 + 8.0 * title.chars().count() as f64 + 12.0;
            self.add_text((x, area.top - 18.0), "start", &palette.warn, r#" font-size="11""#, &text);
        }
        let (left, right, bottom) = (area.left, area.left + area.width, area.bottom());
        for (value, text) in ticks {
            let (_, y) = area.place(panel, (0.0, *value));
            let faint = &palette.faint;
            self.add(format_args!(
                r#"<path d="M{left:.1} {y:.1}H{right:.1}" stroke="{faint}" stroke-width="1" stroke-opacity="0.7"/>"#
            ));
            self.add_text((left - 8.0, y + 4.0), "end", &palette.dim, "", text);
        }
        self.add(format_args!(
            r#"<path d="M{left:.1} {bottom:.1}H{right:.1}" stroke="{}" stroke-width="1.2"/>"#,
            palette.mark
        ));
        let span = window.1 - window.0;
        for step in round_values(window.0, window.1, (area.width / 130.0).max(2.0) as usize) {
            let x = area.x((step - window.0) / span);
            self.add(format_args!(r#"<path d="M{x:.1} {bottom:.1}v5" stroke="{}"/>"#, palette.mark));
            if last {
                self.add_text((x, bottom + 20.0), "middle", &palette.dim, "", &count(step.max(0.0) as u64));
            }
        }
        if last {
            self.add_text((right, bottom + 36.0), "end", &palette.dim, r#" font-size="11""#, "steps");
        }
    }
}

fn path(dots: impl Iterator<Item = (f64, f64)>) -> String {
    let mut path = String::new();
    for (place, (x, y)) in dots.enumerate() {
        let _ = write!(path, "{}{x:.1} {y:.1}", if place == 0 { "M" } else { "L" });
    }
    path
}

fn escaped(text: &str) -> String {
    let kept: String = text.chars().filter(|letter| !is_unsafe(*letter)).collect();
    kept.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
