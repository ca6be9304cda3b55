//! Writes charts as SVG: axes with round ticks, a legend, marks for shifts, skips, checkpoints, the best.

use super::Loaded;
use super::figure::Figure;
use super::panel::{self, Dot, Panel, Trace, Wishes};
use crate::cockpit::plot::scale::round_values;
use crate::config::theme::Theme;
use crate::format::count;
use crate::untrusted::text::is_unsafe;
use ratatui::style::{Color, Style};
use std::fmt::Write;

/// Colours for several runs, distinguishable by the colour-blind (Okabe and Ito).
const LINES: [&str; 6] = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"];

/// The colours of a plot.
pub struct Palette {
    ground: String,
    text: String,
    dim: String,
    faint: String,
    raw: String,
    line: String,
    second: String,
    mark: String,
    warn: String,
    good: String,
}

impl Palette {
    /// Returns the colours of a theme, with dark-on-white defaults for any it lacks.
    pub fn of(theme: &Theme) -> Self {
        let hex = |colour: Option<Color>, else_: &str| match colour {
            Some(Color::Rgb(red, green, blue)) => format!("#{red:02x}{green:02x}{blue:02x}"),
            _ => else_.to_owned(),
        };
        let ink = |style: Style, else_: &str| hex(style.fg, else_);
        Self {
            ground: hex(theme.base.bg, "#ffffff"),
            text: ink(theme.base, "#202020"),
            dim: ink(theme.dim, "#606060"),
            faint: ink(theme.faint, "#d0d0d0"),
            raw: ink(theme.raw, "#a0a0a0"),
            line: ink(theme.smooth, "#202020"),
            second: ink(theme.second, "#505050"),
            mark: ink(theme.mark, "#808080"),
            warn: ink(theme.warn, "#404040"),
            good: ink(theme.good, "#404040"),
        }
    }
}

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

/// Minimum distance between two diamonds, in pixels.
const EVALS_APART: f64 = 14.0;
const RIGHT: f64 = 40.0;
const HEAD: f64 = 52.0;
const FOOT: f64 = 44.0;
/// Space above each chart for its title and the names of rungs.
const TITLE: f64 = 44.0;

