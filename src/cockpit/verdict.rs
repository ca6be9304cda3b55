//! The second line of the screen: the state of the run in words, and the key that helps.
//!
//! Rules are in order of importance; the first that applies wins.

use super::action::Action;
use super::series::Metric;
use super::state::passage::proof;
use super::state::{Link, State};
use crate::format::{age, apart, bytes, count, counted, figure, percent, rate, took};
use crate::protocol::control::{RunState, Status};
use crate::protocol::probe::Gpu;

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

    fn typed(mut self, command: String, what: &'static str) -> Self {
        self.command = Some((command, what));
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
    let Some(status) = state.status() else { return before_all(state) };
    over(state, status)
        .or_else(|| orphaned(state))
        .or_else(|| silent(state))
        .or_else(|| homeless(state, status))
        .or_else(|| waiting(state, status))
        .or_else(|| stalled(state, status))
        .or_else(|| proposal(status))
        .or_else(|| skipping(state))
        .or_else(|| hot_or_full(state))
        .or_else(|| filling(state))
        .or_else(|| news(state, status))
        .or_else(|| slow(state, status))
        .unwrap_or_else(|| healthy(state, status))
}

fn before_all(state: &State) -> Verdict {
    match (&state.link, &state.facts.history_error) {
        (Link::Waiting, _) => Verdict::new(Tone::Busy, "looking for the keeper of this run"),
        (Link::Live, _) => Verdict::new(Tone::Busy, "connected; waiting for the first word of the keeper"),
        (Link::Lost { .. }, Some(reason)) => Verdict::new(Tone::Danger, format!("no keeper, and {reason}")),
        (Link::Lost { .. }, None) => Verdict::new(Tone::Warn, "no keeper answers; reading what the run left behind"),
    }
}

fn over(state: &State, status: &Status) -> Option<Verdict> {
    let why = status.why.clone().unwrap_or_else(|| "the journal says more".to_owned());
    let type_this = format!("`{}`", state.resume_command());
    Some(match status.state {
        RunState::Finished => Verdict::new(Tone::Good, format!("finished: {}", result(state, status))),
        RunState::Stopped => {
            let durable = status.durable_step.map_or_else(String::new, |step| format!(", durable at {}", count(step)));
            let at = count(status.step);
            Verdict::new(Tone::Plain, format!("stopped at step {at}{durable}")).typed(type_this, "goes on")
        }
        RunState::Failed => Verdict::new(Tone::Danger, format!("failed: {why}")).typed(type_this, "goes on"),
        RunState::NeedsPerson => {
            Verdict::new(Tone::Danger, format!("needs you: {why}")).typed(type_this, "tries again")
        }
        _ => return None,
    })
}

fn result(state: &State, status: &Status) -> String {
    let mut parts = vec![counted(status.step, "step")];
    let newest = || state.facts.evals.values().next_back().map(|row| row.eval);
    if let Some(eval) = status.eval.or_else(newest) {
        parts.push(eval_words(eval.loss, eval.accuracy, eval.perplexity));
    }
    if status.skipped > 0 {
        parts.push(format!("{} skipped", count(status.skipped)));
    }
    if status.shifts > 0 {
        parts.push(counted(status.shifts, "shift"));
    }
    parts.join(", ")
}

/// Summarizes an evaluation in a few words.
#[must_use]
pub fn eval_words(loss: f64, accuracy: Option<f64>, perplexity: Option<f64>) -> String {
    match (accuracy, perplexity) {
        (Some(share), _) => format!("accuracy {}", accuracy_words(share)),
        (None, Some(perplexity)) => format!("perplexity {}", figure(perplexity)),
        (None, None) => format!("evaluation loss {}", figure(loss)),
    }
}

/// Formats accuracy to a tenth of a percent: `97.8 %`.
#[must_use]
pub fn accuracy_words(share: f64) -> String {
    if share.is_finite() { format!("{:.1} %", share * 100.0) } else { percent(share) }
}

fn orphaned(state: &State) -> Option<Verdict> {
    let Link::Lost { since_ms, .. } = state.link else { return None };
    let since = age(state.now_ms.saturating_sub(since_ms));
    if let Some(status) = state.status().filter(|status| status.state == RunState::Recovering) {
        let why = status.why.as_deref().unwrap_or("the keeper is started again");
        return Some(Verdict::new(Tone::Warn, format!("recovering for {since}: {why}")));
    }
    let command = format!("`{}`", state.resume_command());
    Some(Verdict::new(Tone::Danger, format!("no keeper for {since}")).typed(command, "brings the run back"))
}

