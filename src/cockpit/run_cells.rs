//! A run in a few short texts: the cells of the run table, of the start screen and of `downshift runs`.

use super::verdict::{Tone, format_accuracy, summarize_eval};
use crate::format::{age, count, figure, percent};
use crate::protocol::claim::Wait;
use crate::protocol::control::{RunState, Status};
use crate::protocol::metrics::{ACCURACY, LOSS};
use crate::protocol::time_spent::TimeSpent;
use crate::store::labels::Tag;
use crate::store::run_summary::RunSummary;
use jiff::Timestamp;
use jiff::tz::Offset;

/// Returns the tone of a run's state.
#[must_use]
pub fn state_tone(status: &Status, now_ms: i64) -> Tone {
    match status.state {
        _ if status.stalled_ms(now_ms).is_some() => Tone::Warn,
        RunState::Finished => Tone::Good,
        RunState::Failed | RunState::NeedsPerson | RunState::Interrupted => Tone::Danger,
        RunState::Stopped => Tone::Plain,
        RunState::Paused
        | RunState::AwaitingCard
        | RunState::BackingOff
        | RunState::Recovering
        | RunState::Unattended => Tone::Warn,
        _ => Tone::Busy,
    }
}

/// Returns the state in words: `training`, `stalled 47 s` if a step takes longer than usual, or the place in the queue.
#[must_use]
pub fn state(run: &RunSummary, now_ms: i64) -> String {
    let stalled_ms = run.status.as_ref().and_then(|status| status.stalled_ms(now_ms));
    let stalled = stalled_ms.map(|still| format!("stalled {}", age(still)));
    stalled.or_else(|| queued(run)).unwrap_or_else(|| state_word(run).to_owned())
}

/// Returns the place of a waiting run: `waiting, number 2`.
fn queued(run: &RunSummary) -> Option<String> {
    Some(match run.place?.wait {
        Wait::Number(1) => "waiting, next".to_owned(),
        Wait::Number(number) => format!("waiting, number {number}"),
        Wait::Later => "waiting for a run".to_owned(),
        Wait::Held => "held in the queue".to_owned(),
    })
}

/// Returns the state as published, whatever the clock says.
#[must_use]
pub fn state_word(run: &RunSummary) -> &'static str {
    run.status.as_ref().map_or("never started", |status| status.state.word())
}

/// Returns the start in local time: `14:02` today, `20 Nov 14:02` this year, else the date.
#[must_use]
pub fn started(run: &RunSummary, now_ms: i64, offset_s: i32) -> String {
    let offset = Offset::from_seconds(offset_s).unwrap_or(Offset::UTC);
    let local = |ms: i64| Some(offset.to_datetime(Timestamp::from_millisecond(ms).ok()?));
    let (Some(then), Some(now)) = (run.times.started_ms.and_then(local), local(now_ms)) else { return String::new() };
    let format = match () {
        () if then.date() == now.date() => "%H:%M",
        () if then.year() == now.year() => "%-d %b %H:%M",
        () => "%-d %b %Y",
    };
    then.strftime(format).to_string()
}

/// Returns how long its workers have lived: `2 h 05 min`.
#[must_use]
pub fn duration(run: &RunSummary, now_ms: i64) -> String {
    run.duration_ms(now_ms).map_or_else(String::new, age)
}

/// Returns the share of wall time in steps that were kept: `97.3 %`.
#[must_use]
pub fn useful(run: &RunSummary) -> String {
    let time = run.status.as_ref().filter(|status| status.step > 0).map(|status| &status.time);
    time.and_then(TimeSpent::useful_text).unwrap_or_default()
}

/// Returns the steps taken.
#[must_use]
pub fn steps(run: &RunSummary) -> String {
    run.status.as_ref().map_or_else(String::new, |status| count(status.step))
}

/// Returns the share of the run that is done, if its length is known.
#[must_use]
pub fn done(status: &Status) -> Option<f64> {
    let total = status.total_samples.filter(|total| *total > 0)?;
    Some((status.samples as f64 / total as f64).min(1.0))
}

/// Returns that share as text: `52 %`.
#[must_use]
pub fn done_text(run: &RunSummary) -> String {
    run.status.as_ref().and_then(done).map_or_else(String::new, percent)
}

/// Returns the best evaluation on disk; without one, the newest evaluation or loss, marked as the last.
#[must_use]
pub fn best(run: &RunSummary) -> String {
    let Some(status) = &run.status else { return String::new() };
    let eval = || status.eval.as_ref().map(summarize_eval);
    let loss = || status.format_loss().map(|loss| format!("loss {loss}"));
    let newest = || eval().or_else(loss).map(|newest| format!("last {newest}"));
    saved_best(run).or_else(newest).unwrap_or_default()
}

