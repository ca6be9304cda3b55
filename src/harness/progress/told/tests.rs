use super::super::MERGED;
use super::super::tests::step_event;
use super::CommandProgress;
use crate::log_metrics::Reading;
use crate::protocol::companion::{Framework, Introduction};
use crate::protocol::worker::{Eval, Event, Phase, Skipped, Step};
use serde_json::json;
use std::time::Duration;

fn introduction(framework: &str, resumed_from: Option<u64>, total: Option<u64>) -> Introduction {
    let samples = resumed_from.map(|step| step * 10);
    serde_json::from_value(json!({
        "protocol": 1, "pid": 1, "framework": framework, "grade": "exact", "resumed_from": resumed_from,
        "samples": samples, "total_steps": total,
    }))
    .unwrap()
}

fn told(framework: &str, resumed_from: Option<u64>, total: Option<u64>) -> CommandProgress {
    let mut progress = CommandProgress::new(20, 4, 1, Some(1000));
    progress.follow(&introduction(framework, resumed_from, total));
    progress
}

fn reading(step: Option<u64>, values: &[(&str, f64)]) -> Reading {
    let values = values.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    Reading { step, total_steps: Some(7), values, ..Reading::default() }
}

fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn skipped(step: u64, rescaled: bool) -> Event {
    let (what, place) = ("loss".to_owned(), String::new());
    Event::Skipped(Skipped {
        step,
        samples: step * 10,
        epoch: 0,
        lr: 0.1,
        what,
        place,
        parameter: None,
        rescaled,
        applied: false,
    })
}

#[test]
fn steps_of_a_companion_count_and_those_in_the_output_do_not() {
    let mut progress = told("transformers", Some(20), None);
    assert_eq!((progress.step, progress.samples(20), progress.samples(21)), (20, 200, 204));
    assert!(progress.take(&reading(Some(500), &[("loss", 3.0)]), at(1)).is_empty());
    assert!(progress.take(&reading(None, &[("eval_loss", 3.0)]), at(1)).is_empty(), "it reports that itself");
    let events = progress.take_told(step_event(21), at(2));
    assert!(matches!(&events[..], [Event::Phase { phase: Phase::Training }, Event::Step(_)]), "{events:?}");
    assert!(matches!(&progress.take_told(step_event(22), at(3))[..], [Event::Step(_)]));
    assert!(progress.take_told(step_event(22), at(3)).is_empty(), "a second training counts again");
    assert_eq!((progress.step, progress.total, progress.flush()), (22, Some(1000), None));
    assert_eq!(progress.samples(22), 208, "a clock that goes back is not believed");
}

#[test]
fn an_evaluation_in_the_output_belongs_to_the_step_that_was_printed_before_it() {
    for (offset, drifts) in [(0, false), (1, false), (0, true)] {
        let mut progress = told("loop", None, None);
        for step in 1..=203 {
            progress.take_told(step_event(step), at(step));
            let printed = if drifts { step.div_ceil(2) } else { step - offset };
            if step % 20 == 0 {
                progress.take(&reading(Some(printed), &[("loss", 1.0)]), at(step));
            }
        }
        let printed = if drifts { 100 } else { 200 - offset };
        let events = progress.take(&reading(Some(printed), &[("eval_loss", 0.5)]), at(204));
        let [Event::Eval(eval)] = &events[..] else { panic!("{events:?}") };
        let wanted = if drifts { 203 } else { 200 };
        assert_eq!((eval.step, eval.samples), (wanted, wanted), "{offset}, {drifts}");
        let events = progress.take(&reading(None, &[("eval_loss", 0.5)]), at(205));
        let [Event::Eval(eval)] = &events[..] else { panic!("{events:?}") };
        assert_eq!(eval.step, 203);
        progress.take_told(Event::Eval(Eval::default()), at(206));
        let again = progress.take(&reading(None, &[("eval_loss", 0.5)]), at(207));
        assert!(again.is_empty(), "the companion tells the same: {again:?}");
    }
}

#[test]
fn a_companion_that_did_not_resume_is_believed() {
    let mut progress = told("loop", None, Some(5));
    assert_eq!(progress.step, 0);
    assert_eq!(progress.take_told(step_event(1), at(1)).len(), 2);
    assert_eq!((progress.total, progress.is_complete()), (Some(5), false));
    progress.follow(&introduction("loop", None, Some(1)));
    assert!(progress.is_complete() && progress.step == 1, "a change of its values moves nothing");
}

