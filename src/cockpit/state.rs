//! All state the screen is drawn from. Only `update` changes it. It holds no clock, connection or lock;
//! time arrives in messages.

pub mod alerts;
pub mod chart;
pub mod chart_list;
pub mod facts;
pub mod forecast;
pub mod journal;
pub mod ladder;
pub mod layers;
pub mod learning;
pub mod menu;
pub mod metrics;
pub mod opened;
pub mod pace;
pub mod readings;
pub mod replay;
pub mod requests;
pub mod runs;
pub mod samples;
pub mod screen;
pub mod shift_progress;

pub use ladder::RungView;

use super::keymap::Keymap;
use crate::config::best::Best;
use crate::config::command::CommandSpec;
use crate::config::knobs::Watch;
use crate::outlook::continuation::{Commands, Continuation};
use crate::protocol::control::{CheckpointRow, JournalKind, JournalRow, RunState, Status};
use crate::protocol::device::DeviceChoice;
use crate::protocol::ranks::RankRow;
use crate::protocol::worker::Level;
use alerts::ActiveAlerts;
use facts::Facts;
use layers::Layers;
use menu::Subject;
use replay::Replay;
use runs::Runs;
use samples::Samples;
use screen::Screen;
use shift_progress::ShiftProgress;

/// Connection to the keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Link {
    /// First attempt still under way.
    Waiting,
    /// Connected.
    Live,
    /// Connection broken; the run's status is being read from its directory.
    Dropped {
        /// Time of the loss, Unix milliseconds.
        since_ms: i64,
        /// Error from the operating system.
        reason: String,
        /// Whether the keeper answered before.
        was_live: bool,
    },
    /// Keeper unreachable; the status read from the run directory says why, if it could be read.
    Lost {
        /// Time of the loss, Unix milliseconds.
        since_ms: i64,
        /// Error from the operating system.
        reason: String,
    },
}

impl Link {
    /// Returns the time since which the keeper is unreachable, Unix milliseconds.
    #[must_use]
    pub fn lost_since_ms(&self) -> Option<i64> {
        match self {
            Self::Waiting | Self::Live => None,
            Self::Dropped { since_ms, .. } | Self::Lost { since_ms, .. } => Some(*since_ms),
        }
    }
}

/// A short response to a key, shown for some seconds in place of the verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Text of the notice.
    pub text: String,
    /// Whether the request was refused.
    pub refused: bool,
    /// Time at which the notice expires, Unix milliseconds.
    pub until_ms: i64,
}

/// The complete state.
#[derive(Debug, Clone)]
pub struct State {
    /// Data from the keeper and the store.
    pub facts: Facts,
    /// Screen: the view, the focus and their settings.
    pub screen: Screen,
    /// Connection to the keeper.
    pub link: Link,
    /// Shift or restart on display.
    pub shift_progress: ShiftProgress,
    /// Alerts, with the time since which they hold.
    pub alerts: ActiveAlerts,
    /// Steps arrived since the alerts were observed.
    pub unjudged_steps: bool,
    /// Response to the latest key.
    pub notice: Option<Notice>,
    /// Rungs, fastest first.
    pub ladder: Vec<RungView>,
    /// The command, in a run that starts one.
    pub command: Option<CommandSpec>,
    /// Thresholds.
    pub watch: Watch,
    /// Current time, Unix milliseconds.
    pub now_ms: i64,
    /// Offset of local time from UTC, seconds; positive if ahead.
    pub utc_offset_s: i32,
    /// Time of the last bell, Unix milliseconds.
    pub bell_ms: i64,
    /// Names of the themes to cycle through.
    pub themes: Vec<String>,
    /// Key bindings.
    pub keys: Keymap,
    /// Whether requests to the run are disabled.
    pub read_only: bool,
    /// Other runs.
    pub runs: Runs,
    /// Samples of the model's work.
    pub samples: Samples,
    /// The state of the model's layers.
    pub layers: Layers,
    /// The subject of an open menu, question or line.
    pub subject: Subject,
    /// The replay, if one is open.
    pub replay: Option<Replay>,
    /// In a state of the past: its time, Unix milliseconds.
    pub moment: Option<i64>,
    /// The commands that can continue the run, if its name alone does not tell.
    pub commands: Option<Commands>,
    /// The process that the run only watches, while it lives.
    pub watched: Option<u32>,
}