/// Returns the best evaluation whose weights are on disk.
#[must_use]
pub fn saved_best(run: &RunSummary) -> Option<String> {
    let best = run.status.as_ref()?.best.as_ref()?;
    Some(metric_value(&best.metric, best.value))
}

/// Formats a value of an evaluation with the name of its metric: `validation loss 0.046`.
#[must_use]
pub fn metric_value(metric: &str, value: f64) -> String {
    match metric {
        ACCURACY => format!("accuracy {}", format_accuracy(value)),
        LOSS => format!("validation loss {}", figure(value)),
        name => format!("{name} {}", figure(value)),
    }
}

/// Returns the device: `cpu`, `cuda:0`.
#[must_use]
pub fn device(run: &RunSummary) -> String {
    let device = run.status.as_ref().and_then(|status| status.device.as_deref()).unwrap_or_default();
    device.split(' ').next().unwrap_or_default().to_owned()
}

/// Returns what `--set` changed, with the last part of each path: `lr=0.004 steps=500`.
#[must_use]
pub fn overrides(run: &RunSummary) -> String {
    let short = |set: &String| {
        let (path, value) = set.split_once('=').unwrap_or((set, ""));
        format!("{}={value}", path.rsplit('.').next().unwrap_or(path))
    };
    run.overrides.iter().map(short).collect::<Vec<_>>().join(" ")
}

/// Returns the name of the rung.
#[must_use]
pub fn rung(run: &RunSummary) -> String {
    run.status.as_ref().map_or_else(String::new, |status| status.rung_name.clone())
}

/// Returns the tags, with a mark if the run is archived, or if its labels cannot be read.
#[must_use]
pub fn tags(run: &RunSummary) -> String {
    if run.labels_error.is_some() {
        return "(labels.json unreadable)".to_owned();
    }
    let archived = run.labels.archived.then_some("(archived)");
    archived.into_iter().chain(run.labels.tags.iter().map(Tag::as_str)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::{best, started, state, tags};
    use crate::cockpit::fixture::{self, NOW};
    use crate::protocol::claim::{Place, Wait};
    use crate::protocol::control::{Best, RunState};
    use crate::store::labels::Tag;
    use crate::store::run_summary::{RunSummary, Times};

    #[test]
    fn a_start_is_as_precise_as_it_is_near() {
        const DAY: i64 = 86_400_000;
        let at = |ms: i64, offset_s: i32| {
            let times = Times { started_ms: Some(ms), ..Times::default() };
            started(&RunSummary { times, ..RunSummary::default() }, NOW, offset_s)
        };
        assert_eq!([at(NOW, 0), at(NOW - DAY, 0)], ["14:02", "19 Nov 14:02"]);
        assert_eq!(at(NOW - 365 * DAY, 0), "20 Nov 2025");
        assert_eq!(at(NOW, 12 * 3600), "02:02", "of the next local day, as now is");
        assert_eq!(started(&RunSummary::default(), NOW, 0), "");
    }

    #[test]
    fn the_ranking_metric_is_named() {
        let mut status = fixture::status(RunState::Finished, 10);
        let named = |metric: &str, value| Some(Best { step: 1, eval_loss: None, metric: metric.to_owned(), value });
        let mut shown = |best_of| {
            status.best = best_of;
            best(&RunSummary { status: Some(status.clone()), ..RunSummary::default() })
        };
        assert_eq!(shown(named("accuracy", 0.934)), "accuracy 93.4 %");
        assert_eq!(shown(named("loss", 0.298)), "validation loss 0.298");
        assert_eq!(shown(named("val/fid", 12.5)), "val/fid 12.50");
        assert_eq!(shown(None), "last accuracy 93.4 %", "the newest evaluation");
    }

    #[test]
    fn a_waiting_run_shows_its_place() {
        let status = fixture::status(RunState::AwaitingCard, 0);
        let mut run = RunSummary { status: Some(status), ..RunSummary::default() };
        assert_eq!(state(&run, NOW), "waiting for its turn", "the queue is not known");
        for (wait, text) in [
            (Wait::Number(1), "waiting, next"),
            (Wait::Number(12), "waiting, number 12"),
            (Wait::Later, "waiting for a run"),
            (Wait::Held, "held in the queue"),
        ] {
            run.place = Some(Place { rank: 1, wait });
            assert_eq!(state(&run, NOW), text);
        }
    }

    #[test]
    fn tags_follow_the_archive_mark() {
        let mut run = RunSummary::default();
        run.labels.tags.extend(["b", "a"].map(|tag| Tag::parse(tag).unwrap()));
        assert_eq!(tags(&run), "a b");
        run.labels.archived = true;
        assert_eq!(tags(&run), "(archived) a b");
        run.labels_error = Some("labels.json: expected value at line 1 column 1".to_owned());
        assert_eq!(tags(&run), "(labels.json unreadable)");
    }
}
