//! Charts as SVG, or the same SVG rendered as PNG with a font that ships inside.
//!
//! ```text
//! store ─ curve ─▶ Series ─ columns, one per pixel ─▶ panel ─▶ SVG ─ resvg ─▶ PNG
//! ```

mod figure;
mod palette;
mod panel;
mod png;
mod svg;

use super::ExportError;
use crate::protocol::control::EvalRow;
use crate::series::Series;
use crate::series::axis::Axis;
use crate::store::curve::{Piece, Stretch};
use crate::store::reader::Reader;
use crate::store::run_dir::RunDir;
use crate::theme::Theme;
pub use figure::Figure;
use palette::Palette;
pub use panel::ChartOptions;
pub use png::render_png;

/// The data of a run to draw.
pub(super) struct Loaded {
    name: String,
    pub(super) series: Series,
    pub(super) evals: Vec<EvalRow>,
    /// Steps of the checkpoints that still exist.
    pub(super) checkpoints: Vec<u64>,
    /// The best evaluation whose weights are on disk: its step and loss.
    best: Option<(u64, f64)>,
    /// The names of its rungs.
    pub(super) rungs: Vec<String>,
}

/// Draws the charts of several runs as SVG, `size` wide and high.
///
/// # Errors
/// Returns an error when a store cannot be read, or there is nothing to draw.
pub fn draw_svg(
    dirs: &[RunDir],
    figures: &[Figure],
    size: (f64, f64),
    options: &ChartOptions,
    theme: &Theme,
) -> Result<String, ExportError> {
    let mut loaded = dirs.iter().map(load).collect::<Result<Vec<_>, _>>()?;
    if let Some(unknown) = figures.iter().find(|figure| loaded.iter().all(|run| figure.find_in(run).is_none())) {
        let (name, known) = (unknown.title().to_owned(), figure::figure_names(&loaded));
        return Err(ExportError::UnknownMetric { name, known });
    }
    load_steps(&mut loaded, options, dirs, size.0 as usize)?;
    svg::draw(&loaded, figures, size, options, &Palette::of(theme))
        .ok_or_else(|| ExportError::NothingToDraw(loaded.into_iter().map(|run| run.name).collect()))
}

/// Reads the curve of a run.
pub(super) fn load(dir: &RunDir) -> Result<Loaded, ExportError> {
    let query_failed = |source| ExportError::query(dir, source);
    let reader = Reader::open_begun(dir)?;
    let mut series = Series::with_names(reader.metric_names().map_err(query_failed)?);
    let add_piece = |stretch: &Stretch, piece: Piece| match piece {
        Piece::Leaf(leaf) => series.extend(stretch.attempt, stretch.rung, leaf),
        Piece::Row(row) => drop(series.push(&row)),
    };
    reader.curve(add_piece).map_err(query_failed)?;
    let kept: Vec<_> = reader.checkpoints().map_err(query_failed)?.into_iter().filter(|row| row.kept).collect();
    let mut evals = reader.evals().map_err(query_failed)?;
    evals.retain(|row| !series.is_redone(row.attempt, row.eval.step));
    Ok(Loaded {
        name: dir.name(),
        series,
        evals,
        checkpoints: kept.iter().map(|row| row.step).collect(),
        best: kept.iter().find(|row| row.best).and_then(|row| Some((row.step, row.eval_loss?))),
        rungs: dir.run().map(|run| run.rungs.into_iter().map(|rung| rung.name).collect()).unwrap_or_default(),
    })
}

/// Reads individual steps if a chart has a finer resolution than the stored summaries.
fn load_steps(runs: &mut [Loaded], options: &ChartOptions, dirs: &[RunDir], pixels: usize) -> Result<(), ExportError> {
    let Some((start, end)) = panel::shared_window(runs, options) else { return Ok(()) };
    for (run, dir) in runs.iter_mut().zip(dirs) {
        if let Some(steps) = run.series.missing(Axis::Steps, &(start..end), pixels) {
            let rows = Reader::open_begun(dir)?.curve_rows(&steps);
            run.series.fill(&rows.map_err(|source| ExportError::query(dir, source))?);
        }
    }
    Ok(())
}