impl State {
    /// Creates the state before anything is known.
    #[must_use]
    pub fn new(ladder: Vec<RungView>, watch: Watch, size: (u16, u16), now_ms: i64, utc_offset_s: i32) -> Self {
        Self {
            facts: Facts::default(),
            screen: Screen::new(size),
            link: Link::Waiting,
            shift_progress: ShiftProgress::None,
            alerts: ActiveAlerts::default(),
            unjudged_steps: false,
            notice: None,
            ladder,
            command: None,
            watch,
            now_ms,
            utc_offset_s,
            bell_ms: i64::MIN,
            themes: Vec::new(),
            keys: Keymap::default(),
            read_only: false,
            runs: Runs::default(),
            samples: Samples::default(),
            layers: Layers::default(),
            subject: Subject::default(),
            replay: None,
            moment: None,
            commands: None,
            watched: None,
        }
    }

    /// Returns the checkpoint of the best evaluation whose weights are on disk; in a state of the past,
    /// of those saved by then.
    #[must_use]
    pub fn best(&self) -> Option<&CheckpointRow> {
        let mut rows = self.facts.checkpoints.values();
        if self.moment.is_none() {
            return rows.find(|row| row.best && row.kept);
        }
        let ranking = self.ranking();
        let measured = rows.filter_map(|row| Some((ranking.value(row.eval_loss, &row.metrics)?, row)));
        measured.min_by(|a, b| ranking.compare(a.0, b.0)).map(|(_, row)| row)
    }

    /// Returns how the current rung ranks checkpoints.
    #[must_use]
    pub fn ranking(&self) -> Best {
        let written = |rung: &RungView| rung.preset.pointer("/checkpoint/best").cloned();
        let best = self.ladder.get(self.rung().unwrap_or(0)).and_then(written);
        best.and_then(|best| serde_json::from_value(best).ok()).unwrap_or_default()
    }