/// Draws the plot; returns none if there is nothing to draw.
pub fn picture(
    runs: &[Loaded],
    figures: &[Figure],
    (width, height): (f64, f64),
    wishes: &Wishes,
    palette: &Palette,
) -> Option<String> {
    let window = panel::window(runs, wishes)?;
    let pixels = (width - 80.0).max(60.0) as usize;
    let panels: Vec<Panel> =
        figures.iter().filter_map(|figure| panel::panel(runs, *figure, window, pixels, wishes)).collect();
    if panels.is_empty() {
        return None;
    }
    let ticks: Vec<Vec<(f64, String)>> = panels.iter().map(value_ticks).collect();
    let longest = ticks.iter().flatten().map(|(_, text)| text.chars().count()).max().unwrap_or(3);
    let left = 26.0 + 7.2 * longest as f64;
    let each = (height - HEAD - FOOT) / panels.len() as f64;
    let mut out = Svg { text: String::new(), palette };
    out.open(width, height);
    out.head(runs, wishes, width);
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

/// A legend symbol.
#[derive(Clone, Copy)]
enum Sign {
    Line,
    Band,
    Diamond,
    Triangle,
    Dashes,
    Dot,
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

    fn words(&mut self, (x, y): (f64, f64), anchor: &str, fill: &str, more: &str, text: &str) {
        let text = escaped(text);
        self.add(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="{fill}"{more}>{text}</text>"#
        ));
    }

    /// Writes the names of the runs and the legend.
    fn head(&mut self, runs: &[Loaded], wishes: &Wishes, width: f64) {
        let palette = self.palette;
        let mut x = 24.0;
        for (number, run) in runs.iter().enumerate() {
            if let Some(colour) = colour(runs.len(), number) {
                self.add(format_args!(r#"<rect x="{x:.1}" y="21" width="16" height="4" rx="2" fill="{colour}"/>"#));
                x += 22.0;
            }
            let (size, per) = if runs.len() > 1 { (12, 7.0) } else { (16, 9.6) };
            let more = format!(r#" font-weight="600" font-size="{size}""#);
            self.words((x, 28.0), "start", &palette.text, &more, &run.name);
            x += per * run.name.chars().count() as f64 + 18.0;
        }
        self.legend(runs.len() == 1, wishes.weight, x, width);
    }

    /// Writes the legend: beside the names, or below them if there is no room.
    fn legend(&mut self, single: bool, weight: f64, used: f64, width: f64) {
        let palette = self.palette;
        let line = if weight > 0.0 { format!("smoothed {weight}") } else { "mean".to_owned() };
        let mut signs = vec![(Sign::Line, line), (Sign::Band, "measured".to_owned())];
        signs.push((Sign::Diamond, "evaluation".to_owned()));
        if single {
            signs.push((Sign::Triangle, "skipped".to_owned()));
            signs.push((Sign::Dashes, "shift, restart".to_owned()));
            signs.push((Sign::Dot, "checkpoint".to_owned()));
        }
        let room = |text: &str| 20.0 + 6.0 * text.chars().count() as f64 + 14.0;
        let length: f64 = signs.iter().map(|(_, text)| room(text)).sum();
        let beside = used + length + RIGHT < width;
        let (mut x, y) = if beside { (width - RIGHT - length + 14.0, 28.0) } else { (24.0, 46.0) };
        for (sign, text) in signs {
            self.sign(sign, x, y - 4.0);
            self.words((x + 20.0, y), "start", &palette.dim, r#" font-size="11""#, &text);
            x += room(&text);
        }
    }

    fn sign(&mut self, sign: Sign, x: f64, y: f64) {
        let palette = self.palette;
        let piece = match sign {
            Sign::Line => format!(r#"<path d="M{x:.1} {y:.1}h15" stroke="{}" stroke-width="2"/>"#, palette.line),
            Sign::Band => {
                let top = y - 5.0;
                format!(
                    r#"<rect x="{x:.1}" y="{top:.1}" width="15" height="10" fill="{}" fill-opacity="0.55"/>"#,
                    palette.raw
                )
            }
            Sign::Diamond => {
                format!(r#"<path d="M{:.1} {:.1}l5 5l-5 5l-5 -5Z" fill="{}"/>"#, x + 9.0, y - 5.0, palette.second)
            }
            Sign::Triangle => format!(r#"<path d="M{:.1} {:.1}h8l-4 7Z" fill="{}"/>"#, x + 6.0, y - 3.0, palette.warn),
            Sign::Dashes => {
                let (x, top) = (x + 12.0, y - 6.0);
                format!(r#"<path d="M{x:.1} {top:.1}v12" stroke="{}" stroke-dasharray="3 3"/>"#, palette.mark)
            }
            Sign::Dot => format!(r#"<circle cx="{:.1}" cy="{y:.1}" r="3.5" fill="{}"/>"#, x + 10.0, palette.good),
        };
        self.add(format_args!("{piece}"));
    }

    fn axes(&mut self, area: Area, panel: &Panel, ticks: &[(f64, String)], window: (f64, f64), last: bool) {
        let palette = self.palette;
        let title = panel.figure.title();
        self.words((24.0, area.top - 18.0), "start", &palette.text, r#" font-weight="600" font-size="13""#, title);
        if let Some(most) = panel.cut {
            let text = format!("the range ends below the largest value, {}", crate::format::figure(most));
            let x = 24.0 + 8.0 * title.chars().count() as f64 + 12.0;
            self.words((x, area.top - 18.0), "start", &palette.warn, r#" font-size="11""#, &text);
        }
        let (left, right, bottom) = (area.left, area.left + area.width, area.bottom());
        for (value, text) in ticks {
            let (_, y) = area.place(panel, (0.0, *value));
            let faint = &palette.faint;
            self.add(format_args!(
                r#"<path d="M{left:.1} {y:.1}H{right:.1}" stroke="{faint}" stroke-width="1" stroke-opacity="0.7"/>"#
            ));
            self.words((left - 8.0, y + 4.0), "end", &palette.dim, "", text);
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
                self.words((x, bottom + 20.0), "middle", &palette.dim, "", &count(step.max(0.0) as u64));
            }
        }
        if last {
            self.words((right, bottom + 36.0), "end", &palette.dim, r#" font-size="11""#, "steps");
        }
    }

    /// Marks shifts and restarts of a single run, with the rung's name above the first chart.
    fn shifts(&mut self, area: Area, runs: &[Loaded], (start, end): (f64, f64), named: Option<f64>) {
        let [run] = runs else { return };
        let palette = self.palette;
        let segments = run.series.segments();
        let mut free = area.left + named.unwrap_or(0.0);
        for (before, segment) in segments.iter().zip(segments.iter().skip(1)) {
            let share = (segment.first as f64 - start) / (end - start);
            if !(0.0..=1.0).contains(&share) {
                continue;
            }
            let (x, top, bottom) = (area.x(share), area.top - 14.0, area.bottom());
            self.add(format_args!(
                r#"<path d="M{x:.1} {top:.1}V{bottom:.1}" stroke="{}" stroke-dasharray="3 4"/>"#,
                palette.mark
            ));
            let name =
                if before.rung == segment.rung { "again" } else { run.rungs.get(segment.rung).map_or("", |n| n) };
            let length = 6.6 * name.chars().count() as f64;
            if named.is_some() && x >= free && x + length < area.left + area.width + RIGHT {
                self.words((x + 4.0, area.top - 16.0), "start", &palette.mark, r#" font-size="11""#, name);
                free = x + length + 12.0;
            }
        }
    }

    fn checkpoints(&mut self, area: Area, runs: &[Loaded], (start, end): (f64, f64)) {
        let [run] = runs else { return };
        for step in &run.checkpoints {
            let share = (*step as f64 - start) / (end - start);
            if (0.0..=1.0).contains(&share) {
                let (x, y, good) = (area.x(share), area.bottom(), &self.palette.good);
                self.add(format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{good}"/>"#));
            }
        }
    }

    fn trace(&mut self, area: Area, panel: &Panel, trace: &Trace, id: usize, colour: Option<&str>) {
        let palette = self.palette;
        let (line, raw) = (colour.unwrap_or(&palette.line), colour.unwrap_or(&palette.raw));
        let Area { left, top, width, height } = area;
        self.add(format_args!(
            r#"<clipPath id="c{id}"><rect x="{left:.1}" y="{top:.1}" width="{width:.1}" height="{height:.1}"/></clipPath>"#
        ));
        self.add(format_args!(r#"<g clip-path="url(#c{id})">"#));
        let opacity = if colour.is_some() { 0.22 } else { 0.55 };
        for part in &trace.band {
            let upper = part.iter().map(|(x, _, high)| (*x, *high));
            let lower = part.iter().rev().map(|(x, low, _)| (*x, *low));
            let path = path(upper.chain(lower).map(|dot| area.place(panel, dot)));
            self.add(format_args!(
                r#"<path d="{path}Z" fill="{raw}" fill-opacity="{opacity}" stroke="{raw}" stroke-opacity="{opacity}" stroke-width="0.8" stroke-linejoin="round"/>"#
            ));
        }
        for part in &trace.line {
            let path = path(part.iter().map(|dot| area.place(panel, *dot)));
            self.add(format_args!(
                r#"<path d="{path}" fill="none" stroke="{line}" stroke-width="1.8" stroke-linejoin="round" stroke-linecap="round"/>"#
            ));
        }
        self.add(format_args!("</g>"));
        // Out-of-range marks would overlap what is above; where they are dense, only some are drawn.
        let mut free_left_of = f64::MAX;
        for dot in trace.evals.iter().rev().filter(|dot| panel.height(dot.1) <= 1.0) {
            let (x, y) = area.place(panel, *dot);
            if x > free_left_of {
                continue;
            }
            free_left_of = x - EVALS_APART;
            let fill = colour.unwrap_or(&palette.second);
            let (ground, r) = (&palette.ground, 4.5);
            self.add(format_args!(
                r#"<path d="M{x:.1} {:.1}l{r} {r}l-{r} {r}l-{r} -{r}Z" fill="{fill}" stroke="{ground}" stroke-width="0.8"/>"#,
                y - r
            ));
        }
        if colour.is_none() {
            for share in &trace.skips {
                let (x, y) = (area.x(*share), area.top - 2.0);
                self.add(format_args!(r#"<path d="M{:.1} {y:.1}h7l-3.5 6Z" fill="{}"/>"#, x - 3.5, palette.warn));
            }
        }
        let best = trace.best.map(|best| ("best evaluation", best));
        let marked = best.or(trace.lowest.map(|lowest| ("lowest measured", lowest)));
        if let (Some((what, (dot, step))), None) = (marked, colour) {
            self.best(area, panel, dot, (what, step));
        }
    }

    fn best(&mut self, area: Area, panel: &Panel, dot: Dot, (what, step): (&str, u64)) {
        let palette = self.palette;
        let (x, y) = area.place(panel, dot);
        let (good, ground) = (&palette.good, &palette.ground);
        self.add(format_args!(
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="4" fill="{ground}" stroke="{good}" stroke-width="2"/>"#
        ));
        let text = format!("{what} {} at {}", crate::format::figure(dot.1), count(step));
        let anchor = if x > area.left + area.width / 2.0 { "end" } else { "start" };
        let above = if y + 20.0 > area.bottom() { y - 12.0 } else { y + 18.0 };
        let halo = format!(r#" font-size="11" paint-order="stroke" stroke="{ground}" stroke-width="3""#);
        self.words((x, above), anchor, &palette.text, &halo, &text);
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
