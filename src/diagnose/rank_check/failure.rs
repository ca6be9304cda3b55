//! Names the fault of ranks that do not work together.

use super::step::Step;
use crate::companion::UnpackError;
use crate::untrusted::text;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why the ranks do not work together.
#[derive(Debug, thiserror::Error)]
pub enum RankFailure {
    /// The Python code cannot be placed.
    #[error(transparent)]
    Package(#[from] UnpackError),
    /// The interpreter cannot be started.
    #[error("{} cannot be started: {source}", text::path(.python))]
    Python {
        /// The interpreter.
        python: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// No port or pipe.
    #[error("the ranks cannot be prepared: {0}")]
    System(#[from] io::Error),
    /// A rank reported an error.
    #[error("rank {rank} failed in {step}: {}", text::escape_line(message))]
    Failed {
        /// The rank.
        rank: u32,
        /// The step.
        step: Step,
        /// Its error.
        message: String,
    },
    /// A rank ended without a word.
    #[error("rank {rank} ended during {step}{}", said(message))]
    Ended {
        /// The rank.
        rank: u32,
        /// The step that it did not finish.
        step: Step,
        /// Its last words; may be empty.
        message: String,
    },
    /// The time is over.
    #[error("no answer within {} s: {step} has not ended on {}", limit.as_secs(), named(late, *ranks))]
    Late {
        /// The ranks that are the furthest behind.
        late: Vec<u32>,
        /// The number of ranks.
        ranks: u32,
        /// The step that they are in.
        step: Step,
        /// The time that they had.
        limit: Duration,
    },
    /// Processes of the ranks cannot be killed.
    #[error("{}{} cannot be ended, so a driver may hold it", cause.as_ref().map_or_else(String::new, |cause| format!("{cause}; ")), listed(pids))]
    Stuck {
        /// Why the ranks do not work together, if they do not.
        cause: Option<Box<RankFailure>>,
        /// The processes.
        pids: Vec<u32>,
    },
    /// Two ranks have different versions.
    #[error("rank 0 has {name} {first}, rank {rank} has {name} {other}")]
    Versions {
        /// `torch` or `Python`.
        name: &'static str,
        /// The version of rank 0.
        first: String,
        /// The other rank.
        rank: u32,
        /// Its version.
        other: String,
    },
}

fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {}", text::escape_line(message)) }
}

fn listed(pids: &[u32]) -> String {
    let numbers: Vec<String> = pids.iter().map(|pid| format!("process {pid}")).collect();
    numbers.join(" and ")
}

fn named(late: &[u32], ranks: u32) -> String {
    if late.len() == ranks as usize {
        return "any rank".to_owned();
    }
    let numbers: Vec<String> = late.iter().map(ToString::to_string).collect();
    format!("rank {} of {ranks}, and the others wait for it", numbers.join(", "))
}
