//! `plot`: draws charts of runs as SVG or PNG.

use super::bad_value::{BadValue, parse_number};
use super::{Failure, Outcome, find_run, line};
use crate::export::plot::{self, ChartOptions, Figure};
use crate::store::run_dir::write_whole;
use crate::theme::Theme;
use crate::untrusted::text;
use clap::Args;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Arguments of `plot`.
#[derive(Debug, Args)]
pub struct PlotArgs {
    /// Names or folders of runs, drawn in one chart; defaults to the newest run
    #[arg(value_name = "RUN")]
    runs: Vec<String>,
    /// The output file, ending in .svg or .png
    #[arg(long, short, value_name = "FILE")]
    out: PathBuf,
    /// The metrics, one chart each: loss, eval, lr, grad_norm, step_ms, data_wait_ms, compute_ms, waiting, any
    /// name the run reports, and eval/NAME for a metric of evaluations
    #[arg(long, short, value_delimiter = ',', default_value = "loss", value_name = "NAMES")]
    metric: Vec<Figure>,
    /// Use a logarithmic scale
    #[arg(long)]
    log: bool,
    /// Smoothing weight, 0 to 0.999; 0 draws only the measured values
    #[arg(long, default_value_t = 0.9, value_parser = parse_weight)]
    smooth: f64,
    /// Steps to draw: FROM..TO, FROM.. or ..TO
    #[arg(long, default_value = "..", value_name = "RANGE")]
    steps: Window,
    /// Width and height; defaults to 1200 wide and as high as the charts need
    #[arg(long, value_name = "WxH")]
    size: Option<Size>,
    /// PNG pixels per unit of --size
    #[arg(long, default_value_t = 2.0, value_parser = parse_scale)]
    scale: f64,
    /// The name of a colour theme, such as light or dark
    #[arg(long, default_value = "light")]
    theme: String,
}

pub fn plot(args: &PlotArgs, runs: &Path) -> Outcome {
    let kind = args.out.extension().map(|kind| kind.to_string_lossy().to_lowercase());
    let is_png = match kind.as_deref() {
        Some("svg") => false,
        Some("png") => true,
        _ => {
            let wrong = format!("{}: choose a name that ends in .svg or .png", text::path(&args.out));
            return Err(Failure::new(2, wrong));
        }
    };
    let theme = theme(&args.theme)?;
    let wanted: Vec<Option<&str>> = match args.runs.as_slice() {
        [] => vec![None],
        names => names.iter().map(|name| Some(name.as_str())).collect(),
    };
    let dirs = wanted.into_iter().map(|name| find_run(runs, name)).collect::<Result<Vec<_>, _>>()?;
    let size = args.size.unwrap_or(Size { width: 1200.0, height: 90.0 + 320.0 * args.metric.len() as f64 });
    let options = ChartOptions { log: args.log, smoothing: args.smooth, window: (args.steps.from, args.steps.to) };
    let svg = plot::draw_svg(&dirs, &args.metric, (size.width, size.height), &options, &theme)?;
    let bytes = if is_png { plot::render_png(&svg, args.scale as f32)? } else { svg.into() };
    write_whole(&args.out, &bytes).map_err(|error| Failure::new(1, format!("{}: {error}", text::path(&args.out))))?;
    line!("{}", text::path(&args.out));
    Ok(0)
}

/// Finds a shipped theme.
fn theme(name: &str) -> Result<Theme, Failure> {
    let themes = Theme::shipped().map_err(|error| Failure::new(1, error.to_string()))?;
    let known: Vec<String> = themes.iter().map(|theme| theme.name.clone()).collect();
    let unknown = || Failure::new(2, format!("unknown theme `{name}`; choose from {}", known.join(", ")));
    themes.into_iter().find(|theme| theme.name == name).ok_or_else(unknown)
}

fn parse_weight(text: &str) -> Result<f64, BadValue> {
    parse_number(text, 0.0, 0.999)
}

fn parse_scale(text: &str) -> Result<f64, BadValue> {
    parse_number(text, 0.25, 8.0)
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Size {
    width: f64,
    height: f64,
}

impl FromStr for Size {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let number = |text: &str| text.parse::<f64>().ok().filter(|size| (200.0..=10_000.0).contains(size));
        let (width, height) = text.split_once('x').ok_or(BadValue::PictureSize)?;
        let (width, height) = number(width).zip(number(height)).ok_or(BadValue::PictureSize)?;
        Ok(Self { width, height })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Window {
    from: Option<u64>,
    to: Option<u64>,
}

impl FromStr for Window {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let (from, to) = text.split_once("..").ok_or(BadValue::StepRange)?;
        let end = |text: &str| {
            if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(|_| BadValue::StepRange) }
        };
        let window = Self { from: end(from)?, to: end(to)? };
        let is_empty = window.from.zip(window.to).is_some_and(|(from, to)| from >= to);
        if is_empty { Err(BadValue::StepRange) } else { Ok(window) }
    }
}

#[cfg(test)]
mod tests;
