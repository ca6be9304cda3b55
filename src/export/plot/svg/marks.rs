//! Curves and marks: shifts, skips, evaluations, checkpoints, the best.

use super::{Area, RIGHT, Svg, path};
use crate::export::plot::Loaded;
use crate::export::plot::panel::{Dot, Panel, Trace};
use crate::format::{count, figure, learning_rate};
use std::borrow::Cow;

/// Minimum distance between two diamonds, in pixels.
const EVALS_APART: f64 = 14.0;

/// Returns the step and the name of each mark, oldest first.
fn named_marks(run: &Loaded) -> Vec<(u64, Cow<'_, str>)> {
    let segments = run.series.segments();
    let started = segments.iter().zip(segments.iter().skip(1)).map(|(before, segment)| {
        let rung = || run.rungs.get(segment.rung).map_or("", |name| name);
        (segment.first, if before.rung == segment.rung { "again" } else { rung() }.into())
    });
    let reduced = run.evals.iter().filter_map(|row| {
        let reduced = row.eval.reduced.as_ref()?;
        Some((row.eval.step, format!("lr {}", learning_rate(reduced.to)).into()))
    });
    let mut marks: Vec<(u64, Cow<'_, str>)> = started.chain(reduced).collect();
    marks.sort_by_key(|mark| mark.0);
    marks
}

impl Svg<'_> {
    /// Marks shifts, restarts and lower learning rates of a single run, with their names above the first chart.
    pub fn shifts(&mut self, area: Area, runs: &[Loaded], (start, end): (f64, f64), named: Option<f64>) {
        let [run] = runs else { return };
        let palette = self.palette;
        let mut free = area.left + named.unwrap_or(0.0);
        for (step, name) in named_marks(run) {
            let share = (step as f64 - start) / (end - start);
            if !(0.0..=1.0).contains(&share) {
                continue;
            }
            let (x, top, bottom) = (area.x(share), area.top - 14.0, area.bottom());
            self.add(format_args!(
                r#"<path d="M{x:.1} {top:.1}V{bottom:.1}" stroke="{}" stroke-dasharray="3 4"/>"#,
                palette.mark
            ));
            let length = 6.6 * name.chars().count() as f64;
            if named.is_some() && x >= free && x + length < area.left + area.width + RIGHT {
                self.add_text((x + 4.0, area.top - 16.0), "start", &palette.mark, r#" font-size="11""#, &name);
                free = x + length + 12.0;
            }
        }
    }

    pub fn checkpoints(&mut self, area: Area, runs: &[Loaded], (start, end): (f64, f64)) {
        let [run] = runs else { return };
        for step in &run.checkpoints {
            let share = (*step as f64 - start) / (end - start);
            if (0.0..=1.0).contains(&share) {
                let (x, y, good) = (area.x(share), area.bottom(), &self.palette.good);
                self.add(format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{good}"/>"#));
            }
        }
    }

    pub fn trace(&mut self, area: Area, panel: &Panel, trace: &Trace, id: usize, colour: Option<&str>) {
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
        let text = format!("{what} {} at {}", figure(dot.1), count(step));
        let anchor = if x > area.left + area.width / 2.0 { "end" } else { "start" };
        let above = if y + 20.0 > area.bottom() { y - 12.0 } else { y + 18.0 };
        let halo = format!(r#" font-size="11" paint-order="stroke" stroke="{ground}" stroke-width="3""#);
        self.add_text((x, above), anchor, &palette.text, &halo, &text);
    }
}
