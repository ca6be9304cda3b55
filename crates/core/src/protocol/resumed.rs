//! Whether an attempt trains on from the checkpoint that it was asked to resume from.
//!
//! Only a worker of ours loads a checkpoint itself. The script of a command may find none, or another one. So the harness
//! collects what shows it, and [`judge`] decides: a companion that restored the training, the files that the process
//! loaded with its optimizer's step count, the first step in the output, and the first loss.

mod judge;

pub use judge::{Evidence, Load, Loads, LossesBefore, Printed, judge};

use crate::format::{count, figure};
use crate::untrusted::text;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// The resume of an attempt, as far as it is known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Resumed {
    /// It trains on from the checkpoint.
    Verified {
        /// The step of the checkpoint.
        step: u64,
        /// The file that was loaded, if that was seen.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<PathBuf>,
    },
    /// It trains on from elsewhere.
    Contradicted {
        /// The step that it was asked to resume from.
        asked: u64,
        /// The place from which it trains on.
        found: ActualStart,
    },
    /// Nothing has shown where it trains on.
    Unverified {
        /// The step that it was asked to resume from.
        asked: u64,
        /// The first step in the output, if that is an earlier one: the script starts over, or counts anew.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        counts_from: Option<u64>,
    },
}

/// The place from which an attempt trains on in truth.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum ActualStart {
    /// Another checkpoint.
    Checkpoint {
        /// Its step.
        step: u64,
        /// The file that was loaded, if that was seen.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<PathBuf>,
    },
    /// The beginning: nothing was loaded.
    Beginning,
    /// The steps go on, but the loss is as high as at the beginning of the run.
    UntrainedLoss {
        /// The first loss.
        loss: f64,
        /// The last loss before the checkpoint.
        before: f64,
    },
}

impl Resumed {
    /// Returns the step that the attempt was asked to resume from.
    #[must_use]
    pub fn asked(&self) -> u64 {
        match self {
            Self::Verified { step: asked, .. } | Self::Contradicted { asked, .. } | Self::Unverified { asked, .. } => {
                *asked
            }
        }
    }

    /// Returns the step after which the attempt's steps count.
    #[must_use]
    pub fn step(&self) -> u64 {
        match self {
            Self::Contradicted { found: ActualStart::Checkpoint { step, .. }, .. } => *step,
            Self::Contradicted { found: ActualStart::Beginning, .. } => 0,
            _ => self.asked(),
        }
    }

    /// Reports whether nothing can change it any more.
    #[must_use]
    pub fn is_known(&self) -> bool {
        !matches!(self, Self::Unverified { .. })
    }

    /// Reports whether the user has to look at it.
    #[must_use]
    pub fn is_doubtful(&self) -> bool {
        !matches!(self, Self::Verified { .. } | Self::Unverified { counts_from: None, .. })
    }
}

impl fmt::Display for Resumed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let loaded = |file: &Option<PathBuf>| {
            file.as_ref().map_or_else(String::new, |file| format!(" ({} was loaded)", text::path(file)))
        };
        match self {
            Self::Verified { step, file } => write!(formatter, "resumed at step {}{}", count(*step), loaded(file)),
            Self::Unverified { asked, counts_from } => {
                write!(formatter, "asked to resume from step {}; not verified", count(*asked))?;
                counts_from.map_or(Ok(()), |first| {
                    let first = count(first);
                    write!(formatter, ": its output begins at step {first}, so it starts from scratch or counts anew")
                })
            }
            Self::Contradicted { asked, found } => {
                write!(formatter, "asked to resume from step {}, but ", count(*asked))?;
                match found {
                    ActualStart::Checkpoint { step, file } => {
                        write!(formatter, "the script trains on from step {}{}", count(*step), loaded(file))
                    }
                    ActualStart::Beginning => formatter.write_str("the script starts from scratch"),
                    ActualStart::UntrainedLoss { loss, before } => write!(
                        formatter,
                        "the loss is {}, as at the beginning of the run, after {} before: the weights may not be loaded",
                        figure(*loss),
                        figure(*before)
                    ),
                }
            }
        }
    }
}

/// Files and states that a companion saw a process load before its first optimizer step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loaded {
    /// The files, the newest last.
    #[serde(default)]
    pub files: Vec<LoadedFile>,
    /// The updates that the optimizer had counted; 0 if it had no state, none if it keeps no count.
    #[serde(default)]
    pub optimizer_steps: Option<u64>,
    /// A model or an optimizer took over a state, from these files or from elsewhere.
    #[serde(default)]
    pub restored: bool,
}

/// A file that was loaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadedFile {
    /// Its absolute path.
    pub path: PathBuf,
    /// The step that it holds, if it says so.
    #[serde(default)]
    pub step: Option<u64>,
}

#[cfg(test)]
mod tests;
