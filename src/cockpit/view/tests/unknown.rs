//! A value that was never measured must not appear on the screen as a number.
//!
//! The tests remove values from a run at random. The screen must then show no number that it did not
//! show with all values present: a default in place of an unknown value would be a new number.

use super::{draw_text, press_keys};
use crate::cockpit::fixture;
use crate::cockpit::state::State;
use crate::cockpit::state::facts::History;
use crate::protocol::control::{RunState, Status};
use crate::protocol::probe::Reading;
use crate::recipe::seed::{Purpose, derive_seed};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::LazyLock;

const SIZE: (u16, u16) = (200, 60);

/// Removes every measurement, or every one in `named`, that `gone` selects.
fn mask(value: &mut Value, named: &[&str], gone: &mut impl FnMut() -> bool) {
    if value.get("is").is_some_and(|_| gone()) {
        *value = json!({ "not": "not supported" });
    }
    let Value::Object(fields) = value else { return };
    for (name, field) in fields {
        if named.contains(&name.as_str()) && gone() {
            *field = Value::Null;
        }
        if name != "eval" {
            mask(field, named, gone);
        }
    }
}

fn masked<T: serde::Serialize + serde::de::DeserializeOwned>(
    whole: &T,
    named: &[&str],
    gone: &mut impl FnMut() -> bool,
) -> T {
    let mut value = serde_json::to_value(whole).unwrap();
    mask(&mut value, named, gone);
    serde_json::from_value(value).unwrap()
}

/// Returns a run on a GPU with some values unknown: none for seed 0, otherwise about half.
fn masked_run(seed: u64) -> State {
    let gone = |part: u64| {
        let mut asked = 0;
        move || {
            asked += 1;
            seed > 0 && derive_seed(seed, Purpose::Task, [part, asked, 0]).is_multiple_of(2)
        }
    };
    let mut history = fixture::history(700, true);
    // A metric that no evaluation reports has no chart, and the charts after it would move up into view.
    history.evals.iter_mut().for_each(|row| row.eval.metrics.clear());
    for row in &mut history.samples {
        // The same metrics in every reading: one that comes and goes is stale, not unknown.
        row.reading = masked::<Reading>(&row.reading, &[], &mut gone(1));
    }
    if gone(2)() {
        history.checkpoints.clear();
    }
    if gone(3)() {
        history = History { evals: Vec::new(), ..history };
    }
    let mut status = fixture::status(RunState::Training, 700);
    for record in &mut status.rungs {
        record.vram_bytes = record.ram_bytes;
    }
    let named = [
        "total_samples",
        "total_steps",
        "epoch_samples",
        "durable_step",
        "loss",
        "eval",
        "device",
        "parameters",
        "pid_keeper",
        "pid_worker",
        "pid_probe",
        "steps_per_s",
        "units_per_s",
        "vram_bytes",
        "ram_bytes",
    ];
    let status: Status = masked(&status, &named, &mut gone(4));
    fixture::at(SIZE, status, history)
}

/// Returns every number on the screen that has a unit, with its unit.
fn numbers_with_units(shown: &str) -> BTreeSet<String> {
    let units = ["°C", "°", "%", "W", "B", "KiB", "MiB", "GiB", "MHz", "s", "min", "steps/s", "samples/s", "left"];
    let mut found = BTreeSet::new();
    let words: Vec<&str> = shown.split([' ', '\n', '│', '(', ')', ',']).filter(|word| !word.is_empty()).collect();
    let is_number = |word: &str| word.parse::<f64>().is_ok();
    for (place, word) in words.iter().enumerate() {
        let next = words.get(place + 1).copied().unwrap_or_default();
        let joined = units.iter().any(|unit| word.strip_suffix(unit).is_some_and(is_number));
        if joined || is_number(word) && units.contains(&next) {
            found.insert(if joined { (*word).to_owned() } else { format!("{word} {next}") });
        }
    }
    found
}

fn draw_view(seed: u64, view: char) -> String {
    let mut state = masked_run(seed);
    press_keys(&mut state, &view.to_string());
    draw_text(&state)
}

/// The views of a run of which everything is known. Without a chart, others move up into a view.
static ALL_SHOWN: LazyLock<String> = LazyLock::new(|| ('1'..='5').map(|view| draw_view(0, view)).collect());

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 16 } else { 400 }))]

    #[test]
    fn unknown_values_show_no_number(seed in 1u64..) {
        let (whole, numbers): (_, BTreeSet<&str>) = (numbers_with_units(&ALL_SHOWN), ALL_SHOWN.split_whitespace().collect());
        for view in '1'..='5' {
            let shown = draw_view(seed, view);
            let known = numbers_with_units(&shown);
            // `312 of 450 W` may become `312 W`; a zero must be a known value.
            let elsewhere = |figure: &str| {
                let number = figure.split(' ').next().unwrap_or_default();
                number.parse::<f64>().is_ok_and(|number| number != 0.0) && numbers.contains(number)
            };
            let new: Vec<_> = known.difference(&whole).filter(|figure| !elsewhere(figure)).collect();
            prop_assert!(new.is_empty(), "{:?} are new in view {}:\n{}", new, view, shown);
        }
    }
}

#[test]
fn figures_are_found() {
    let found = numbers_with_units("heat  71 °C · 94% of 24.0 GiB (19° to slowdown) at step 700");
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["19°", "24.0 GiB", "71 °C", "94%"]);
}

#[test]
fn a_command_without_a_ladder_and_of_unknown_length_shows_its_step_alone() {
    let status = fixture::status(RunState::Training, 700);
    let (total_steps, total_samples, epoch_samples) = (None, None, None);
    let status = Status { rung: 0, rung_name: "full".to_owned(), total_steps, total_samples, epoch_samples, ..status };
    let mut state = fixture::at(SIZE, status, fixture::history(700, false));
    assert!(draw_text(&state).lines().next().unwrap().contains("rung 0 full"), "the ladder is counted");
    state.ladder.truncate(1);
    let shown = draw_text(&state);
    let header = shown.lines().next().unwrap();
    assert!(header.contains("full   ") && header.contains("step 700"), "{header}");
    assert!(!header.contains(" of ") && !header.contains("epoch"), "{header}");
    assert!(!shown.contains(" left"), "{shown}");
    let status = Status { ends_ms: Some(state.now_ms + 720_000), ..state.status().unwrap().clone() };
    state.facts.status = Some(status);
    assert!(draw_text(&state).contains("12 min left"), "the command tells when it ends");
}
