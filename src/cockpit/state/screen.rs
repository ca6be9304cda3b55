//! What is looked at, and how.

use super::chart::Chart;

/// A way to lay out the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum View {
    /// Everything.
    Overview,
    /// Loss, gradient norm, step time.
    Curves,
    /// Ladder and checkpoints.
    Rungs,
    /// Journal and log.
    Words,
    /// GPU and machine over time.
    Health,
}

/// A part of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Panel {
    /// The loss curve.
    Loss,
    /// Norm of the gradient.
    GradNorm,
    /// Time a step takes.
    StepTime,
    /// Figures with a limit.
    Gauges,
    /// GPU and machine over time.
    Trends,
    /// The rungs.
    Ladder,
    /// The checkpoints.
    Checkpoints,
    /// What happened.
    Journal,
    /// What the worker printed.
    Log,
}

impl Panel {
    /// The view that gives it the most room.
    #[must_use]
    pub fn own_view(self) -> View {
        match self {
            Self::Loss | Self::GradNorm | Self::StepTime => View::Curves,
            Self::Ladder | Self::Checkpoints => View::Rungs,
            Self::Journal | Self::Log => View::Words,
            Self::Gauges | Self::Trends => View::Health,
        }
    }
}

/// What keys mean just now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// What the table says.
    Normal,
    /// The list of keys is open.
    Help {
        /// The first line seen, where not all fit.
        from: usize,
    },
    /// The preview of a shift to this rung is open.
    Preview {
        /// Its number.
        to: usize,
    },
    /// The question before a stop is open.
    Stop,
    /// Letters go into the filter of the log.
    Filter,
}

/// What is looked at.
#[derive(Debug, Clone, PartialEq)]
pub struct Screen {
    /// Columns and rows of the terminal.
    pub size: (u16, u16),
    /// The layout.
    pub view: View,
    /// The panel that arrows act on.
    pub focus: Panel,
    /// What keys mean.
    pub mode: Mode,
    /// The chart.
    pub chart: Chart,
    /// The rung under the cursor of the ladder.
    pub chosen_rung: Option<usize>,
    /// Lines above the newest in the journal.
    pub journal_back: usize,
    /// Lines above the newest in the log.
    pub log_back: usize,
    /// Rows above the newest among the checkpoints.
    pub checkpoints_back: usize,
    /// Words that lines of the log must hold.
    pub filter: String,
    /// Which theme.
    pub theme: usize,
    /// A person closed the box that says what is wrong.
    pub trouble_hidden: bool,
}

impl Screen {
    /// The first look.
    #[must_use]
    pub fn new(size: (u16, u16)) -> Self {
        Self {
            size,
            view: View::Overview,
            focus: Panel::Loss,
            mode: Mode::Normal,
            chart: Chart::default(),
            chosen_rung: None,
            journal_back: 0,
            log_back: 0,
            checkpoints_back: 0,
            filter: String::new(),
            theme: 0,
            trouble_hidden: false,
        }
    }
}
