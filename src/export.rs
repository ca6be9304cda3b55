//! Files of a run for other programs: pictures of its charts, its rows, TensorBoard event files, a page for a browser.

pub mod plot;
pub mod report;
pub mod rows;
pub mod tensorboard;

use crate::config::typed::suggest;
use crate::store::reader::UnreadableStore;
use crate::store::run_dir::{RunDir, RunDirError};
use crate::untrusted::text;
use std::io;
use std::path::PathBuf;

/// Reason why a run cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] UnreadableStore),
    /// A file of the run is a link.
    #[error(transparent)]
    Run(#[from] RunDirError),
    /// A query of the store failed.
    #[error("{}: {source}", text::path(.file))]
    Query {
        /// The store.
        file: PathBuf,
        /// The error of `SQLite`.
        source: Box<rusqlite::Error>,
    },
    /// A file or a folder cannot be written.
    #[error("{}: {source}", text::path(.path))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// TensorBoard would show two curves of one run.
    #[error("{} already has event files, and TensorBoard would show both; name another --out", text::path(.0))]
    HasEvents(PathBuf),
    /// No run reports a metric by this name.
    #[error("unknown metric `{name}`; {}", suggest(name, &known.iter().map(String::as_str).collect::<Vec<_>>()))]
    UnknownMetric {
        /// The name.
        name: String,
        /// The names of all metrics.
        known: Vec<String>,
    },
    /// No run has a value of the metrics in the range of steps.
    #[error("nothing to draw: {} has no value of these metrics in this range", .0.join(", "))]
    NothingToDraw(Vec<String>),
    /// The picture has too many pixels.
    #[error("a picture of {width} × {height} pixels is too large; use a smaller --size or --scale")]
    TooLarge {
        /// Its width.
        width: u32,
        /// Its height.
        height: u32,
    },
    /// The picture cannot be rendered.
    #[error("the picture cannot be rendered: {0}")]
    Render(String),
}

impl ExportError {
    fn query(run: &RunDir, source: rusqlite::Error) -> Self {
        Self::Query { file: run.file("run.db"), source: Box::new(source) }
    }
}
