//! Marks and readings of charts.

use super::{draw_text, press_keys, with_runs};
use crate::cockpit::fixture;
use crate::cockpit::quantity::Quantity;
use crate::cockpit::state::State;
use crate::cockpit::state::facts::{History, Loading};
use crate::cockpit::state::screen::Panel;
use crate::cockpit::update::{Msg, update};
use crate::format::figure;
use crate::protocol::control::{RunState, StepRow, Update};
use crate::series::Axis;
use crate::store::summary::MetricId;
use insta::assert_snapshot;

#[test]
fn the_best_is_the_one_whose_weights_are_on_the_disk() {
    let mut state = fixture::training((120, 40));
    assert!(draw_text(&state).contains("best 0.298 @ 600"), "{}", draw_text(&state));
    state.facts.checkpoints.values_mut().for_each(|row| row.best = false);
    let shown = draw_text(&state);
    assert!(!shown.contains("best 0"), "an evaluation alone is none: {shown}");
    assert!(!shown.contains(", lowest 0."), "one would take it for that of the evaluations: {shown}");
    state.facts.evals.clear();
    // It is the lowest of the measured losses, not of their means, with smoothing and without.
    let lowest = (1..=700).filter_map(|step| fixture::step_row(1, step, fixture::NOW).loss).fold(f64::MAX, f64::min);
    for weight in [0.9, 0.0] {
        state.screen.chart.set_weight(weight);
        let shown = draw_text(&state);
        assert!(shown.contains(&format!("measured, lowest {} @ ", figure(lowest))), "{weight}, {lowest}: {shown}");
    }
}

/// Returns a run whose every tenth step reports a reward.
fn rewarded() -> History {
    let mut history = History { evals: fixture::history(700, false).evals, ..History::default() };
    for step in 1..=700u64 {
        let mut row = fixture::step_row(1, step, fixture::NOW - (700 - step.cast_signed()) * 36);
        if step.is_multiple_of(10) {
            row.metrics.insert("reward/mean".to_owned(), step as f64 / 100.0);
        }
        history.push_step(&row);
    }
    history
}

#[test]
fn a_rate_that_was_printed_long_ago_names_its_step_and_nothing_printed_is_said() {
    let printed = |state: &mut State, rate: &dyn Fn(u64) -> Option<f64>| {
        let row =
            |step| StepRow { loss: None, skipped: false, lr: rate(step), ..fixture::step_row(0, step, fixture::NOW) };
        update(state, Msg::Keeper(Update::Steps { rows: (1..=1_408).map(row).collect() }));
        fixture::apply_status(state, fixture::status(RunState::Training, 1_408));
    };
    let chart = |rate: &dyn Fn(u64) -> Option<f64>, quantity: Quantity| {
        let mut state = fixture::young((120, 40));
        printed(&mut state, rate);
        press_keys(&mut state, "2");
        (state.screen.full, state.screen.focus) = (Some(quantity), Panel::Chart(quantity));
        draw_text(&state)
    };
    let twice = chart(&|step| (step == 1 || step == 704).then_some(0.002), Quantity::LearningRate);
    assert!(twice.contains("0.002 @ 704"), "{twice}");
    let always = chart(&|_| Some(0.002), Quantity::LearningRate);
    assert!(always.contains("0.002") && !always.contains("0.002 @"), "{always}");
    let loss = chart(&|_| Some(0.002), Quantity::Loss);
    assert!(loss.contains("no loss printed yet"), "{loss}");
}

