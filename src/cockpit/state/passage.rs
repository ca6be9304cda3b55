//! The shift or restart on the screen: its box while it lasts, its proof for a while afterwards.

use crate::protocol::control::{Passage, RunState, Status};

/// How long the box stays once all is done, milliseconds.
pub const LINGER_MS: i64 = 3_000;
/// How long the verdict tells the proof where nothing is wrong, milliseconds; then how many steps
/// have gone well since.
pub const PROOF_MS: i64 = 6_000;

/// What is seen of the newest passage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassageView {
    /// None since the cockpit was opened.
    None,
    /// One is under way.
    Under {
        /// When its current part was first seen, Unix milliseconds.
        stage_since_ms: i64,
        /// How many parts are known.
        stages: usize,
        /// A person closed the box.
        hidden: bool,
    },
    /// One came to its end while the cockpit was open.
    Done {
        /// When, Unix milliseconds.
        at_ms: i64,
        /// A person closed the box.
        hidden: bool,
    },
}

/// The passage of a status while parts of it are missing. Between two parts nothing is under way,
/// so the run's own state decides whether more will come.
#[must_use]
pub fn under_way(status: &Status) -> Option<&Passage> {
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
    let done = passage.after.is_some() || (last.name == "first step" && last.took_ms.is_some());
    let still = status.state.is_over() || status.state == RunState::Paused;
    (!done && !still && (last.took_ms.is_none() || moving)).then_some(passage)
}

/// What a passage that came to its end proves: step and loss before, step and loss after.
#[must_use]
pub fn proof(status: &Status) -> Option<((u64, f64), (u64, f64))> {
    let passage = status.passage.as_ref()?;
    Some((passage.before?, passage.after?))
}

impl PassageView {
    /// The view after a new status.
    #[must_use]
    pub fn after(self, status: &Status, now_ms: i64) -> Self {
        match (self, under_way(status)) {
            (_, Some(passage)) => {
                let stages = passage.stages.len();
                match self {
                    Self::Under { stages: known, .. } if known == stages => self,
                    Self::Under { stages: known, hidden, .. } if known < stages => {
                        Self::Under { stage_since_ms: now_ms, stages, hidden }
                    }
                    _ => Self::Under { stage_since_ms: now_ms, stages, hidden: false },
                }
            }
            (Self::Under { hidden, .. }, None) if proof(status).is_some() => Self::Done { at_ms: now_ms, hidden },
            (Self::Under { .. }, None) => Self::None,
            (same, None) => same,
        }
    }

    /// Whether its box is on the screen.
    #[must_use]
    pub fn is_shown(self, now_ms: i64) -> bool {
        match self {
            Self::None => false,
            Self::Under { hidden, .. } => !hidden,
            Self::Done { at_ms, hidden } => !hidden && now_ms.saturating_sub(at_ms) < LINGER_MS,
        }
    }

    /// Whether the verdict should tell how it went.
    #[must_use]
    pub fn is_news(self, now_ms: i64) -> bool {
        matches!(self, Self::Done { at_ms, .. } if now_ms.saturating_sub(at_ms) < PROOF_MS)
    }

    /// The view with its box closed.
    #[must_use]
    pub fn closed(self) -> Self {
        match self {
            Self::None => Self::None,
            Self::Under { stage_since_ms, stages, .. } => Self::Under { stage_since_ms, stages, hidden: true },
            Self::Done { at_ms, .. } => Self::Done { at_ms, hidden: true },
        }
    }
}
