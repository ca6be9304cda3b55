//! Verdicts on trouble, one rule each. Those about a value have a threshold with hysteresis, so that they do not
//! come and go with every step.

use super::{Tone, Verdict};
use crate::cockpit::action::Action;
use crate::cockpit::state::State;
use crate::cockpit::state::alerts::{AlertKind, Threshold};
use crate::cockpit::state::facts::SKIP_WINDOW;
use crate::format::{age, bytes, count, percent, rate};
use crate::outlook::continuation::How;
use crate::protocol::control::Status;
use crate::protocol::probe::Gpu;
use crate::protocol::resume::describe_ignored;
use crate::store::run_dir_watch::MAY_BE_MISSING;
use std::time::Duration;

/// Milliseconds per step, as a multiple of the usual.
const SLOW: Threshold = Threshold { begins: 1.0 / 0.6, ends: 1.25 };
/// One over the minutes until GPU memory is full.
const SOON: Threshold = Threshold { begins: 1.0 / 30.0, ends: 1.0 / 45.0 };

fn holds(state: &State, kind: AlertKind, threshold: Threshold, value: f64) -> bool {
    value.is_finite() && threshold.holds(value, state.alerts.since_ms(kind).is_some())
}

/// Warns that the script does not follow the rung: shifts would change nothing.
pub(super) fn ignored_knobs(status: &Status) -> Option<Verdict> {
    let ignored = &status.companion.as_ref()?.ignored;
    Some(Verdict::new(Tone::Warn, describe_ignored(ignored)?))
}

/// Steps of an attempt in which its start is news.
const OF_START: u64 = 100;

/// Warns that the script does not train on from its checkpoint, as long as it takes steps again for that reason.
pub(super) fn other_resume(status: &Status) -> Option<Verdict> {
    let resumed = status.resumed.as_ref().filter(|resumed| resumed.is_doubtful())?;
    let is_news = status.step < resumed.asked().max(resumed.step()) + OF_START;
    is_news.then(|| Verdict::new(Tone::Warn, resumed.to_string()))
}

/// A connected keeper sends updates ten times a second; silence beyond this limit means something is
/// wrong with it, milliseconds.
const SILENT_MS: i64 = 5_000;

pub(super) fn silent(state: &State) -> Option<Verdict> {
    let silence = state.silence_ms()?;
    let last = state.status().map_or(0, |status| status.step);
    (silence > SILENT_MS).then(|| {
        let text = format!("keeper silent for {}; data shown is from step {}", age(silence), count(last));
        Verdict::new(Tone::Warn, text)
    })
}

/// Warns that the run directory is missing: the keeper ends the run soon unless it comes back.
pub(super) fn run_dir_missing(state: &State, status: &Status) -> Option<Verdict> {
    let missing = Duration::from_millis(state.now_ms.abs_diff(state.facts.run_dir_missing_ms?));
    let left = MAY_BE_MISSING.saturating_sub(missing);
    let way = if left.is_zero() {
        // Its disk may take longer.
        "mount its disk again, or the run ends".to_owned()
    } else {
        format!("{} to move it back; then the run ends", age(i64::try_from(left.as_millis()).unwrap_or(0)))
    };
    let text = format!("run directory missing: {way}: {}", status.run_dir);
    Some(Verdict::new(Tone::Danger, text))
}

pub(super) fn stalled(state: &State, status: &Status) -> Option<Verdict> {
    let still = state.stalled_ms()?;
    let text = format!("stalled: no step for {} (last: {})", age(still), count(status.step));
    let verdict = Verdict::new(Tone::Warn, text);
    Some(match &status.proposal {
        Some(_) => verdict.advise(Action::Accept, "accepts the keeper's proposal"),
        // Nothing resumes a lost command: a restart is refused.
        None if state.continuation().how == How::RunAgain => verdict.advise(Action::Stop, "ends it"),
        None => verdict.advise(Action::Restart, "restarts the worker"),
    })
}

pub(super) fn skipping(state: &State) -> Option<Verdict> {
    let (skipped, of) = recent_skips(state);
    let share = skipped as f64 / of.max(1) as f64;
    let rate = Threshold { begins: state.watch.skip_rate, ends: state.watch.skip_rate / 2.0 };
    (of >= 20 && holds(state, AlertKind::Skipping, rate, share)).then(|| {
        let limit = percent(state.watch.skip_rate);
        let is_guarded = state.status().is_none_or(|status| status.unguarded == 0);
        let what = if is_guarded { "skipping" } else { "NaN, not skipped" };
        let text = format!("{what}: {} of the last {of} steps were not finite (limit {limit})", percent(share));
        advise_shift(state, Verdict::new(Tone::Warn, text))
    })
}

/// Returns how many of the newest steps on the rung were skipped, and out of how many. A command's own counts come first: it may
/// have a row for every tenth step only.
fn recent_skips(state: &State) -> (u64, u64) {
    let counted = state.status().and_then(|status| status.updates.as_ref()).map(|updates| updates.recent);
    let series = &state.facts.series;
    let of_rows = || series.skipped_among(SKIP_WINDOW, series.first_on_rung());
    counted.filter(|share| share.skipped > 0).map_or_else(of_rows, |share| (share.skipped, share.of))
}

