//! Screen state: what is displayed, and how.

use super::chart::Chart;
use crate::cockpit::quantity::Quantity;

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
}

impl View {
    /// All views, in key order.
    pub const ALL: [Self; 6] = [Self::Overview, Self::Charts, Self::Ladder, Self::Log, Self::Health, Self::Runs];

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
}

impl Panel {
    /// Returns the view that gives the panel the most space.
    #[must_use]
    pub fn own_view(self) -> View {
        match self {
            Self::Chart(_) => View::Charts,
            Self::Ladder | Self::Rung => View::Ladder,
            Self::Journal | Self::Log => View::Log,
            Self::Gauges | Self::Checkpoints => View::Health,
            Self::RunList | Self::Compare | Self::Difference => View::Runs,
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
    /// The stop confirmation is open.
    Stop,
    /// Letters go into the filter for journal and log.
    Filter,
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
    /// Chart settings.
    pub chart: Chart,
    /// Number of charts scrolled past before the first visible one.
    pub charts_from: usize,
    /// Chart that fills the whole view.
    pub full: Option<Quantity>,
    /// Quantity that is compared between runs.
    pub compared: Quantity,
    /// The rung under the cursor of the ladder.
    pub chosen_rung: Option<usize>,
    /// Lines above the newest in the journal.
    pub journal_back: usize,
    /// Lines above the newest in the log.
    pub log_back: usize,
    /// Rows above the newest among the checkpoints.
    pub checkpoints_back: usize,
    /// Text that lines of journal and log must contain.
    pub filter: String,
    /// Search text in the palette.
    pub search: String,
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
            chart: Chart::default(),
            charts_from: 0,
            full: None,
            compared: Quantity::Loss,
            chosen_rung: None,
            journal_back: 0,
            log_back: 0,
            checkpoints_back: 0,
            filter: String::new(),
            search: String::new(),
            theme: 0,
            trouble_hidden: false,
        }
    }
}
