use super::{meters, skips};
use crate::cockpit::fixture::{self, NOW};
use crate::cockpit::state::State;
use crate::cockpit::update::{Msg, update};
use crate::cockpit::verdict::{Tone, verdict};
use crate::protocol::control::{ReadingRow, RunState, StepRow, Update};
use crate::protocol::probe::{Ecc, Metric};
use crate::protocol::skips::{SkipShare, UpdateCounts, UpdateStatus};

const SIZE: (u16, u16) = (200, 50);

fn meter_note(state: &State, label: &str) -> String {
    let meters = meters(state);
    meters.iter().find(|meter| meter.label == label).map(|meter| meter.note(200)).unwrap_or_default()
}

#[test]
fn a_window_says_how_many_steps_it_holds_and_of_how_many() {
    let mut state = fixture::training(SIZE);
    assert!(
        meter_note(&state, "skips").starts_with("┼ limit 5 % · 3 of 700 in all · "),
        "{}",
        meter_note(&state, "skips")
    );
    let rows = (701..=8_370).map(|step| fixture::step_row(2, step, NOW + step.cast_signed())).collect();
    update(&mut state, Msg::Keeper(Update::Steps { rows }));
    fixture::apply_status(&mut state, fixture::status(RunState::Training, 8_370));
    let told = meter_note(&state, "skips");
    assert!(told.starts_with("┼ limit 5 % · 3 of 8 370 in all · 0 % of the last 2 0"), "{told}");
}

#[test]
fn a_script_without_a_guard_skips_nothing() {
    let mut status = fixture::status(RunState::Training, 700);
    (status.skipped, status.unguarded) = (Some(0), 3);
    let mut state = fixture::training(SIZE);
    fixture::apply_status(&mut state, status.clone());
    assert!(meter_note(&state, "NaN").starts_with("┼ limit 5 % · 3 of 700 in all · "), "{}", meter_note(&state, "NaN"));
    assert_eq!(meter_note(&state, "skips"), "");
    status.state = RunState::Finished;
    fixture::apply_status(&mut state, status);
    let text = verdict(&state).text;
    assert!(text.contains("3 not finite") && !text.contains("skipped"), "{text}");
}

#[test]
fn skips_that_nobody_counts_are_unknown_and_never_none() {
    let rows = (1..=700).map(|step| StepRow { skipped: false, loss: Some(1.0), ..fixture::step_row(0, step, NOW) });
    let mut fresh = fixture::young(SIZE);
    update(&mut fresh, Msg::Keeper(Update::Steps { rows: rows.collect() }));
    let mut status = fixture::status(RunState::Training, 700);
    status.skipped = None;
    fixture::apply_status(&mut fresh, status.clone());
    let meter = skips(&fresh);
    assert_eq!((meter.value.as_deref(), meter.note(200).as_str()), (None, "unknown: nothing reports them"));
    let shown = verdict(&fresh);
    assert!(shown.more.contains(&"skips unknown".to_owned()), "{shown:?}");
    // A row for every tenth step, and a count of all updates.
    let attempt = UpdateCounts { due: 7_000, skipped: 700, rescaled: 0 };
    status.updates = Some(UpdateStatus { attempt, recent: SkipShare { skipped: 24, of: 200 } });
    (status.skipped, status.step) = (Some(700), 7_000);
    fixture::apply_status(&mut fresh, status.clone());
    let meter = skips(&fresh);
    assert_eq!((meter.value.as_deref(), meter.tone), (Some("12 % of the last 200"), Tone::Warn));
    assert!(meter.note(200).starts_with("┼ limit 5 % · 700 of 7 000 in all"), "{}", meter.note(200));
    assert!(verdict(&fresh).text.starts_with("skipping: 12 % of the last 200 steps"), "{:?}", verdict(&fresh));
    // The next attempt has no counts yet, and the rows hold none of those skips.
    status.updates = None;
    fixture::apply_status(&mut fresh, status);
    let meter = skips(&fresh);
    assert_eq!((meter.value.as_deref(), meter.note(200).as_str()), (None, "no steps of this attempt yet"));
}

#[test]
fn memory_errors_are_shown_with_their_growth_where_the_gpu_counts_them() {
    let count = |state: &mut State, second: i64, corrected, uncorrected| {
        let mut reading = fixture::reading(true, second);
        if let Ok(gpu) = &mut reading.gpu {
            gpu.more.ecc = Metric::Is(Ecc { corrected, uncorrected });
        }
        let row = ReadingRow { time_ms: NOW + second * 1000, reading };
        update(state, Msg::Keeper(Update::Reading(Box::new(row))));
    };
    let meter = |state: &State| meters(state).into_iter().find(|meter| meter.label == "ECC");
    let mut state = fixture::on_gpu(SIZE);
    assert_eq!(meter(&state), None, "a GPU without ECC");
    count(&mut state, 1, 5, 0);
    let first = meter(&state).unwrap();
    assert_eq!((first.value.as_deref(), first.tone), (Some("5 corrected, 0 not"), Tone::Plain));
    assert_eq!(first.notes, ["no new errors in 0 s"]);
    count(&mut state, 11, 9, 2);
    let grown = meter(&state).unwrap();
    assert_eq!((grown.value.as_deref(), grown.tone), (Some("9 corrected, 2 not"), Tone::Danger));
    assert_eq!(grown.notes, ["+4 and +2 in 10 s"]);
}