#[test]
fn named_metrics_have_charts_like_any_other() {
    let mut state = fixture::at((80, 24), fixture::status(RunState::Training, 700), rewarded());
    press_keys(&mut state, "2");
    let shown = draw_text(&state);
    for part in ["evaluation accuracy", "reward/mean", "charts 1 to 4 of 10"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert_snapshot!(shown);
    let reward = Quantity::Named(MetricId(0));
    assert!(state.quantities().contains(&reward));
    (state.screen.full, state.screen.focus) = (Some(reward), Panel::Chart(reward));
    state.screen.chart.cursor = Some(500.0);
    assert!(draw_text(&state).contains("step 500  5.00"), "{}", draw_text(&state));
    // A name that comes later gets the next id; the past knows both.
    let mut row = fixture::step_row(1, 701, fixture::NOW);
    row.metrics.insert("fid".to_owned(), 12.0);
    update(&mut state, Msg::Keeper(Update::Steps { rows: vec![row] }));
    let fid = Quantity::Named(MetricId(1));
    assert_eq!(fid.title(&state.facts.metrics), "fid");
    assert_eq!(fid.value_at(&state, Axis::Steps, 701.0).map(|extent| extent.mean.to_bits()), Some(12f32.to_bits()));
    let past = state.at_moment(fixture::NOW, fixture::history(450, false));
    assert_eq!((fid.title(&past.facts.metrics), fid.value_at(&past, Axis::Steps, 450.0)), ("fid".to_owned(), None));
}

#[test]
fn a_metric_keeps_its_chart_when_the_history_is_read_again() {
    let mut state = fixture::at((120, 40), fixture::status(RunState::Training, 700), rewarded());
    // The store has the names in another order.
    let mut again = History::default();
    let mut row = fixture::step_row(1, 1, fixture::NOW);
    row.metrics = [("aaa".to_owned(), 1.0), ("reward/mean".to_owned(), 7.0)].into();
    again.push_step(&row);
    (state.facts.loading, state.facts.asked) = (Loading::Reading(Vec::new()), 9);
    state.facts.load_history(9, Ok(again), fixture::NOW);
    let reward = Quantity::Named(MetricId(0));
    assert_eq!(reward.title(&state.facts.metrics), "reward/mean");
    assert_eq!(reward.value_at(&state, Axis::Steps, 1.0).map(|extent| extent.mean.to_bits()), Some(7f32.to_bits()));
}

#[test]
fn a_norm_that_no_step_reports_has_no_chart() {
    let mut history = History::default();
    for step in 1..=20 {
        history.push_step(&StepRow { grad_norm: None, lr: None, ..fixture::step_row(1, step, fixture::NOW) });
    }
    let state = fixture::at((120, 40), fixture::status(RunState::Training, 20), history);
    let quantities = state.quantities();
    assert!(!quantities.contains(&Quantity::GradNorm) && !quantities.contains(&Quantity::LearningRate));
    assert!(quantities.contains(&Quantity::Loss) && quantities.contains(&Quantity::StepTime));
    let waiting = fixture::connected((120, 40)).quantities();
    assert!(waiting.contains(&Quantity::GradNorm), "before the first step, nothing is known");
}

#[test]
fn runs_are_compared_by_any_metric() {
    let mut state = fixture::at((120, 40), fixture::status(RunState::Training, 700), rewarded());
    press_keys(&mut state, "6");
    with_runs(&mut state);
    state.screen.focus = Panel::Compare;
    let mut seen = Vec::new();
    for _ in 0..12 {
        seen.push(state.screen.compared.title(&state.facts.metrics));
        press_keys(&mut state, "n");
    }
    seen.dedup();
    assert_eq!(seen[0], "loss");
    assert!(seen.iter().any(|title| title == "evaluation accuracy"), "{seen:?}");
    state.screen.compared = Quantity::Named(MetricId(0));
    let shown = draw_text(&state);
    assert!(shown.contains("reward/mean") && shown.contains("no value yet"), "the other run has none: {shown}");
}

#[test]
fn names_of_rungs_never_lie_over_each_other() {
    // Nine shifts close together.
    let mut state = fixture::young((120, 40));
    let mut history = History::default();
    for step in 1..=300u64 {
        let mut row = fixture::step_row(1 + step / 30, step, fixture::NOW);
        row.rung = usize::try_from(step / 30).unwrap() % 4;
        history.push_step(&row);
    }
    state.facts.series = history.series;
    press_keys(&mut state, "2");
    state.screen.full = Some(Quantity::Loss);
    let shown = draw_text(&state);
    let row = shown.lines().find(|line| line.contains('┊') && !line.contains('│')).unwrap();
    let known = ["full", "accumulate", "plain", "safe"];
    let words: Vec<_> = row.split(['┊', ' ']).filter(|word| !word.is_empty()).collect();
    assert!(words.len() >= 3 && words.iter().all(|word| known.contains(word)), "{row}");
}

#[test]
fn the_cursor_reads_the_exact_value_of_a_step() {
    let mut state = fixture::training((120, 40));
    press_keys(&mut state, "2v");
    let row = fixture::step_row(2, 700, 0);
    let shown = draw_text(&state);
    let value = figure(row.loss.unwrap());
    let heading = shown.lines().find(|line| line.starts_with(" loss ─")).unwrap();
    assert!(shown.contains("   step 700\n") && heading.contains(&format!("─ {value} ")), "{value} in {shown}");
    assert!(shown.contains("0.298 @ 675"), "the nearest evaluation: {shown}");
    state.screen.full = Some(Quantity::Loss);
    assert!(draw_text(&state).contains(&format!("step 700  {value}")), "{value} in {shown}");
    let mut skipped = fixture::training((120, 40));
    press_keys(&mut skipped, "2");
    skipped.screen.chart.cursor = Some(77.0);
    let shown = draw_text(&skipped);
    let heading = shown.lines().find(|line| line.starts_with(" loss ─")).unwrap();
    assert!(shown.contains("step 77, not finite\n") && heading.contains("─ – "), "{shown}");
    skipped.screen.full = Some(Quantity::Loss);
    assert!(draw_text(&skipped).contains("step 77  –, not finite"), "{}", draw_text(&skipped));
}
