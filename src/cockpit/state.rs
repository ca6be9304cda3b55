//! Everything the screen is drawn from. It changes in `update` alone and holds no clock, no
//! connection and no lock: time comes in with messages.

pub mod chart;
pub mod facts;
pub mod forecast;
pub mod gauged;
pub mod pace;
pub mod passage;
pub mod replay;
pub mod runs;
pub mod screen;

use super::keymap::Keymap;
use crate::config::knobs::{Relief, Watch};
use crate::protocol::control::{CheckpointRow, RunState, Status};
use facts::Facts;
use passage::PassageView;
use replay::Replay;
use runs::Runs;
use screen::Screen;

/// A rung of the ladder, as the run file resolved it.
#[derive(Debug, Clone, PartialEq)]
pub struct RungView {
    /// Its name.
    pub name: String,
    /// What it helps against.
    pub relieves: Vec<Relief>,
    /// Its knobs, as JSON.
    pub preset: serde_json::Value,
}

/// The way to the keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Link {
    /// Not yet tried to the end.
    Waiting,
    /// Connected.
    Live,
    /// Nobody answers.
    Lost {
        /// Since when, Unix milliseconds.
        since_ms: i64,
        /// What the system said.
        reason: String,
    },
}

/// A short answer to a key, shown for some seconds in place of the verdict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// A sentence.
    pub text: String,
    /// Whether what was asked for will not be done.
    pub refused: bool,
    /// Shown until then, Unix milliseconds.
    pub until_ms: i64,
}

/// The whole of it.
#[derive(Debug, Clone)]
pub struct State {
    /// What the keeper and the store said.
    pub facts: Facts,
    /// What is looked at, and how.
    pub screen: Screen,
    /// The way to the keeper.
    pub link: Link,
    /// The shift or restart on the screen.
    pub passage: PassageView,
    /// The answer to the newest key.
    pub notice: Option<Notice>,
    /// The rungs, fastest first.
    pub ladder: Vec<RungView>,
    /// Thresholds.
    pub watch: Watch,
    /// Unix milliseconds.
    pub now_ms: i64,
    /// Seconds that local time is ahead of UTC.
    pub utc_offset_s: i32,
    /// When the bell last rang, Unix milliseconds.
    pub bell_ms: i64,
    /// Names of the themes to go through.
    pub themes: Vec<String>,
    /// Which key asks for what.
    pub keys: Keymap,
    /// Nothing may be asked of the run.
    pub read_only: bool,
    /// The other runs.
    pub runs: Runs,
    /// A look back, while there is one.
    pub replay: Option<Replay>,
    /// In a state of the past: its moment, Unix milliseconds.
    pub moment: Option<i64>,
    /// The command that resumes the run, where it is not made of the run's name alone.
    pub resume: Option<String>,
}

impl State {
    /// The state before anything is known.
    #[must_use]
    pub fn new(ladder: Vec<RungView>, watch: Watch, size: (u16, u16), now_ms: i64, utc_offset_s: i32) -> Self {
        Self {
            facts: Facts::default(),
            screen: Screen::new(size),
            link: Link::Waiting,
            passage: PassageView::None,
            notice: None,
            ladder,
            watch,
            now_ms,
            utc_offset_s,
            bell_ms: i64::MIN,
            themes: Vec::new(),
            keys: Keymap::default(),
            read_only: false,
            runs: Runs::default(),
            replay: None,
            moment: None,
            resume: None,
        }
    }

    /// The checkpoint of the best evaluation whose weights are on the disk; in a state of the past,
    /// of those saved by then.
    #[must_use]
    pub fn best(&self) -> Option<&CheckpointRow> {
        let mut rows = self.facts.checkpoints.values();
        if self.moment.is_none() {
            return rows.find(|row| row.best && row.kept);
        }
        let measured = rows.filter_map(|row| Some((row.eval_loss?, row)));
        measured.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, row)| row)
    }

    /// Where the run stands, once known.
    #[must_use]
    pub fn status(&self) -> Option<&Status> {
        self.facts.status.as_ref()
    }

    /// What the run is doing, once known.
    #[must_use]
    pub fn run_state(&self) -> Option<RunState> {
        self.status().map(|status| status.state)
    }

    /// True once the run is over, for better or worse.
    pub fn is_over(&self) -> bool {
        self.run_state().is_some_and(RunState::is_over)
    }

    /// True where the run trains on a GPU: another card's heat and memory are none of its business.
    pub fn uses_card(&self) -> bool {
        self.status().and_then(|status| status.device.as_deref()).is_some_and(|device| device.starts_with("cuda"))
    }

    /// True where the keeper should be there and is not.
    #[must_use]
    pub fn is_orphaned(&self) -> bool {
        matches!(self.link, Link::Lost { .. }) && !self.is_over()
    }

    /// True where the run ended and should not have.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        matches!(self.run_state(), Some(RunState::Failed | RunState::NeedsPerson))
    }

    /// True while steps are being taken, or will be in a moment.
    #[must_use]
    pub fn is_moving(&self) -> bool {
        matches!(self.run_state(), Some(RunState::Training | RunState::Evaluating | RunState::Checkpointing))
    }

    /// Steps a second on a rung: on the current one the speed of the run, on another the speed it had.
    #[must_use]
    pub fn steps_per_s_on(&self, rung: usize) -> Option<f64> {
        let status = self.status()?;
        let live = self.facts.pace().filter(|_| status.rung == rung && self.is_moving());
        live.map(|pace| pace.steps_per_s).or(status.rungs.get(rung)?.steps_per_s)
    }

    /// The current rung, within the ladder.
    #[must_use]
    pub fn rung(&self) -> Option<usize> {
        self.status().map(|status| status.rung).filter(|rung| *rung < self.ladder.len())
    }

    /// The learning rate of the newest step.
    #[must_use]
    pub fn recent_lr(&self) -> Option<f64> {
        self.facts.recent.back().map(|row| row.lr).filter(|lr| lr.is_finite())
    }

    /// What a person types to go on with the run.
    #[must_use]
    pub fn resume_command(&self) -> String {
        self.resume.clone().unwrap_or_else(|| format!("downshift resume {}", self.run_name()))
    }

    /// The end of the line `downshift … RUN` for a person to type.
    #[must_use]
    pub fn run_name(&self) -> &str {
        self.status().map_or("", |status| &status.run)
    }

    /// How long the keeper has said nothing, milliseconds; none where it need not or cannot.
    #[must_use]
    pub fn silence_ms(&self) -> Option<i64> {
        let quiet = self.moment.is_some() || self.is_over() || self.link != Link::Live;
        let heard = self.facts.heard_ms.filter(|_| !quiet)?;
        Some(self.now_ms.saturating_sub(heard)).filter(|silence| *silence >= STALE_MS)
    }

    /// How long no step has been taken, where that is longer than this run ever takes, milliseconds.
    #[must_use]
    pub fn stalled_ms(&self) -> Option<i64> {
        if self.moment.is_some() || self.run_state() != Some(RunState::Training) {
            return None;
        }
        let newest = self.facts.recent.back()?.time_ms.max(self.facts.state_since_ms.unwrap_or(i64::MIN));
        let still = self.now_ms.saturating_sub(newest);
        let floor = || self.watch.hang_min.duration().map_or(10e3, |duration| duration.as_secs_f64() * 1e3);
        (still as f64 > self.facts.patience_ms().unwrap_or_else(floor)).then_some(still)
    }
}

/// What was heard longer ago than this is shown with its age, milliseconds.
pub const STALE_MS: i64 = 3_000;
