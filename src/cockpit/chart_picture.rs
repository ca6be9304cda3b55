//! A chart of the cockpit as a picture beside the run: the same metric, steps, scale and smoothing.

use super::plot::curve::mean_range;
use super::quantity::{Quantity, Source};
use super::state::State;
use super::state::screen::Panel;
use crate::export::ExportError;
use crate::export::plot::{self, ChartOptions, Figure};
use crate::store::run_dir::{RunDir, write_whole};
use crate::theme::Theme;
use std::path::PathBuf;

/// Width and height of a picture, and the pixels of a PNG per unit of them.
const SIZE: (f64, f64) = (1200.0, 410.0);
const SCALE: f32 = 2.0;
/// Columns that tell whether the visible values span decades.
const COLUMNS: usize = 200;

/// The format of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PictureFormat {
    /// Lines and text, for documents.
    Svg,
    /// Pixels, for chats.
    Png,
}

/// A chart to write as a picture.
#[derive(Debug, Clone, PartialEq)]
pub struct ChartPicture {
    figure: Figure,
    format: PictureFormat,
    log: bool,
    smoothing: f64,
    /// First and last step, if not the whole run is visible.
    steps: Option<(u64, u64)>,
    /// Other runs in the same chart, by name.
    others: Vec<String>,
}

impl ChartPicture {
    /// Describes the focused chart; none if another panel has the focus, or the chart shows a sensor.
    #[must_use]
    pub fn of_focused(state: &State, format: PictureFormat) -> Option<Self> {
        let (quantity, others) = match state.screen.focus {
            Panel::Chart(quantity) => (quantity, Vec::new()),
            Panel::Compare => (state.screen.compared, state.runs.marked.clone()),
            _ => return None,
        };
        let chart = state.screen.chart;
        // In the replay, the picture ends at the moment on the screen.
        let past = state.replay.as_ref().and_then(|replay| replay.shown.as_deref());
        let (state, whole) = (past.unwrap_or(state), chart.is_fit() && past.is_none());
        let step = |place: f64| state.facts.series.at(chart.axis, place).map(|at| at.spot().step);
        let window = state.curve_ends().filter(|_| !whole).map(|ends| chart.window(ends));
        Some(Self {
            figure: figure_of(quantity, state)?,
            format,
            log: is_log(quantity, state),
            smoothing: chart.weight(),
            steps: window.and_then(|(start, end)| Some((step(start)?, step(end)?))),
            others,
        })
    }

    /// Draws the picture and writes it beside the run directory; returns its path.
    ///
    /// # Errors
    /// Returns an error when a store cannot be read, there is nothing to draw, or the file cannot be written.
    pub fn write(&self, run: &RunDir, theme: &Theme) -> Result<PathBuf, ExportError> {
        let folder = run.path().parent().unwrap_or(run.path());
        let others = self.others.iter().filter_map(|name| RunDir::find(folder, Some(name)).ok());
        let runs: Vec<RunDir> = std::iter::once(run.clone()).chain(others).collect();
        let window = (self.steps.map(|(first, _)| first), self.steps.map(|(_, last)| last));
        let options = ChartOptions { log: self.log, smoothing: self.smoothing, window };
        let svg = plot::draw_svg(&runs, std::slice::from_ref(&self.figure), SIZE, &options, theme)?;
        let bytes = match self.format {
            PictureFormat::Svg => svg.into_bytes(),
            PictureFormat::Png => plot::render_png(&svg, SCALE)?,
        };
        let path = folder.join(self.file_name(&run.name()));
        write_whole(&path, &bytes).map_err(|source| ExportError::Io { path: path.clone(), source })?;
        Ok(path)
    }

    fn file_name(&self, run: &str) -> String {
        let steps = self.steps.map_or_else(String::new, |(first, last)| format!("-{first}-{last}"));
        let ending = match self.format {
            PictureFormat::Svg => "svg",
            PictureFormat::Png => "png",
        };
        let compared = if self.others.is_empty() { "" } else { "-compared" };
        format!("{run}-{}{compared}{steps}.{ending}", self.figure.name().replace('/', "-"))
    }
}

/// Reports whether the chart on the screen has a logarithmic scale.
fn is_log(quantity: Quantity, state: &State) -> bool {
    let chart = state.screen.chart;
    let visible = state.curve_ends().map(|ends| chart.window(ends));
    let columns = visible.map(|(start, end)| quantity.columns(state, chart.axis, start..end, COLUMNS));
    let range = columns.and_then(|columns| mean_range(&columns));
    range.is_some_and(|range| quantity.scale(chart.scale).is_log(range))
}

fn figure_of(quantity: Quantity, state: &State) -> Option<Figure> {
    let metrics = &state.facts.metrics;
    match quantity.source() {
        Source::Steps(metric) => Some(Figure::Step(metric)),
        Source::Named(id) => metrics.steps.name(id).map(|name| Figure::Named(name.to_owned())),
        Source::Evaluations => Some(Figure::Eval),
        Source::EvalNamed(id) => metrics.evals.name(id).map(|name| Figure::Named(format!("eval/{name}"))),
        Source::Skips | Source::Probe(_) => None,
    }
}