fn waiting(state: &State, status: &Status) -> Option<Verdict> {
    let since = state.facts.state_since_ms.map(|since| age(state.now_ms.saturating_sub(since)));
    let since = |word: &str| since.as_ref().map_or_else(String::new, |since| format!("{word}{since}"));
    let because = status.why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    let busy = |text: String| Some(Verdict::new(Tone::Busy, text));
    match status.state {
        RunState::Paused => {
            let text = format!("paused{}{because}; the worker is gone and its memory free", since(" for "));
            Some(Verdict::new(Tone::Warn, text).advise(Action::Pause, "goes on"))
        }
        RunState::BackingOff => {
            Some(Verdict::new(Tone::Warn, format!("waiting before the next start{}{because}", since(", "))))
        }
        RunState::Stopping => busy(format!("stopping{because}")),
        RunState::AwaitingVram => busy(format!("waiting for the card to be free{}{because}", since(", "))),
        RunState::Starting => busy(format!("the worker loads data, weights and device{}{because}", since(", "))),
        RunState::Compiling => busy(format!("compiling kernels{}{because}", since(", "))),
        _ => None,
    }
}

/// Returns a verdict for a decision that is waiting for the user.
fn proposal(status: &Status) -> Option<Verdict> {
    let proposal = status.proposal.as_ref()?;
    // The action comes before the cause, because a narrow screen cuts the end.
    let text = format!("the keeper {}: {}", proposal.does, proposal.why);
    Some(Verdict::new(Tone::Warn, text).advise(Action::Accept, "lets it"))
}

fn news(state: &State, status: &Status) -> Option<Verdict> {
    if !state.passage.is_news(state.now_ms) {
        return None;
    }
    let passage = status.passage.as_ref()?;
    let (before, after) = proof(status)?;
    let what = if passage.from == passage.to {
        format!("restarted {}", passage.to)
    } else {
        format!("{} → {}", passage.from, passage.to)
    };
    let (earlier, later) = apart(before.1, after.1);
    let text = format!(
        "{what} in {}: step {} → {}, loss {earlier} → {later}",
        took(passage.total_ms()),
        count(before.0),
        count(after.0)
    );
    Some(Verdict::new(Tone::Good, text))
}

/// A connected keeper sends updates ten times a second; silence beyond this limit means something is
/// wrong with it, milliseconds.
const SILENT_MS: i64 = 5_000;

fn silent(state: &State) -> Option<Verdict> {
    let silence = state.silence_ms()?;
    let last = state.status().map_or(0, |status| status.step);
    (silence > SILENT_MS).then(|| {
        let text =
            format!("the keeper has been silent for {}; what is shown is as old (step {})", age(silence), count(last));
        Verdict::new(Tone::Warn, text)
    })
}

/// Warns that the run directory is missing: the keeper ends the run soon unless it comes back.
fn homeless(state: &State, status: &Status) -> Option<Verdict> {
    let since = age(state.now_ms.saturating_sub(state.facts.homeless_ms?));
    let text = format!("the run's folder is gone for {since}; move it back, or the run ends: {}", status.run_dir);
    Some(Verdict::new(Tone::Danger, text))
}

fn stalled(state: &State, status: &Status) -> Option<Verdict> {
    let still = state.stalled_ms()?;
    let text = format!("stalled: no step for {} (the last was {})", age(still), count(status.step));
    let verdict = Verdict::new(Tone::Warn, text);
    Some(match &status.proposal {
        Some(_) => verdict.advise(Action::Accept, "does what the keeper proposes"),
        None => verdict.advise(Action::Restart, "restarts the worker"),
    })
}

/// Number of newest steps over which the skip rate is computed.
pub const SKIP_WINDOW: usize = 200;

fn skipping(state: &State) -> Option<Verdict> {
    let (skipped, of) = state.facts.series.skipped_among(SKIP_WINDOW);
    let share = skipped as f64 / of.max(1) as f64;
    (of >= 20 && share > state.watch.skip_rate).then(|| {
        let limit = percent(state.watch.skip_rate);
        let text = format!("{} of the last {of} steps were not finite and skipped (limit {limit})", percent(share));
        Verdict::new(Tone::Warn, text).advise(Action::ShiftDown, "shifts to a safer rung")
    })
}