/// Advises a shift down, if there is a rung below.
fn advise_shift(state: &State, verdict: Verdict) -> Verdict {
    let is_lowest = state.rung().is_some_and(|rung| rung + 1 >= state.ladder.len());
    if is_lowest { verdict } else { verdict.advise(Action::ShiftDown, "shifts to a safer rung") }
}

/// Returns the newest reading of the GPU the run trains on.
fn training_gpu(state: &State) -> Option<&Gpu> {
    let newest = state.facts.samples.back().filter(|_| state.uses_card())?;
    newest.reading.gpu.as_ref().ok()
}

pub(super) fn hot(state: &State) -> Option<Verdict> {
    let limit = state.watch.temperature_c;
    let celsius = training_gpu(state)?.temperature_c.get()?;
    let threshold = Threshold { begins: limit, ends: limit - 3.0 };
    holds(state, AlertKind::Hot, threshold, celsius).then(|| {
        let text = format!("GPU at {celsius:.0} °C (limit {limit:.0} °C)");
        advise_shift(state, Verdict::new(Tone::Warn, text))
    })
}

pub(super) fn vram_full(state: &State) -> Option<Verdict> {
    let gpu = training_gpu(state)?;
    let share = gpu.vram_used_bytes.get()? as f64 / gpu.vram_total_bytes.get()? as f64;
    let threshold = Threshold { begins: state.watch.vram, ends: state.watch.vram - 0.02 };
    holds(state, AlertKind::VramFull, threshold, share).then(|| {
        let text = format!("VRAM {} full (limit {})", percent(share), percent(state.watch.vram));
        advise_shift(state, Verdict::new(Tone::Warn, text))
    })
}

/// Warns if memory will run out within half an hour at the current rate.
pub(super) fn filling(state: &State) -> Option<Verdict> {
    let gpu = training_gpu(state)?;
    let forecast = state.facts.vram_forecast(gpu.vram_total_bytes.get()?)?;
    let soon = |minutes: &f64| holds(state, AlertKind::VramFilling, SOON, 1.0 / minutes);
    let minutes = forecast.minutes_to_full.filter(soon)?;
    let text = format!(
        "VRAM full in {}: grows by {} per minute",
        age((minutes * 60e3) as i64),
        bytes(forecast.bytes_per_min as u64)
    );
    Some(advise_shift(state, Verdict::new(Tone::Warn, text)))
}

/// Warns if steps take much longer than usual, with the cause if it can be determined. Evaluations and
/// saves between steps are planned and do not count.
pub(super) fn slow(state: &State) -> Option<Verdict> {
    // It still holds during an evaluation or a save.
    if !state.is_moving() {
        return None;
    }
    let pace = state.facts.pace()?;
    let (now_ms, usual_ms) = (pace.step_ms?, state.facts.usual_step_ms()?);
    if !holds(state, AlertKind::Slow, SLOW, now_ms / usual_ms) {
        return None;
    }
    let gpu = training_gpu(state);
    let throttle = gpu.and_then(|gpu| gpu.throttle.get());
    let why = if throttle.is_some_and(|throttle| throttle.thermal) {
        Some("GPU throttled by heat".to_owned())
    } else if throttle.is_some_and(|throttle| throttle.power || throttle.hardware) {
        Some("GPU throttled by its power limit".to_owned())
    } else if let Some(waiting) = pace.waiting.filter(|waiting| *waiting > 0.3) {
        Some(format!("{} of each step waits for data", percent(waiting)))
    } else if gpu.and_then(|gpu| gpu.utilisation.get()).is_some_and(|load| load < 0.5) {
        Some("GPU idle over half the time".to_owned())
    } else {
        pace.waiting.map(|_| "compute, not data".to_owned())
    };
    let why = why.map_or_else(String::new, |why| format!(" ({why})"));
    // Not steps/s: that is the speed of the run, which every panel shows, with the pauses between steps.
    let text = format!("slow: {} ms per step, usually {}{why}", rate(now_ms), rate(usual_ms));
    Some(Verdict::new(Tone::Warn, text))
}

/// Returns a verdict for a decision that is waiting for the user.
pub(super) fn proposal(status: &Status) -> Option<Verdict> {
    let proposal = status.proposal.as_ref()?;
    // The action comes before the cause, because a narrow screen cuts the end.
    let text = format!("the keeper {}: {}", proposal.does, proposal.why);
    Some(Verdict::new(Tone::Warn, text).advise(Action::Accept, "accepts"))
}

/// Warns while checkpoints cannot be saved.
pub(super) fn not_saved(status: &Status) -> Option<Verdict> {
    Some(Verdict::new(Tone::Danger, status.failed_saves.as_ref()?.to_string()))
}

/// Warns if the evaluations no longer get better. Last, because it lasts: it must not hide news.
pub(super) fn not_learning(state: &State) -> Option<Verdict> {
    Some(Verdict::new(Tone::Warn, state.setback()?.to_string()))
}
