//! Marks and readings of charts.

use super::{draw_text, press_keys};
use crate::cockpit::fixture;
use crate::cockpit::quantity::Quantity;

#[test]
fn the_best_is_the_one_whose_weights_are_on_the_disk() {
    let mut state = fixture::training((120, 40));
    assert!(draw_text(&state).contains("best 0.298 @ 600"), "{}", draw_text(&state));
    state.facts.checkpoints.values_mut().for_each(|row| row.best = false);
    let shown = draw_text(&state);
    assert!(!shown.contains("best 0"), "an evaluation alone is none: {shown}");
}

#[test]
fn names_of_rungs_never_lie_over_each_other() {
    // Nine shifts close together.
    let mut state = fixture::young((120, 40));
    let mut history = crate::cockpit::state::facts::History::default();
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
    let value = crate::format::figure(row.loss.unwrap());
    assert!(shown.contains(&format!("step 700  {value}")), "{value} in {shown}");
    let mut skipped = fixture::training((120, 40));
    press_keys(&mut skipped, "2");
    skipped.screen.chart.cursor = Some(77.0);
    assert!(draw_text(&skipped).contains("step 77  –, skipped"), "{}", draw_text(&skipped));
}