/// Returns the newest reading of the GPU the run trains on.
fn used_card(state: &State) -> Option<&Gpu> {
    let newest = state.facts.samples.back().filter(|_| state.uses_card())?;
    newest.reading.gpu.as_ref().ok()
}

fn hot_or_full(state: &State) -> Option<Verdict> {
    let gpu = used_card(state)?;
    if let Some(celsius) = gpu.temperature_c.get().filter(|celsius| *celsius > state.watch.temperature_c) {
        let limit = state.watch.temperature_c;
        let text = format!("the GPU is at {celsius:.0} °C (limit {limit:.0} °C)");
        return Some(Verdict::new(Tone::Warn, text).advise(Action::ShiftDown, "shifts to a safer rung"));
    }
    let share = gpu.vram_used_bytes.get()? as f64 / gpu.vram_total_bytes.get()? as f64;
    (share > state.watch.vram).then(|| {
        let text = format!("{} of the card's memory is in use (limit {})", percent(share), percent(state.watch.vram));
        Verdict::new(Tone::Warn, text).advise(Action::ShiftDown, "shifts to a safer rung")
    })
}

/// Warns if memory will run out within half an hour at the current rate.
fn filling(state: &State) -> Option<Verdict> {
    let gpu = used_card(state)?;
    let forecast = state.facts.vram_forecast(gpu.vram_total_bytes.get()?)?;
    let minutes = forecast.minutes_to_full.filter(|minutes| *minutes < 30.0)?;
    let text = format!(
        "the card's memory grows by {} a minute and is full in {}",
        bytes(forecast.bytes_per_min as u64),
        age((minutes * 60e3) as i64)
    );
    Some(Verdict::new(Tone::Warn, text).advise(Action::ShiftDown, "shifts to a safer rung"))
}

/// Warns if steps take much longer than usual, with the cause if it can be determined. Evaluations and
/// saves between steps are planned and do not count.
fn slow(state: &State, status: &Status) -> Option<Verdict> {
    if status.state != RunState::Training {
        return None;
    }
    let pace = state.facts.pace()?;
    let (now_ms, usual_ms) = (pace.step_ms?, state.facts.usual_step_ms()?);
    let share = usual_ms / now_ms;
    if !(share.is_finite() && share < 0.6) {
        return None;
    }
    let gpu = used_card(state);
    let held = gpu.and_then(|gpu| gpu.throttle.get());
    let why = if held.is_some_and(|held| held.thermal) {
        "the card is held back by heat".to_owned()
    } else if held.is_some_and(|held| held.power || held.hardware) {
        "the card is held back by its power supply".to_owned()
    } else if let Some(waiting) = pace.waiting.filter(|waiting| *waiting > 0.3) {
        format!("{} of each step waits for data", percent(waiting))
    } else if gpu.and_then(|gpu| gpu.utilisation.get()).is_some_and(|load| load < 0.5) {
        "the card is idle half of the time".to_owned()
    } else {
        "the steps themselves take longer".to_owned()
    };
    let text = format!("slow: {} ms a step, usually {} ms; {why}", figure(now_ms), figure(usual_ms));
    Some(Verdict::new(Tone::Warn, text))
}

fn healthy(state: &State, status: &Status) -> Verdict {
    let mut parts = Vec::new();
    if let Some(word) = trend(state) {
        parts.push(format!("loss {word}"));
    }
    if let Some(pace) = state.facts.pace() {
        parts.push(format!("{} steps/s", rate(pace.steps_per_s)));
    }
    let newest = state.facts.checkpoints.values().rev().find(|row| row.kept);
    if let Some(row) = newest {
        parts.push(format!("saved {} ago", age(state.now_ms.saturating_sub(row.time_ms))));
    }
    let again = since_restart(state, status);
    let head = match (status.state, again) {
        (RunState::Evaluating, _) => "measuring on the validation set".to_owned(),
        (RunState::Checkpointing, _) => "saving a checkpoint".to_owned(),
        (_, Some((steps, what))) if steps < 1000 => {
            format!("healthy again: {} since the {what}", counted(steps, "step"))
        }
        _ if parts.is_empty() => return Verdict::new(Tone::Busy, "training has begun"),
        _ => "healthy".to_owned(),
    };
    Verdict { more: parts, ..Verdict::new(Tone::Good, head) }
}

/// Returns the number of steps since the newest attempt began, and whether a restart or a shift started it.
fn since_restart(state: &State, status: &Status) -> Option<(u64, &'static str)> {
    let [.., before, newest] = state.facts.series.segments() else { return None };
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