    /// Returns the run's status, once known.
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        self.facts.status.as_ref()
    }

    /// Returns where the ranks of the command stand; none of a single one, or in the past.
    #[must_use]
    pub fn ranks(&self) -> &[RankRow] {
        self.status().filter(|_| self.moment.is_none()).map_or(&[], |status| &status.ranks)
    }

    /// Reports whether several ranks train.
    #[must_use]
    pub fn has_several_ranks(&self) -> bool {
        let world = self.status().and_then(|status| status.companion.as_ref()).map_or(1, |companion| companion.world);
        world > 1 || self.ranks().len() > 1
    }

    /// Returns the run's state, once known.
    #[must_use]
    pub fn run_state(&self) -> Option<RunState> {
        self.status().map(|status| status.state)
    }

    /// Reports whether the run is over, successfully or not.
    pub fn is_over(&self) -> bool {
        self.run_state().is_some_and(RunState::is_over)
    }

    /// Reports whether the run trains on a GPU; if not, a GPU's heat and memory are irrelevant to it.
    pub fn uses_card(&self) -> bool {
        self.status().and_then(|status| status.device.as_deref()).is_some_and(DeviceChoice::names_gpu)
    }

    /// Reports whether the run should have a keeper, but none answers.
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        self.link.lost_since_ms().is_some() && !self.is_over()
    }

    /// Reports whether the keeper is being restarted automatically.
    #[must_use]
    pub fn is_recovering(&self) -> bool {
        self.run_state() == Some(RunState::Recovering)
    }

    /// Reports whether the keeper is gone and nothing brings it back.
    #[must_use]
    pub fn is_orphaned(&self) -> bool {
        let has_end = self.run_state().is_some_and(RunState::has_end);
        matches!(self.link, Link::Lost { .. }) && !has_end && !self.is_recovering()
    }

    /// Reports whether keeper and worker are gone, and neither recorded an end.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.run_state() == Some(RunState::Interrupted)
    }

    /// Reports whether the run failed or needs attention.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        matches!(self.run_state(), Some(RunState::Failed | RunState::NeedsPerson))
    }

    /// Reports whether steps are being taken, or will be in a moment.
    #[must_use]
    pub fn is_moving(&self) -> bool {
        matches!(self.run_state(), Some(RunState::Training | RunState::Evaluating | RunState::Checkpointing))
    }

    /// Returns steps per second on a rung: the live speed on the current rung, the recorded one on others.
    #[must_use]
    pub fn steps_per_s_on(&self, rung: usize) -> Option<f64> {
        let status = self.status()?;
        let live = self.facts.pace().filter(|_| status.rung == rung && self.is_moving());
        live.map(|pace| pace.steps_per_s).or(status.rungs.get(rung)?.steps_per_s)
    }

    /// Returns the current rung, if it is within the ladder.
    #[must_use]
    pub fn rung(&self) -> Option<usize> {
        self.status().map(|status| status.rung).filter(|rung| *rung < self.ladder.len())
    }

    /// Returns the time since the run began, or up to the newest step once no steps are being taken, milliseconds.
    #[must_use]
    pub fn elapsed_ms(&self) -> Option<i64> {
        let (first, last) = self.facts.series.spots()?;
        let end = if self.is_moving() { self.now_ms } else { last.time_ms };
        let began = self.facts.journal.front().map_or(first.time_ms, |row| row.time_ms.min(first.time_ms));
        Some(end.saturating_sub(began)).filter(|elapsed| *elapsed >= 0)
    }

    /// Returns the first and the newest position of the curve on the current axis of the charts.
    #[must_use]
    pub fn curve_ends(&self) -> Option<(f64, f64)> {
        let axis = self.screen.chart.axis;
        self.facts.series.spots().map(|(first, last)| (axis.place(first), axis.place(last)))
    }

    /// Returns how the run continues after its end.
    #[must_use]
    pub fn continuation(&self) -> Continuation {
        let by_name = || Commands::built_in(format!("downshift resume {}", self.run_name()));
        let commands = self.commands.clone().unwrap_or_else(by_name);
        match self.status() {
            Some(status) => commands.after_status(status, self.watched_process().is_some()),
            None => commands.after(false, None),
        }
    }

    /// Returns the process that the run only watches now.
    #[must_use]
    pub fn watched_process(&self) -> Option<u32> {
        self.watched.filter(|_| self.status().is_some_and(|status| status.pid_worker.is_some()))
    }

    /// Returns the run's name, as typed in `downshift … RUN`.
    #[must_use]
    pub fn run_name(&self) -> &str {
        self.status().map_or("", |status| &status.run)
    }

    /// Shows a notice in place of the verdict for some seconds.
    pub fn show_notice(&mut self, text: impl Into<String>, refused: bool) {
        let until_ms = self.now_ms.saturating_add(if refused { 2 * NOTICE_MS } else { NOTICE_MS });
        self.notice = Some(Notice { text: text.into(), refused, until_ms });
    }

    /// Returns how long the keeper has been silent, in milliseconds; `None` if it is not expected to speak or cannot.
    #[must_use]
    pub fn silence_ms(&self) -> Option<i64> {
        let quiet = self.moment.is_some() || self.is_over() || self.link != Link::Live;
        let heard = self.facts.heard_ms.filter(|_| !quiet)?;
        Some(self.now_ms.saturating_sub(heard)).filter(|silence| *silence >= STALE_MS)
    }

    /// Reports whether the data is old, because the keeper does not answer or is silent.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.is_cut_off() || self.silence_ms().is_some()
    }

    /// Returns when the last step ended or, if that is later, the current state began, Unix milliseconds.
    #[must_use]
    pub fn last_progress_ms(&self) -> Option<i64> {
        Some(self.status()?.progress?.since_ms)
    }

    /// Returns when a run that is over ended, Unix milliseconds: as observed, or else as the journal says.
    #[must_use]
    pub fn ended_ms(&self) -> Option<i64> {
        let is_end = |row: &&JournalRow| (row.kind, row.level) == (JournalKind::Run, Level::Error);
        let journaled = || self.facts.journal.iter().rev().find(is_end).map(|row| row.time_ms);
        let last_step = || self.facts.recent.back().map(|row| row.time_ms);
        self.facts.state_since_ms.or_else(journaled).or_else(last_step).filter(|_| self.is_over())
    }

    /// Returns the time since the last step in milliseconds, if it exceeds the longest pause usual for this run.
    #[must_use]
    pub fn stalled_ms(&self) -> Option<i64> {
        self.status().filter(|_| self.moment.is_none())?.stalled_ms(self.now_ms)
    }
}

/// Time a notice stays; a refusal stays twice as long, milliseconds.
const NOTICE_MS: i64 = 4_000;
/// Data older than this is shown with its age, milliseconds.
pub const STALE_MS: i64 = 3_000;
