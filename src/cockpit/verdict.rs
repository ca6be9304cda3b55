//! The second line of the screen: the state of the run in words, and the key that helps.
//!
//! Rules are in order of importance; the first that applies wins.

pub mod alerts;
mod trouble;

use super::action::Action;
use super::state::shift_progress::shift_result;
use super::state::{Link, State};
use crate::format::{age, apart, count, counted, figure, percent, rate, took};
use crate::outlook::continuation::{Continuation, How};
use crate::protocol::control::{RunState, Status};
use crate::protocol::metrics;
use crate::protocol::worker::{Eval, KernelCount};
use crate::series::Metric;
use trouble::{
    filling, hot, ignored_knobs, not_learning, not_saved, other_resume, proposal, run_dir_missing, silent, skipping,
    slow, stalled, vram_full,
};

/// Tone of a sentence, a gauge or a journal line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// Neutral.
    Plain,
    /// All is well.
    Good,
    /// Something is happening.
    Busy,
    /// Needs a look.
    Warn,
    /// Something broke.
    Danger,
}

/// A verdict on the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Tone to draw it in.
    pub tone: Tone,
    /// The sentence.
    pub text: String,
    /// Additional notes, most important first; dropped if space is short.
    pub more: Vec<String>,
    /// Command to type and its effect; shown whole, or not at all on a very narrow screen.
    pub command: Option<(String, &'static str)>,
    /// Suggested action with a short reason; always shown whole.
    pub advice: Option<(Action, &'static str)>,
}

impl Verdict {
    fn new(tone: Tone, text: impl Into<String>) -> Self {
        Self { tone, text: text.into(), more: Vec::new(), command: None, advice: None }
    }

    fn continued(mut self, way: &Continuation) -> Self {
        self.command = Some((format!("`{}`", way.command), way.effect()));
        self
    }

    fn advise(mut self, action: Action, why: &'static str) -> Self {
        self.advice = Some((action, why));
        self
    }
}

/// Returns the verdict on the run.
#[must_use]
pub fn verdict(state: &State) -> Verdict {
    let Some(status) = state.status() else { return connecting(state) };
    ended(state, status)
        .or_else(|| cut_off(state))
        .or_else(|| silent(state))
        .or_else(|| run_dir_missing(state, status))
        .or_else(|| waiting(state, status))
        .or_else(|| not_saved(status))
        .or_else(|| stalled(state, status))
        .or_else(|| proposal(status))
        .or_else(|| skipping(state))
        .or_else(|| hot(state))
        .or_else(|| vram_full(state))
        .or_else(|| filling(state))
        .or_else(|| other_resume(status))
        .or_else(|| shift_done(state, status))
        .or_else(|| ignored_knobs(status))
        .or_else(|| slow(state))
        .or_else(|| not_learning(state))
        .unwrap_or_else(|| healthy(state, status))
}

fn connecting(state: &State) -> Verdict {
    match (&state.link, &state.facts.history_error) {
        (Link::Waiting, _) => Verdict::new(Tone::Busy, "connecting to the keeper"),
        (Link::Live, _) => Verdict::new(Tone::Busy, "connected; waiting for the first status"),
        (Link::Dropped { .. } | Link::Lost { .. }, Some(reason)) => {
            Verdict::new(Tone::Danger, format!("no keeper, and {reason}"))
        }
        (Link::Dropped { .. } | Link::Lost { .. }, None) => {
            Verdict::new(Tone::Warn, "no keeper answers; reading the run directory")
        }
    }
}

fn ended(state: &State, status: &Status) -> Option<Verdict> {
    let why = status.why.clone().unwrap_or_else(|| "the journal has the details".to_owned());
    let verdict = match status.state {
        RunState::Finished if status.unread.is_some() => {
            return Some(Verdict::new(Tone::Warn, "finished; no step was found in its output"));
        }
        RunState::Finished => return Some(Verdict::new(Tone::Good, format!("finished: {}", result(state, status)))),
        RunState::Stopped => {
            let durable = match status.durable_step {
                Some(step) if step == status.step => ", checkpoint saved".to_owned(),
                Some(step) => format!(", durable up to {}", count(step)),
                None => String::new(),
            };
            let at = count(status.step);
            Verdict::new(Tone::Plain, format!("stopped at step {at}{durable}"))
        }
        RunState::Interrupted => {
            let durable =
                status.durable_step.map_or_else(String::new, |step| format!(", durable up to {}", count(step)));
            let text = format!("interrupted at step {}{durable}", count(status.step));
            Verdict::new(Tone::Danger, text)
        }
        RunState::Failed => Verdict::new(Tone::Danger, format!("failed: {why}")),
        RunState::NeedsPerson => Verdict::new(Tone::Danger, format!("needs attention: {why}")),
        _ => return None,
    };
    Some(verdict.continued(&state.continuation()))
}

fn result(state: &State, status: &Status) -> String {
    let mut parts = vec![counted(status.step, "step")];
    let newest = || state.facts.evals.values().next_back().map(|row| &row.eval);
    if let Some(eval) = status.eval.as_ref().or_else(newest) {
        parts.push(summarize_eval(eval));
    }
    if let Some(skipped) = status.skipped.filter(|skipped| *skipped > 0) {
        parts.push(format!("{} skipped", count(skipped)));
    }
    if status.unguarded > 0 {
        parts.push(format!("{} not finite", count(status.unguarded)));
    }
    if status.shifts > 0 {
        parts.push(counted(status.shifts, "shift"));
    }
    if status.rollbacks > 0 {
        parts.push(counted(status.rollbacks, "rollback"));
    }
    if status.restarts > 0 {
        parts.push(counted(status.restarts, "restart"));
    }
    parts.join(", ")
}

/// Summarizes an evaluation in a few words.
#[must_use]
pub fn summarize_eval(eval: &Eval) -> String {
    if let Some(share) = eval.value(metrics::ACCURACY) {
        return format!("accuracy {}", format_accuracy(share));
    }
    if let Some(perplexity) = eval.value(metrics::PERPLEXITY) {
        return format!("perplexity {}", figure(perplexity));
    }
    match (eval.loss, eval.metrics.first_key_value()) {
        (Some(loss), _) => format!("validation loss {}", figure(loss)),
        (None, Some((name, value))) => format!("{name} {}", figure(*value)),
        (None, None) => "no evaluation metric".to_owned(),
    }
}

/// Formats accuracy to a tenth of a percent: `97.8 %`.
#[must_use]
pub fn format_accuracy(share: f64) -> String {
    if share.is_finite() { format!("{:.1} %", share * 100.0) } else { percent(share) }
}

fn cut_off(state: &State) -> Option<Verdict> {
    let since = age(state.now_ms.saturating_sub(state.link.lost_since_ms()?));
    if state.is_recovering() {
        let why = state.status().and_then(|status| status.why.as_deref()).unwrap_or("the keeper is restarting");
        return Some(Verdict::new(Tone::Warn, format!("recovering for {since}: {why}")));
    }
    if !state.is_orphaned() {
        return Some(Verdict::new(Tone::Warn, "connection to the keeper lost; checking the run"));
    }
    let way = state.continuation();
    let runs_on = if way.how == How::TakeOver { "; the command runs on without it" } else { "" };
    Some(Verdict::new(Tone::Danger, format!("no keeper for {since}{runs_on}")).continued(&way))
}

fn waiting(state: &State, status: &Status) -> Option<Verdict> {
    let since = state.facts.state_since_ms.map(|since| age(state.now_ms.saturating_sub(since)));
    let since = |word: &str| since.as_ref().map_or_else(String::new, |since| format!("{word}{since}"));
    let because = status.why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    let busy = |text: String| Some(Verdict::new(Tone::Busy, text));
    match status.state {
        // It waits for its first turn, so it has no memory to free.
        RunState::Paused if status.attempts == 0 => {
            let text = format!("held in the queue{}: others pass it", since(" for "));
            Some(Verdict::new(Tone::Warn, text).advise(Action::Pause, "releases it"))
        }
        RunState::Paused => {
            let text = format!("paused{}, memory freed{because}", since(" for "));
            Some(Verdict::new(Tone::Warn, text).advise(Action::Pause, "resumes"))
        }
        RunState::BackingOff => {
            Some(Verdict::new(Tone::Warn, format!("restarting soon, waiting{}{because}", since(" "))))
        }
        RunState::Stopping => busy(format!("stopping{because}")),
        RunState::AwaitingCard => {
            Some(Verdict::new(Tone::Warn, format!("waiting for its turn{}{because}", since(", "))))
        }
        RunState::AwaitingVram => busy(format!("waiting for free VRAM{}{because}", since(", "))),
        RunState::Starting => {
            if let Some(unread) = &status.unread {
                let text = format!("running; no step was found in {} lines of its output", unread.lines);
                return Some(Verdict::new(Tone::Warn, text));
            }
            let what = if state.command.is_some() { "the command is starting" } else { "loading data and weights" };
            busy(format!("{what}{}{because}", since(", ")))
        }
        RunState::Compiling => {
            let kernels = status.kernels.map_or_else(|| "compiling kernels".to_owned(), describe_kernels);
            busy(format!("{kernels}{}{because}", since(", ")))
        }
        _ => None,
    }
}

fn describe_kernels(KernelCount { used, expected }: KernelCount) -> String {
    match expected {
        Some(expected) if expected >= used => format!("compiling kernels, {used} of about {expected}"),
        _ => format!("compiling kernels, {used} so far"),
    }
}

fn shift_done(state: &State, status: &Status) -> Option<Verdict> {
    if !state.shift_progress.is_news(state.now_ms) {
        return None;
    }
    let passage = status.passage.as_ref()?;
    let (before, after) = shift_result(status)?;
    let what = if passage.from == passage.to {
        format!("restarted {}", passage.to)
    } else {
        format!("{} → {}", passage.from, passage.to)
    };
    let (earlier, later) = apart(before.1, after.1);
    let parts = passage
        .start_and_step_ms()
        .map_or_else(String::new, |(start, step)| format!(" (start {}, first step {})", took(start), took(step)));
    let (tone, again) = match passage.repeated_steps() {
        None => (Tone::Good, String::new()),
        Some(repeated) => (Tone::Warn, format!(", {repeated}")),
    };
    let text = format!(
        "{what} in {}{parts}: step {} → {}{again}, loss {earlier} → {later}",
        took(passage.total_ms()),
        count(before.0),
        count(after.0)
    );
    Some(Verdict::new(tone, text))
}

fn healthy(state: &State, status: &Status) -> Verdict {
    let mut parts = Vec::new();
    if let Some(word) = trend(state) {
        parts.push(format!("training loss {word}"));
    }
    if let Some(pace) = state.facts.pace() {
        parts.push(format!("{} steps/s", rate(pace.steps_per_s)));
    }
    let newest = state.facts.checkpoints.values().rev().find(|row| row.kept);
    if let Some(row) = newest {
        parts.push(format!("saved {} ago", age(state.now_ms.saturating_sub(row.time_ms))));
    }
    // Before a key is refused.
    if state.command.is_some() && !state.capability().may_restart() && !status.is_level_open() {
        parts.push("nothing resumes it: cannot pause or shift".to_owned());
    }
    if status.skipped.is_none() && !parts.is_empty() {
        parts.push("skips unknown".to_owned());
    }
    let again = since_restart(state, status);
    let head = match (status.state, again) {
        (RunState::Evaluating, _) => "evaluating".to_owned(),
        (RunState::Checkpointing, _) => "saving a checkpoint".to_owned(),
        (_, Some((steps, what))) if steps < 1000 => {
            format!("healthy again: {} since the {what}", counted(steps, "step"))
        }
        _ if parts.is_empty() => return Verdict::new(Tone::Busy, "training started"),
        _ => "healthy".to_owned(),
    };
    Verdict { more: parts, ..Verdict::new(Tone::Good, head) }
}

/// Returns the number of steps since the newest attempt began after a fault, and whether a restart or a shift started
/// it. After a pause or a planned restart there is nothing to recover from.
fn since_restart(state: &State, status: &Status) -> Option<(u64, &'static str)> {
    let [.., before, newest] = state.facts.series.segments() else { return None };
    let (_, failed_at) = status.rungs.get(before.rung)?.fault.as_ref()?;
    // The worker resumes at the step of the fault, or before it.
    if failed_at + 1 < newest.first {
        return None;
    }
    let steps = status.step.saturating_sub(newest.first.saturating_sub(1));
    Some((steps, if before.rung == newest.rung { "restart" } else { "shift" }))
}

/// Returns the trend of the loss, from the means of the first and the last third of the newest steps.
fn trend(state: &State) -> Option<&'static str> {
    let (_, last) = state.facts.series.ends()?;
    let start = last.saturating_sub(299) as f64;
    let thirds = state.facts.series.columns(Metric::Loss, start..last as f64, 3);
    let mean = |place: usize| thirds.get(place)?.extent.filter(|extent| extent.count >= 10).map(|extent| extent.mean);
    let (early, late) = (mean(0)?, mean(2)?);
    let margin = early.abs() * 0.03;
    Some(match late - early {
        change if change < -margin => "falling",
        change if change > margin => "rising",
        _ => "level",
    })
}

#[cfg(test)]
mod tests;
