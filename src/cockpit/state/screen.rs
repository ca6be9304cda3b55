//! Screen state: what is displayed, and how.

use super::chart::Chart;
use super::journal::Kinds;
use super::layers::LayerCursor;
use super::samples::SampleCursor;
use crate::cockpit::quantity::Quantity;
use crate::protocol::control::Request;
use crate::store::removal::RunSize;

/// A screen layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum View {
    /// Summary of everything.
    Overview,
    /// Every metric over the run.
    Charts,
    /// The ladder, and one rung in full.
    Ladder,
    /// Journal and log.
    Log,
    /// Checkpoints, GPU and host.
    Health,
    /// All runs, for comparison.
    Runs,
    /// Samples of the model's work.
    Samples,
    /// The state of the model's layers.
    Layers,
    /// The ranks of a distributed training.
    Ranks,
}

impl View {
    /// All views, in key order.
    pub const ALL: [Self; 9] = [
        Self::Overview,
        Self::Charts,
        Self::Ladder,
        Self::Log,
        Self::Health,
        Self::Runs,
        Self::Samples,
        Self::Layers,
        Self::Ranks,
    ];

    /// Returns the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Overview => "overview",
            Self::Charts => "charts",
            Self::Ladder => "ladder",
            Self::Log => "log",
            Self::Health => "health",
            Self::Runs => "runs",
            Self::Samples => "samples",
            Self::Layers => "layers",
            Self::Ranks => "ranks",
        }
    }
}

/// A part of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Panel {
    /// A metric over the run.
    Chart(Quantity),
    /// Metrics with a limit.
    Gauges,
    /// The rungs.
    Ladder,
    /// One rung in full.
    Rung,
    /// The checkpoints.
    Checkpoints,
    /// The run's events.
    Journal,
    /// The worker's output.
    Log,
    /// All runs.
    RunList,
    /// A metric of several runs.
    Compare,
    /// Configuration differences of a run.
    Difference,
    /// Samples of the model's work.
    Samples,
    /// Which classes were taken for which.
    Confusion,
    /// A value of each layer over the evaluations.
    Layers,
    /// The ranks of a distributed training.
    Ranks,
}

/// A request that ends the worker, and that the user confirms if steps may be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerEnd {
    /// Ends the run.
    Stop,
    /// Ends the worker until the run is resumed.
    Pause,
    /// Starts the worker again.
    Restart,
}

impl WorkerEnd {
    /// Returns the request that ends the worker.
    #[must_use]
    pub fn request(self) -> Request {
        match self {
            Self::Stop => Request::Stop,
            Self::Pause => Request::Pause,
            Self::Restart => Request::Restart,
        }
    }
}

/// Current meaning of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// As listed in the table of actions.
    Normal,
    /// The list of keys is open.
    Help {
        /// First visible line, if not all fit.
        from: usize,
    },
    /// The palette is open; letters search it.
    Palette {
        /// Index of the selected match.
        chosen: usize,
    },
    /// The preview of a shift to this rung is open.
    Preview {
        /// Number of the rung.
        to: usize,
    },
    /// The question before the worker ends is open.
    WorkerEnd(WorkerEnd),
    /// The box of the alerts is open.
    Alerts {
        /// First visible line, if not all fit.
        from: usize,
    },
    /// The box of a fault is open.
    Fault {
        /// Id of the journal line that names it.
        id: i64,
        /// First visible line, if not all fit.
        from: usize,
    },
    /// Letters go into the filter for journal and log, or in the charts view into the search for charts.
    Filter,
    /// The menu of a run or a checkpoint is open.
    Menu {
        /// Index of the selected entry.
        chosen: usize,
    },
    /// The question before a deletion is open.
    Delete,
    /// Letters go into a line at the bottom.
    Prompt(Prompt),
}

/// The keys pressed while a question is open.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Question {
    /// When it opened, Unix milliseconds.
    pub opened_ms: i64,
    /// Characters that answer nothing. The user types something else, so only Esc counts from the first one on.
    pub typed: String,
}

/// Use of a line that the user types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prompt {
    /// Words that rows of the run table must contain.
    FindRuns,
    /// The tags of a run.
    Tags,
    /// The note of a run.
    Note,
    /// The file to export weights to.
    Export,
}

impl Prompt {
    /// Returns the words before the line.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::FindRuns => "find runs: ",
            Self::Tags => "tags: ",
            Self::Note => "note: ",
            Self::Export => "export to: ",
        }
    }
}

/// State of the display.
#[derive(Debug, Clone, PartialEq)]
pub struct Screen {
    /// Columns and rows of the terminal.
    pub size: (u16, u16),
    /// Current view.
    pub view: View,
    /// Panel that arrow keys act on.
    pub focus: Panel,
    /// Current meaning of keys.
    pub mode: Mode,
    /// The open question, if the mode is one.
    pub question: Question,
    /// Chart settings.
    pub chart: Chart,
    /// Number of charts scrolled past before the first visible one.
    pub charts_from: usize,
    /// Chart that fills the whole view.
    pub full: Option<Quantity>,
    /// Titles of the pinned charts, in the order they were pinned.
    pub pins: Vec<String>,
    /// Words that the title or the group of a chart must contain.
    pub chart_search: String,
    /// Quantity that is compared between runs.
    pub compared: Quantity,
    /// The rung under the cursor of the ladder.
    pub chosen_rung: Option<usize>,
    /// First visible line of the rung in full, if not all fit.
    pub rung_from: usize,
    /// Entries above the newest in the journal: the cursor.
    pub journal_back: usize,
    /// Kinds of entries that the journal shows.
    pub journal_kinds: Kinds,
    /// Lines above the newest in the log.
    pub log_back: usize,
    /// Index of the checkpoint under the cursor, from the newest.
    pub chosen_checkpoint: usize,
    /// Position in the samples view.
    pub samples: SampleCursor,
    /// Position in the layers view.
    pub layers: LayerCursor,
    /// Number of ranks scrolled past before the first visible one.
    pub ranks_from: usize,
    /// Text that lines of journal and log must contain.
    pub filter: String,
    /// Search text in the palette.
    pub search: String,
    /// Text of the line that is being typed.
    pub input: String,
    /// Size of the run that is about to be deleted, once measured.
    pub delete_size: Option<RunSize>,
    /// Index of the theme.
    pub theme: usize,
    /// Whether the user closed the box that reports a problem.
    pub trouble_hidden: bool,
}

impl Screen {
    /// Returns the initial screen.
    #[must_use]
    pub fn new(size: (u16, u16)) -> Self {
        Self {
            size,
            view: View::Overview,
            focus: Panel::Chart(Quantity::Loss),
            mode: Mode::Normal,
            question: Question::default(),
            chart: Chart::default(),
            charts_from: 0,
            full: None,
            pins: Vec::new(),
            chart_search: String::new(),
            compared: Quantity::Loss,
            chosen_rung: None,
            rung_from: 0,
            journal_back: 0,
            journal_kinds: Kinds::All,
            log_back: 0,
            chosen_checkpoint: 0,
            samples: SampleCursor::default(),
            layers: LayerCursor::default(),
            ranks_from: 0,
            filter: String::new(),
            search: String::new(),
            input: String::new(),
            delete_size: None,
            theme: 0,
            trouble_hidden: false,
        }
    }

    /// Returns the text that letters go into while a filter is typed: in the charts view the search for charts.
    pub fn typed_filter(&mut self) -> &mut String {
        if self.view == View::Charts { &mut self.chart_search } else { &mut self.filter }
    }
}
