//! The names of the runs, and the legend.

use super::{RIGHT, Svg, colour};
use crate::export::plot::Loaded;
use crate::export::plot::panel::ChartOptions;

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

impl Svg<'_> {
    /// Writes the names of the runs and the legend.
    pub fn head(&mut self, runs: &[Loaded], options: &ChartOptions, width: f64) {
        let palette = self.palette;
        let mut x = 24.0;
        for (number, run) in runs.iter().enumerate() {
            if let Some(colour) = colour(runs.len(), number) {
                self.add(format_args!(r#"<rect x="{x:.1}" y="21" width="16" height="4" rx="2" fill="{colour}"/>"#));
                x += 22.0;
            }
            let (size, per) = if runs.len() > 1 { (12, 7.0) } else { (16, 9.6) };
            let more = format!(r#" font-weight="600" font-size="{size}""#);
            self.add_text((x, 28.0), "start", &palette.text, &more, &run.name);
            x += per * run.name.chars().count() as f64 + 18.0;
        }
        self.legend(runs.len() == 1, options.smoothing, x, width);
    }

    /// Writes the legend: beside the names, or below them if there is no room.
    fn legend(&mut self, single: bool, weight: f64, used: f64, width: f64) {
        let palette = self.palette;
        let line = if weight > 0.0 { format!("smoothed {weight}") } else { "mean".to_owned() };
        let mut signs = vec![(Sign::Line, line), (Sign::Band, "measured".to_owned())];
        signs.push((Sign::Diamond, "evaluation".to_owned()));
        if single {
            signs.push((Sign::Triangle, "not finite".to_owned()));
            signs.push((Sign::Dashes, "shift, restart, rate".to_owned()));
            signs.push((Sign::Dot, "checkpoint".to_owned()));
        }
        let room = |text: &str| 20.0 + 6.0 * text.chars().count() as f64 + 14.0;
        let length: f64 = signs.iter().map(|(_, text)| room(text)).sum();
        let beside = used + length + RIGHT < width;
        let (mut x, y) = if beside { (width - RIGHT - length + 14.0, 28.0) } else { (24.0, 46.0) };
        for (sign, text) in signs {
            self.sign(sign, x, y - 4.0);
            self.add_text((x + 20.0, y), "start", &palette.dim, r#" font-size="11""#, &text);
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
}
