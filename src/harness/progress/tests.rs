//! Readings of one step, and the events that they make.

use super::{CommandProgress, MERGED};
use crate::log_metrics::{Reading, Skip};
use crate::protocol::worker::{Event, Step};
use std::time::Duration;

/// Returns the event of a plain step.
pub(in crate::harness) fn step_event(step: u64) -> Event {
    Event::Step(Step {
        step,
        samples: step,
        epoch: 0,
        loss: Some(1.0),
        lr: None,
        grad_norm: None,
        micro_batches: 1,
        compute_ms: 1.0,
        ..Step::default()
    })
}

pub(in crate::harness) fn reading(step: Option<u64>, values: &[(&str, f64)]) -> Reading {
    let values = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    Reading { step, values, ..Reading::default() }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn a_bar_and_a_log_line_make_one_step() {
    let mut progress = CommandProgress::new(0, 8, 2, None);
    let first = progress.take(&reading(Some(1), &[]), ms(10));
    assert!(matches!(&first[..], [Event::Phase { .. }]), "{first:?}");
    assert!(progress.take(&reading(None, &[("loss", 2.5), ("mfu", 0.4)]), ms(20)).is_empty());
    assert!(progress.tick(ms(30)).is_none());
    let events = progress.take(&reading(Some(2), &[("loss", 2.0)]), ms(110));
    let [Event::Step(step)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((step.step, step.samples, step.loss, step.lr), (1, 8, Some(2.5), None));
    assert_eq!(step.metrics.get("mfu"), Some(&0.4));
    let Some(Event::Step(step)) = progress.tick(ms(110) + MERGED) else { panic!("time has passed") };
    assert_eq!(step.step, 2);
}

#[test]
fn the_line_of_step_0_is_a_point_and_no_step() {
    let mut progress = CommandProgress::new(0, 8, 2, Some(20));
    progress.take(&reading(Some(0), &[]), ms(1));
    assert_eq!(progress.flush(), None, "a bar that begins");
    let first = progress.take(&reading(Some(0), &[("loss", 4.25)]), ms(10));
    assert!(matches!(&first[..], [Event::Phase { .. }]), "{first:?}");
    progress.take(&reading(Some(0), &[("lr", 0.5)]), ms(20));
    let events = progress.take(&reading(Some(10), &[("loss", 3.0)]), ms(30));
    let [Event::Step(step)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((step.step, step.samples, step.loss, step.lr), (0, 0, Some(4.25), Some(0.5)));
    progress.flush();
    assert!(progress.take(&reading(Some(0), &[("loss", 9.0)]), ms(40)).is_empty(), "of another count");
    assert_eq!((progress.step, progress.first, progress.skips.counts(10)), (10, Some(0), None));
    let mut resumed = CommandProgress::new(40, 8, 2, None);
    assert!(resumed.take(&reading(Some(0), &[("loss", 4.25)]), ms(10)).is_empty());
    assert_eq!(resumed.flush(), None, "the run has steps before it");
}

#[test]
fn steps_that_arrive_together_or_are_left_out_share_their_time() {
    let mut progress = CommandProgress::new(40, 1, 1, None);
    let mut times = |steps: &[u64], now: Duration| -> Vec<f64> {
        let readings: Vec<Reading> = steps.iter().map(|step| reading(Some(*step), &[("loss", 1.0)])).collect();
        progress.time_steps(&readings, 0, now);
        let events: Vec<Event> = readings.iter().flat_map(|reading| progress.take(reading, now)).collect();
        let taken = events.into_iter().chain(progress.flush());
        taken.filter_map(|event| if let Event::Step(step) = event { Some(step.compute_ms) } else { None }).collect()
    };
    assert_eq!(times(&[41], ms(4000)), [0.0], "the time before the first report is not that of a step");
    assert_eq!(times(&[42, 43], ms(4060)), [30.0, 30.0], "one piece of output");
    assert_eq!(times(&[53], ms(4560)), [50.0], "a line for every tenth step");
    assert_eq!(times(&[50], ms(4570)), [0.0; 0], "another bar");
    assert_eq!(times(&[54], ms(4600)), [40.0]);
}

#[test]
fn losses_that_are_not_numbers_are_reported_and_never_sent_as_numbers() {
    let mut progress = CommandProgress::new(0, 1, 1, None);
    for step in 1..=3 {
        progress.take(&reading(Some(step), &[("loss", f64::NAN), ("x", f64::INFINITY)]), ms(step));
    }
    let Some(Event::Skipped(skipped)) = progress.flush() else { panic!("a NaN loss") };
    assert_eq!((skipped.step, skipped.what.as_str(), progress.nan_in_a_row), (3, "loss", 3));
    progress.take(&reading(Some(4), &[("loss", 1.0), ("x", f64::NAN)]), ms(5));
    let Some(Event::Step(step)) = progress.flush() else { panic!("a finite loss") };
    assert!(step.metrics.is_empty() && progress.nan_in_a_row == 0);
}

#[test]
fn a_step_that_the_script_says_it_left_out_was_not_taken() {
    for says in [true, false] {
        let mut progress = CommandProgress::new(0, 1, 1, None);
        progress.take(&reading(Some(1), &[("loss", f64::NAN)]), ms(1));
        if says {
            progress.take(&Reading { skip: Some(Skip::NotFinite), ..Reading::default() }, ms(2));
        }
        let events = progress.take(&reading(Some(2), &[("loss", f64::NAN)]), ms(3));
        let [Event::Skipped(first)] = &events[..] else { panic!("{events:?}") };
        let Some(Event::Skipped(second)) = progress.flush() else { panic!("a NaN loss") };
        assert_eq!((first.applied, second.applied), (!says, true));
        let counts = progress.skip_news();
        assert_eq!(counts.map(|counts| (counts.due, counts.skipped)), says.then_some((2, 1)));
    }
}

#[test]
fn a_count_that_starts_over_changes_no_step_and_its_total_was_that_of_an_epoch() {
    let mut progress = CommandProgress::new(0, 1, 1, None);
    let total = |step, total| Reading { total_steps: total, ..reading(Some(step), &[("loss", 1.0)]) };
    progress.take(&total(10, Some(10)), ms(1));
    let lost = Reading { count_started_over: Some(5), ..reading(None, &[("loss", 9.0)]) };
    assert!(progress.take(&lost, ms(2)).is_empty());
    assert_eq!((progress.step, progress.total), (10, Some(10)));
    let events = progress.take(&total(15, None), ms(3));
    let [Event::Step(step)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((step.step, step.loss, progress.total), (10, Some(1.0), None));
}

#[test]
fn evaluations_have_their_own_event_and_counts_never_go_back() {
    let mut progress = CommandProgress::new(0, 4, 1, Some(100));
    progress.take(&reading(Some(10), &[("loss", 1.0)]), ms(1));
    let events =
        progress.take(&reading(None, &[("eval_loss", 0.5), ("eval_accuracy", 0.9), ("eval_runtime", 7.0)]), ms(2));
    let [Event::Step(_), Event::Eval(eval)] = &events[..] else { panic!("{events:?}") };
    assert_eq!(eval.metrics.len(), 1, "the duration is left out: {eval:?}");
    assert_eq!((eval.step, eval.samples, eval.loss, eval.metrics["accuracy"]), (10, 40, Some(0.5), 0.9));
    assert!(progress.take(&reading(Some(3), &[("loss", 9.0)]), ms(3)).is_empty());
    assert_eq!((progress.step, progress.flush()), (10, None));
    assert!(!progress.is_complete());
    progress.take(&reading(Some(90), &[]), ms(5));
    assert!(progress.is_complete(), "a command that reports every 80th step may have taken the last one");
    assert!(CommandProgress::new(0, 1, 1, None).is_complete(), "the last step is unknown");
}
