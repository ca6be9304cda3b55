//! The events that reach the cockpit, and the effects it asks for.

use crate::cockpit::read_error::ReadError;
use crate::cockpit::state::facts::History;
use crate::cockpit::state::runs::{OtherRun, RunRow};
use crate::protocol::control::{Request, Status, StepRow, Update};
use crossterm::event::{KeyEvent, MouseEvent};
use std::ops::Range;

/// An event.
#[derive(Debug, Clone, PartialEq)]
pub enum Msg {
    /// A key was pressed.
    Key(KeyEvent),
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
    Runs(Vec<RunRow>),
    /// Another run was read, or could not be.
    Other {
        /// Name of the run.
        name: String,
        /// Its data, or the error.
        run: Result<OtherBox, ReadError>,
    },
    /// The terminal was released and taken again.
    Resumed,
    /// Another process asked this one to stop until it is resumed.
    SuspendRequested,
    /// Whether the run directory is at its expected path.
    RunDirExists(bool),
    /// New lines of the worker's log.
    Log(Vec<String>),
    /// The current time, Unix milliseconds.
    Tick(i64),
    /// The terminal will deliver no more keys.
    InputLost,
}

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
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// Close this cockpit and open one on the named run.
    Open(String),
    /// Release the terminal and stop until `fg`.
    Suspend,
    /// Read new lines of the worker's log.
    ReadLog,
    /// Check whether the run directory still exists.
    CheckRunDir,
    /// Ring the terminal's bell.
    Bell,
    /// Close the cockpit.
    Quit,
}
