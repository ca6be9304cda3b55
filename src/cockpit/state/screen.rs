//! What is looked at, and how.

use super::chart::Chart;
use crate::cockpit::quantity::Quantity;

/// A way to lay out the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum View {
    /// Everything.
    Overview,
    /// Every figure over the run.
    Curves,
    /// The ladder, and a rung in full.
    Rungs,
    /// Journal and log.
    Words,
    /// Checkpoints, GPU and machine.
    Health,
    /// All runs, beside each other.
    Runs,
}

impl View {
    /// All of them, in the order of their keys.
    pub const ALL: [Self; 6] = [Self::Overview, Self::Curves, Self::Rungs, Self::Words, Self::Health, Self::Runs];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Overview => "overview",
            Self::Curves => "charts",
            Self::Rungs => "ladder",
            Self::Words => "log",
            Self::Health => "health",
            Self::Runs => "runs",
        }
    }
}

/// A part of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Panel {
    /// A figure over the run.
    Chart(Quantity),
    /// Figures with a limit.
    Gauges,
    /// The rungs.
    Ladder,
    /// One rung in full.
    Rung,
    /// The checkpoints.
    Checkpoints,
    /// What happened.
    Journal,
    /// What the worker printed.
    Log,
    /// All runs.
    RunList,
    /// Losses of several runs.
    Compare,
    /// Where a run is configured differently.
    Difference,
}

impl Panel {
    /// The view that gives it the most room.
    #[must_use]
    pub fn own_view(self) -> View {
        match self {
            Self::Chart(_) => View::Curves,
            Self::Ladder | Self::Rung => View::Rungs,
            Self::Journal | Self::Log => View::Words,
            Self::Gauges | Self::Checkpoints => View::Health,
            Self::RunList | Self::Compare | Self::Difference => View::Runs,
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
    /// The list of actions is open; letters search it.
    Palette {
        /// Which of those found is chosen.
        chosen: usize,
    },
    /// The preview of a shift to this rung is open.
    Preview {
        /// Its number.
        to: usize,
    },
    /// The question before a stop is open.
    Stop,
    /// Letters go into the filter of journal and log.
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
    /// The charts.
    pub chart: Chart,
    /// How many charts come before the first one seen.
    pub charts_from: usize,
    /// A chart that has the whole view.
    pub full: Option<Quantity>,
    /// The rung under the cursor of the ladder.
    pub chosen_rung: Option<usize>,
    /// Lines above the newest in the journal.
    pub journal_back: usize,
    /// Lines above the newest in the log.
    pub log_back: usize,
    /// Rows above the newest among the checkpoints.
    pub checkpoints_back: usize,
    /// Words that lines of journal and log must hold.
    pub filter: String,
    /// What is searched in the list of actions.
    pub search: String,
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
            focus: Panel::Chart(Quantity::Loss),
            mode: Mode::Normal,
            chart: Chart::default(),
            charts_from: 0,
            full: None,
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
