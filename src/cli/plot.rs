//! Plots charts: SVG, or the same SVG rendered as PNG with a font that ships inside.
//!
//! ```text
//! store ─ curve ─▶ Series ─ columns, one per pixel ─▶ panel ─▶ SVG ─ resvg ─▶ PNG
//! ```

mod figure;
mod panel;
mod png;
mod svg;

use super::{Failure, Outcome, find_run, line, open_store};
use crate::cockpit::series::Series;
use crate::cockpit::series::axis::Axis;
use crate::config::theme::Theme;
use crate::protocol::control::EvalRow;
use crate::store::curve::{Piece, Stretch};
use crate::store::run_dir::{RunDir, write_whole};
use crate::untrusted::text;
use clap::Args;
use figure::Figure;
use panel::Wishes;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use svg::Palette;

/// Arguments of `plot`.
#[derive(Debug, Args)]
pub struct PlotArgs {
    /// Names or folders of runs, drawn in one chart; defaults to the newest run
    #[arg(value_name = "RUN")]
    runs: Vec<String>,
    /// The output file, ending in .svg or .png
    #[arg(long, short, value_name = "FILE")]
    out: PathBuf,
    /// The metrics, one chart each: loss, eval, lr, grad_norm, step_ms, data_wait_ms, compute_ms, waiting
    #[arg(long, short, value_delimiter = ',', default_value = "loss", value_name = "NAMES")]
    metric: Vec<Figure>,
    /// Use a logarithmic scale
    #[arg(long)]
    log: bool,
    /// Smoothing weight, 0 to 0.999; 0 draws only the measured values
    #[arg(long, default_value_t = 0.9, value_parser = weight)]
    smooth: f64,
    /// Steps to draw: FROM..TO, FROM.. or ..TO
    #[arg(long, default_value = "..", value_name = "RANGE")]
    steps: Window,
    /// Width and height; defaults to 1200 wide and as high as the charts need
    #[arg(long, value_name = "WxH")]
    size: Option<Size>,
    /// PNG pixels per unit of --size
    #[arg(long, default_value_t = 2.0, value_parser = scale)]
    scale: f32,
    /// The name of a colour theme, such as light or dark
    #[arg(long, default_value = "light")]
    theme: String,
}

/// The data of a run to draw.
struct Loaded {
    name: String,
    series: Series,
    evals: Vec<EvalRow>,
    /// Steps of the checkpoints that still exist.
    checkpoints: Vec<u64>,
    /// The best evaluation whose weights are on disk: its step and loss.
    best: Option<(u64, f64)>,
    /// The names of its rungs.
    rungs: Vec<String>,
}

pub fn plot(args: &PlotArgs, runs: &Path) -> Outcome {
    let kind = args.out.extension().map(|kind| kind.to_string_lossy().to_lowercase());
    let is_png = match kind.as_deref() {
        Some("svg") => false,
        Some("png") => true,
        _ => {
            let wrong = format!("{}: write a name that ends in .svg or .png", text::path(&args.out));
            return Err(Failure::new(2, wrong));
        }
    };
    let palette = palette(&args.theme)?;
    let wanted: Vec<Option<&str>> = match args.runs.as_slice() {
        [] => vec![None],
        names => names.iter().map(|name| Some(name.as_str())).collect(),
    };
    let dirs = wanted.into_iter().map(|name| find_run(runs, name)).collect::<Result<Vec<_>, _>>()?;
    let mut loaded = dirs.iter().map(load).collect::<Result<Vec<_>, _>>()?;
    let size = args.size.unwrap_or(Size { width: 1200.0, height: 90.0 + 320.0 * args.metric.len() as f64 });
    let wishes = Wishes { log: args.log, weight: args.smooth, window: (args.steps.from, args.steps.to) };
    read_closely(&mut loaded, &wishes, &dirs, size.width as usize)?;
    let text = svg::picture(&loaded, &args.metric, (size.width, size.height), &wishes, &palette);
    let text = text.ok_or_else(|| {
        let names: Vec<&str> = loaded.iter().map(|run| run.name.as_str()).collect();
        Failure::new(1, format!("nothing to draw: {} has no value of these metrics there", names.join(", ")))
    })?;
    let bytes = if is_png { png::paint(&text, args.scale).map_err(|why| Failure::new(1, why))? } else { text.into() };
    write_whole(&args.out, &bytes).map_err(|error| Failure::new(1, format!("{}: {error}", text::path(&args.out))))?;
    line!("{}", text::path(&args.out));
    Ok(0)
}

