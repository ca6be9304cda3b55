//! The outcome of a run that is over: its result, its best evaluation, its skips and its workers.

use super::meters::{Body, Meter, NARROWEST, skips};
use crate::cockpit::run_cells::metric_value;
use crate::cockpit::state::State;
use crate::cockpit::verdict::{Tone, summarize_eval};
use crate::format::{count, counted, figure};
use crate::protocol::control::{Best, Status};
use crate::protocol::metrics::{ACCURACY, LOSS, PERPLEXITY};
use crate::protocol::worker::Eval;
use unicode_width::UnicodeWidthStr;

/// Returns the outcome of a run that is over, most important first.
#[must_use]
pub fn outcome_meters(state: &State) -> Vec<Meter> {
    let plain = |label: &'static str, value: String, notes: Vec<String>| Meter {
        label,
        value: Some(value),
        short_value: None,
        tone: Tone::Plain,
        body: Body::Nothing,
        notes,
        age: None,
    };
    let measured = |label: &'static str, eval: &Eval| {
        let mut notes = vec![format!("at step {}", count(eval.step))];
        notes.extend(eval.loss.map(|loss| format!("validation loss {}", figure(loss))));
        plain(label, summarize_eval(eval), notes)
    };
    let evals = || state.facts.evals.values().map(|row| &row.eval);
    let last = state.status().and_then(|status| status.eval.as_ref()).or(evals().next_back());
    let mut meters: Vec<Meter> = last.map(|last| measured("result", last)).into_iter().collect();
    let best = state.status().and_then(|status| status.best.as_ref());
    let other = best.filter(|best| last.is_none_or(|last| last.step != best.step));
    meters.extend(other.map(|best| plain("best", metric_value(&best.metric, best.value), best_notes(state, best))));
    meters.push(skips(state));
    if let Some(status) = state.status() {
        meters.push(plain("workers", count(status.attempts), worker_causes(status)));
        let useful = status.time.useful_text().filter(|_| status.step > 0);
        meters.extend(useful.map(|share| plain("useful", share, status.time.losses_text())));
    }
    meters
}

/// Returns the step of the best checkpoint and, if checkpoints are ranked by loss, the accuracy or perplexity there: it may
/// have been better at another step.
fn best_notes(state: &State, best: &Best) -> Vec<String> {
    let is_named = |eval: &&Eval| eval.value(ACCURACY).or(eval.value(PERPLEXITY)).is_some();
    let eval = state.facts.evals.get(&best.step).map(|row| &row.eval).filter(is_named);
    let named = eval.filter(|_| best.metric == LOSS).map(summarize_eval);
    [Some(format!("at step {}", count(best.step))), named].into_iter().flatten().collect()
}

/// Explains why there was more than one worker. Each worker after the first followed a shift, a pause
/// or a restart, so these add up; the number of them caused by a fault comes first.
fn worker_causes(status: &Status) -> Vec<String> {
    let others = status.attempts.saturating_sub(1);
    let restarts = others.saturating_sub(status.shifts + status.rollbacks + status.pauses);
    let counts = [
        (status.restarts, "fault"),
        (status.shifts, "shift"),
        (status.rollbacks, "rollback"),
        (restarts, "restart"),
        (status.pauses, "pause"),
    ];
    let seen = counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, name)| counted(count, name));
    let seen: Vec<String> = seen.collect();
    // All of them on one line, if they fit the narrowest panel.
    let joined = seen.join(", ");
    match joined.width() {
        0 => vec!["no restarts".to_owned()],
        1..=NARROWEST => vec![joined],
        _ => seen,
    }
}

#[cfg(test)]
mod tests {
    use super::outcome_meters;
    use crate::cockpit::fixture;
    use crate::cockpit::state::State;
    use crate::protocol::control::RunState;

    const SIZE: (u16, u16) = (200, 50);

    fn workers_note(state: &State) -> String {
        let meters = outcome_meters(state);
        meters.iter().find(|meter| meter.label == "workers").map(|meter| meter.note(200)).unwrap_or_default()
    }

    #[test]
    fn every_way_to_another_worker_is_counted_once() {
        let mut state = fixture::training(SIZE);
        let mut status = fixture::status(RunState::Stopped, 700);
        (status.attempts, status.shifts, status.pauses, status.restarts) = (5, 1, 2, 0);
        fixture::apply_status(&mut state, status.clone());
        assert_eq!(workers_note(&state), "1 shift, 1 restart, 2 pauses");
        // A fault that led to a shift counts as both; so does one that led to a restart.
        (status.attempts, status.shifts, status.pauses, status.restarts) = (3, 1, 0, 2);
        fixture::apply_status(&mut state, status.clone());
        assert_eq!(workers_note(&state), "2 faults, 1 shift, 1 restart");
        (status.attempts, status.pauses) = (14, 10);
        fixture::apply_status(&mut state, status.clone());
        assert_eq!(workers_note(&state), "2 faults · 1 shift · 2 restarts · 10 pauses", "too much for one note");
        (status.attempts, status.rollbacks, status.pauses, status.restarts) = (4, 2, 0, 0);
        fixture::apply_status(&mut state, status.clone());
        assert_eq!(workers_note(&state), "1 shift, 2 rollbacks");
        (status.attempts, status.shifts, status.rollbacks) = (1, 0, 0);
        fixture::apply_status(&mut state, status);
        assert_eq!(workers_note(&state), "no restarts");
    }
}
