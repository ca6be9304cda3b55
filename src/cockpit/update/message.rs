//! The events that reach the cockpit, and the effects it asks for.

use crate::cockpit::chart_picture::ChartPicture;
use crate::cockpit::errand::Errand;
use crate::cockpit::pictures::{PictureBox, PictureError, PictureOrder, PictureSupport};
use crate::cockpit::read_error::ReadError;
use crate::cockpit::state::facts::History;
use crate::cockpit::state::runs::OtherRun;
use crate::cockpit::state::samples::{SampleData, SetId};
use crate::protocol::claim::QueueChange;
use crate::protocol::control::{Request, Status, StepRow, Update};
use crate::series::layers::LayerHistory;
use crate::store::labels::LabelEdit;
use crate::store::removal::RunSize;
use crate::store::run_summary::RunSummary;
use crossterm::event::{KeyEvent, MouseEvent};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// An event.
#[derive(Debug, Clone, PartialEq)]
pub enum Msg {
    /// A key was pressed.
    Key(KeyEvent),
    /// Letters arrived at once, as text does.
    Burst(Vec<KeyEvent>),
    /// Text was pasted.
    Paste(String),
    /// The mouse moved, clicked or scrolled.
    Mouse(MouseEvent),
    /// The terminal was resized: columns, rows.
    Resize(u16, u16),
    /// The keeper sent an update.
    Keeper(Update),
    /// The keeper answers again.
    KeeperBack,
    /// The keeper does not answer; holds the operating system's error.
    KeeperLost(String),
    /// Status of the run, read from its directory while no keeper answers.
    StoredStatus(Option<Box<Status>>),
    /// The history was read, or could not be.
    History {
        /// Number of the request.
        asked: u64,
        /// The history, or the error.
        history: Result<HistoryBox, ReadError>,
    },
    /// Rows for a zoomed-in chart.
    Rows(Vec<StepRow>),
    /// The run at a past moment was read, or could not be.
    Moment {
        /// The moment, Unix milliseconds.
        at_ms: i64,
        /// The history up to that moment, or the error.
        history: Result<HistoryBox, ReadError>,
    },
    /// The runs in the folder.
    Runs(Vec<RunSummary>),
    /// A run was measured, before the question whether to delete it.
    RunMeasured {
        /// Name of the run.
        name: String,
        /// Contents of its directory.
        size: RunSize,
    },
    /// A run was changed, or could not be.
    RunChanged {
        /// Name of the run.
        name: String,
        /// The outcome.
        change: RunChange,
    },
    /// Another run was read, or could not be.
    Other {
        /// Name of the run.
        name: String,
        /// Its data, or the error.
        run: Result<OtherBox, ReadError>,
    },
    /// How the terminal shows pictures.
    Pictures(PictureSupport),
    /// The sets of samples, oldest first.
    SampleSets(Vec<SetId>),
    /// A set of samples was read, or could not be.
    SampleSet {
        /// The set.
        id: SetId,
        /// Its samples, or the error.
        set: Result<Arc<SampleData>, ReadError>,
    },
    /// A picture was read, or could not be.
    Picture {
        /// The order.
        order: PictureOrder,
        /// The picture, or the error.
        picture: Result<PictureBox, PictureError>,
    },
    /// The state of the layers was read, or could not be.
    LayerHistory(Result<LayerHistory, ReadError>),
    /// The terminal was released and taken again.
    Resumed,
    /// Another process asked this one to stop until it is resumed.
    SuspendRequested,
    /// Whether the run directory is at its expected path.
    RunDirExists(bool),
    /// New lines of the worker's log.
    Log(Vec<String>),
    /// This text was handed to the clipboard.
    Copied(String),
    /// tmux did not take this text.
    TmuxRefused(String),
    /// A chart was written to this file.
    ChartWritten(PathBuf),
    /// A chart could not be written, for the reason in this sentence.
    ChartRefused(String),
    /// The current time, Unix milliseconds.
    Tick(i64),
    /// The terminal will deliver no more keys.
    InputLost,
}

/// Outcome of a change to a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunChange {
    /// Its labels have changed.
    Labelled,
    /// It is deleted.
    Deleted(RunSize),
    /// The queue has changed; holds the answer.
    Queued(String),
    /// Nothing has changed.
    Refused(ChangeError),
}

/// Reason why a run was not changed; holds the sentence of the store's error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ChangeError(pub String);

/// A boxed [`History`], which keeps messages small.
#[derive(Debug, Clone)]
pub struct HistoryBox(pub Box<History>);

impl PartialEq for HistoryBox {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(&raw const *self.0, &raw const *other.0)
    }
}

/// A boxed [`OtherRun`].
#[derive(Debug, Clone)]
pub struct OtherBox(pub Box<OtherRun>);

impl PartialEq for OtherBox {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(&raw const *self.0, &raw const *other.0)
    }
}

/// A side effect to perform.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Draw: something visible has changed.
    Redraw,
    /// Redraw every cell.
    Repaint,
    /// Send a request to the keeper.
    Send(Request),
    /// Read the store; the reply carries this number.
    LoadHistory(u64),
    /// Read the run's status without its keeper.
    LoadStatus,
    /// Read this range of steps from the store.
    LoadRows(Range<u64>),
    /// Read the store up to a moment, Unix milliseconds.
    LoadMoment(i64),
    /// List the runs in the folder.
    ListRuns,
    /// Read another run: with its curve if true, otherwise only its config.
    LoadOther(String, bool),
    /// Change the labels of a run.
    EditLabels(String, LabelEdit),
    /// Change a run's place in the queue.
    ChangeQueue(String, QueueChange),
    /// Measure a run that may be deleted.
    MeasureRun(String),
    /// Delete a run.
    DeleteRun(String),
    /// Close this cockpit and carry out an errand.
    Leave(Errand),
    /// Release the terminal and stop until `fg`.
    Suspend,
    /// Read new lines of the worker's log.
    ReadLog,
    /// List the sets of samples.
    ListSamples,
    /// Read a set of samples.
    LoadSamples(SetId),
    /// Read and encode a picture.
    LoadPicture(PictureOrder),
    /// Read the state of the layers.
    LoadLayers,
    /// Check whether the run directory still exists.
    CheckRunDir,
    /// Copy a text to the clipboard.
    Copy(String),
    /// Copy a text to the clipboard by asking the terminal, not tmux.
    CopyByTerminal(String),
    /// Write a chart as a picture.
    WriteChart(ChartPicture),
    /// Ring the terminal's bell.
    Bell,
    /// Close the cockpit.
    Quit,
}
