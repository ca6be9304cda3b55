//! The shift or restart on display: a box while it lasts, its result for a while afterwards.

use crate::protocol::control::{Passage, RunState, StageName, Status};

/// Time the box stays after completion, milliseconds.
pub const LINGER_MS: i64 = 3_000;
/// Time the verdict shows the result if nothing is wrong, milliseconds; afterwards it shows the number
/// of good steps since.
pub const NEWS_MS: i64 = 6_000;

/// Display state of the newest shift or restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShiftProgress {
    /// None since the cockpit opened.
    None,
    /// One is running.
    Running {
        /// Time the current stage was first seen, Unix milliseconds.
        stage_since_ms: i64,
        /// Number of known stages.
        stages: usize,
        /// Whether the user closed the box.
        hidden: bool,
    },
    /// One completed while the cockpit was open.
    Done {
        /// Time of completion, Unix milliseconds.
        at_ms: i64,
        /// Whether the user closed the box.
        hidden: bool,
    },
}

/// Returns the shift or restart that is still running. Between two stages nothing is under way, so the run
/// state decides whether more will follow.
#[must_use]
pub fn running_shift(status: &Status) -> Option<&Passage> {
    let passage = status.passage.as_ref()?;
    let last = passage.stages.last()?;
    let moving = matches!(
        status.state,
        RunState::Starting
            | RunState::Compiling
            | RunState::Stopping
            | RunState::AwaitingVram
            | RunState::Checkpointing
    );
    let done = passage.after.is_some() || (last.name == StageName::FirstStep && last.took_ms.is_some());
    let still = status.state.is_over() || status.state == RunState::Paused;
    (!done && !still && (last.took_ms.is_none() || moving)).then_some(passage)
}

/// Returns the result of a completed shift: step and loss before, step and loss after.
#[must_use]
pub fn shift_result(status: &Status) -> Option<((u64, f64), (u64, f64))> {
    let passage = status.passage.as_ref()?;
    Some((passage.before?, passage.after?))
}

impl ShiftProgress {
    /// Returns the view after a new status.
    #[must_use]
    pub fn after(self, status: &Status, now_ms: i64) -> Self {
        match (self, running_shift(status)) {
            (_, Some(passage)) => {
                let stages = passage.stages.len();
                match self {
                    Self::Running { stages: known, .. } if known == stages => self,
                    Self::Running { stages: known, hidden, .. } if known < stages => {
                        Self::Running { stage_since_ms: now_ms, stages, hidden }
                    }
                    _ => Self::Running { stage_since_ms: now_ms, stages, hidden: false },
                }
            }
            (Self::Running { hidden, .. }, None) if shift_result(status).is_some() => {
                Self::Done { at_ms: now_ms, hidden }
            }
            (Self::Running { .. }, None) => Self::None,
            (same, None) => same,
        }
    }

    /// Reports whether the box is visible.
    #[must_use]
    pub fn is_shown(self, now_ms: i64) -> bool {
        match self {
            Self::None => false,
            Self::Running { hidden, .. } => !hidden,
            Self::Done { at_ms, hidden } => !hidden && now_ms.saturating_sub(at_ms) < LINGER_MS,
        }
    }

    /// Reports whether the verdict should show the result.
    #[must_use]
    pub fn is_news(self, now_ms: i64) -> bool {
        matches!(self, Self::Done { at_ms, .. } if now_ms.saturating_sub(at_ms) < NEWS_MS)
    }

    /// Returns the view with its box closed.
    #[must_use]
    pub fn closed(self) -> Self {
        match self {
            Self::None => Self::None,
            Self::Running { stage_since_ms, stages, .. } => Self::Running { stage_since_ms, stages, hidden: true },
            Self::Done { at_ms, .. } => Self::Done { at_ms, hidden: true },
        }
    }
}
