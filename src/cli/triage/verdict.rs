//! The keeper's account of a run. It knows more than the log: exit codes, the kernel's messages, what it did itself.

use super::source::Source;
use crate::format::count;
use crate::protocol::cause::Cause;
use crate::protocol::class::FailureClass;
use crate::protocol::control::{RunState, Status};
use crate::protocol::worker::Level;
use crate::store::continuation::continuation;
use crate::store::owners;
use crate::store::reader::{Reader, live_status};
use crate::store::run_dir::RunDir;
use crate::untrusted::text;

/// Newest journal entries that are looked at.
const JOURNAL: usize = 200;

/// The keeper's account of a run; empty for other logs.
#[derive(Debug, Default)]
pub struct KeeperAccount {
    /// The run and its state.
    state: Option<String>,
    told: Option<AttemptVerdict>,
    /// The newest warning of a run without a failure.
    warning: Option<String>,
}

/// The verdict on an attempt.
#[derive(Debug)]
pub struct AttemptVerdict {
    /// The attempt.
    pub attempt: u64,
    /// How it went.
    pub fate: &'static str,
    /// Why.
    pub cause: Cause,
}

impl KeeperAccount {
    /// Returns how the run of a log is, and the verdict on its last attempt that failed.
    pub fn of(source: &Source) -> Self {
        let Source::Run(run) = source else { return Self::default() };
        let status = live_status(run);
        let interrupted = status.as_ref().filter(|status| status.state == RunState::Interrupted);
        let told =
            interrupted.map(|status| judge_interruption(run, status)).or_else(|| last_cause(run, status.as_ref()));
        let warning = if told.is_none() { last_warning(run) } else { None };
        let state = status.as_ref().map(|status| format!("{}: {}", run.name(), status.state.word()));
        Self { state, told, warning }
    }

    /// Returns the verdict on the last attempt that failed.
    pub fn told(&self) -> Option<&AttemptVerdict> {
        self.told.as_ref()
    }

    /// Returns the cause of the last failure.
    pub fn cause(&self) -> Option<&Cause> {
        self.told().map(|told| &told.cause)
    }

    /// Reports whether no attempt failed, but a warning is known.
    pub fn warns(&self) -> bool {
        self.warning.is_some()
    }

    /// Returns the account as text, with a blank line at its end.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.state.iter().cloned().collect();
        if let Some(AttemptVerdict { attempt, fate, cause }) = &self.told {
            lines.push(format!("attempt {attempt} {fate}: {}", cause.class));
            lines.extend(cause.evidence.iter().map(|line| format!("  {}", text::escape_line(line))));
            lines.extend((!cause.advice.is_empty()).then(|| format!("  do: {}", cause.advice)));
        }
        lines.extend(self.warning.iter().map(|warning| format!("last warning: {warning}")));
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines
    }
}

/// Judges a run whose keeper could write nothing more.
fn judge_interruption(run: &RunDir, status: &Status) -> AttemptVerdict {
    let end = match owners::was_booted_since(run) {
        Some(true) => "the machine was started again since: the keeper and the worker ended with it",
        Some(false) => {
            "the keeper, its parent and the worker ended without a word while the machine ran on: something killed them all"
        }
        None => "the keeper, its parent and the worker ended without a word",
    };
    let durable = status.durable_step.map_or_else(String::new, |step| format!(", durable up to {}", count(step)));
    let step = format!("last step {}{durable}", count(status.step));
    let mut cause = Cause::new(FailureClass::Killed, vec![end.to_owned(), step]);
    cause.advice = continuation(run, Some(status)).to_string();
    AttemptVerdict { attempt: status.attempts, fate: "ended", cause }
}

fn last_cause(run: &RunDir, status: Option<&Status>) -> Option<AttemptVerdict> {
    let (attempt, cause) = Reader::open(run).ok()?.causes().into_iter().next_back()?;
    let is_newest = status.filter(|status| status.attempts == attempt);
    let fate = match is_newest.map(|status| status.state) {
        Some(RunState::Finished) => "finished in spite of a fault",
        Some(state) if state.is_moving() => "goes on in spite of a fault",
        _ => "ended",
    };
    Some(AttemptVerdict { attempt, fate, cause })
}

/// Returns the newest warning of a run: of a command that hangs and is left alone, say.
fn last_warning(run: &RunDir) -> Option<String> {
    let journal = Reader::open(run).ok()?.journal(JOURNAL).ok()?;
    let newest = journal.into_iter().filter(|row| row.level >= Level::Warn).max_by_key(|row| row.id)?;
    Some(text::escape_line(&newest.text).into_owned())
}