#[test]
fn steps_that_another_process_takes_again_count_again() {
    let mut progress = told("loop", None, None);
    (1..=30).for_each(|step| drop(progress.take_told(step_event(step), at(0))));
    progress.go_back(20);
    progress.follow(&introduction("loop", Some(20), None));
    assert_eq!((progress.step, progress.samples(20)), (20, 200));
    assert!(matches!(&progress.take_told(step_event(21), at(1))[..], [Event::Step(_)]));
    assert!(progress.take_told(step_event(20), at(1)).is_empty());
}

#[test]
fn a_loss_in_the_output_joins_the_step_that_has_none() {
    let mut progress = told("torch", None, None);
    let plain = |step| Event::Step(Step { step, samples: step, lr: Some(0.1), compute_ms: 8.0, ..Step::default() });
    assert!(matches!(&progress.take_told(plain(1), at(0))[..], [Event::Phase { .. }]), "it waits for a loss");
    progress.take(&reading(Some(99), &[("loss", 2.5)]), at(1));
    let events = progress.take_told(plain(2), at(10));
    let [Event::Step(step)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((step.step, step.loss, step.lr, step.compute_ms), (1, Some(2.5), Some(0.1), 8.0));
    let Some(Event::Step(step)) = progress.tick(at(10) + MERGED) else { panic!("time has passed") };
    assert_eq!((step.step, step.loss), (2, None));
    progress.take(&reading(None, &[("loss", f64::NAN)]), at(20));
    assert!(progress.take_told(plain(3), at(30)).is_empty());
    let Some(Event::Skipped(skipped)) = progress.flush() else { panic!("printed before its step") };
    assert_eq!((skipped.step, skipped.applied, progress.nan_in_a_row), (3, true, 1));
}

#[test]
fn a_loss_printed_for_step_0_is_that_of_no_update() {
    let mut progress = told("torch", None, None);
    let plain = |step| Event::Step(Step { step, samples: step, ..Step::default() });
    progress.take_told(plain(1), at(0));
    progress.take(&reading(Some(0), &[("loss", 4.2)]), at(1));
    let Some(Event::Step(step)) = progress.flush() else { panic!("step 1") };
    assert_eq!((step.step, step.loss), (1, None), "iter 0 is not step 1");
}

#[test]
fn accuracies_of_a_companion_are_shares() {
    let mut progress = told("loop", None, None);
    for (reported, kept) in [(1.5, 0.015), (0.5, 0.005), (81.25, 0.8125), (0.75, 0.75)] {
        let metrics = [("accuracy".to_owned(), reported), ("wer".to_owned(), 1.25)].into();
        let events = progress.take_told(Event::Eval(Eval { step: 1, metrics, ..Eval::default() }), at(1));
        let [Event::Eval(eval)] = &events[..] else { panic!("{events:?}") };
        assert_eq!((eval.metrics["accuracy"], eval.metrics["wer"]), (kept, 1.25));
    }
}

#[test]
fn a_companion_goes_on_where_the_output_is_not_certain_any_more() {
    let mut progress = told("torch", None, None);
    progress.follow_output();
    progress.step = 0;
    progress.take(&reading(Some(100), &[("loss", 2.5)]), at(1));
    let Some(Event::Step(step)) = progress.follow_on(&introduction("torch", None, None)) else { panic!("step 100") };
    assert_eq!((step.step, progress.step, progress.total), (100, 100, None));
    let plain = |step| Event::Step(Step { step, samples: step, ..Step::default() });
    assert!(progress.take_told(plain(90), at(2)).is_empty());
    progress.take_told(plain(120), at(2));
    let lost = Reading { count_started_over: Some(20), ..reading(None, &[("loss", 1.5)]) };
    progress.take(&lost, at(3));
    let Some(Event::Step(step)) = progress.flush() else { panic!("step 120") };
    assert_eq!((step.step, step.loss), (120, Some(1.5)));
}

#[test]
fn dropped_steps_count_in_a_row_unless_a_scale_was_halved() {
    let mut progress = told("loop", None, None);
    progress.take_told(skipped(1, false), at(0));
    progress.take_told(skipped(2, true), at(0));
    progress.take_told(skipped(3, false), at(0));
    assert_eq!(progress.nan_in_a_row, 2);
    progress.take_told(step_event(4), at(0));
    assert_eq!(progress.nan_in_a_row, 0);
}

#[test]
fn only_the_end_of_the_training_or_its_last_step_completes_it() {
    let mut progress = told("loop", None, Some(5));
    (1..=4).for_each(|step| drop(progress.take_told(step_event(step), at(0))));
    assert!(!progress.is_complete(), "one step is missing, and every step is reported");
    progress.end_training(4);
    assert!(progress.is_complete() && progress.has_taken_last_step() && progress.training_has_ended());
    assert!(Framework::Loop.sees_losses());
}