fn load(dir: &RunDir) -> Result<Loaded, Failure> {
    let words = |error| Failure::new(1, format!("{}: {error}", text::path(&dir.file("run.db"))));
    let reader = open_store(dir)?;
    let mut series = Series::default();
    let take = |stretch: &Stretch, piece: Piece<'_>| match piece {
        Piece::Leaf(leaf) => series.extend(stretch.attempt, stretch.rung, leaf),
        Piece::Row(row) => drop(series.push(row)),
    };
    reader.curve(take).map_err(words)?;
    let kept: Vec<_> = reader.checkpoints().map_err(words)?.into_iter().filter(|row| row.kept).collect();
    Ok(Loaded {
        name: dir.name(),
        series,
        evals: reader.evals().map_err(words)?,
        checkpoints: kept.iter().map(|row| row.step).collect(),
        best: kept.iter().find(|row| row.best).and_then(|row| Some((row.step, row.eval_loss?))),
        rungs: dir.run().map(|run| run.rungs.into_iter().map(|rung| rung.name).collect()).unwrap_or_default(),
    })
}

/// Reads individual steps if a chart has a finer resolution than the stored summaries.
fn read_closely(runs: &mut [Loaded], wishes: &Wishes, dirs: &[RunDir], pixels: usize) -> Result<(), Failure> {
    let Some((start, end)) = panel::window(runs, wishes) else { return Ok(()) };
    for (run, dir) in runs.iter_mut().zip(dirs) {
        if let Some(steps) = run.series.missing(Axis::Steps, &(start..end), pixels) {
            run.series.fill(&open_store(dir)?.curve_rows(&steps)?);
        }
    }
    Ok(())
}

fn palette(name: &str) -> Result<Palette, Failure> {
    let themes = Theme::shipped().map_err(|why| Failure::new(1, why))?;
    let known: Vec<String> = themes.iter().map(|theme| theme.name.clone()).collect();
    let found = themes.into_iter().find(|theme| theme.name == name);
    let unknown = || Failure::new(2, format!("no theme is called `{name}`; there are {}", known.join(", ")));
    Ok(Palette::of(&found.ok_or_else(unknown)?))
}

fn weight(text: &str) -> Result<f64, String> {
    let weight = text.parse::<f64>().ok().filter(|weight| (0.0..=0.999).contains(weight));
    weight.ok_or_else(|| "write a number from 0 to 0.999".to_owned())
}

fn scale(text: &str) -> Result<f32, String> {
    let scale = text.parse::<f32>().ok().filter(|scale| (0.25..=8.0).contains(scale));
    scale.ok_or_else(|| "write a number from 0.25 to 8".to_owned())
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Size {
    width: f64,
    height: f64,
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write WIDTHxHEIGHT, each from 200 to 10000, such as 1200x700".to_owned();
        let number = |text: &str| text.parse::<f64>().ok().filter(|size| (200.0..=10_000.0).contains(size));
        let (width, height) = text.split_once('x').ok_or_else(wrong)?;
        Ok(Self { width: number(width).ok_or_else(wrong)?, height: number(height).ok_or_else(wrong)? })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Window {
    from: Option<u64>,
    to: Option<u64>,
}

impl FromStr for Window {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write FROM..TO, FROM.. or ..TO, such as 1000..5000".to_owned();
        let (from, to) = text.split_once("..").ok_or_else(wrong)?;
        let end = |text: &str| if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(|_| wrong()) };
        let window = Self { from: end(from)?, to: end(to)? };
        if window.from.zip(window.to).is_some_and(|(from, to)| from >= to) { Err(wrong()) } else { Ok(window) }
    }
}

#[cfg(test)]
mod tests;
