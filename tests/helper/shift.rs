//! One key on a terminal steps a run down.

use crate::helper::terminal::Terminal;
use crate::helper::{Place, journal, wait_for, wait_status};
use downshift::store::run_dir::RunDir;

/// Returns the step in the first line.
pub fn shown_step(screen: &str) -> Option<u64> {
    let text = screen.lines().next()?.split_once("step ")?.1;
    text.split("  ").next()?.replace(' ', "").parse().ok()
}

/// The main task: the loss falls; `d`, Enter; the run continues from the same step on the next rung.
pub fn shift_down(place: &Place, terminal: &Terminal, run: &RunDir) {
    terminal.wait("falling loss", |screen| screen.contains("loss falling") && shown_step(screen) >= Some(40));
    terminal.press(&["d"]);
    terminal.wait_words(&["shift down: full → accumulate", "training.micro_batch", "A  same training", "Enter shift"]);
    let before = wait_status(run, "a status", |status| status.rung == 0 && status.attempts == 1);
    terminal.confirm("Enter shift");
    terminal.wait_words(&["shifted: full → accumulate", "save at the next step", "first step", "total"]);
    terminal.wait_words(&["rung 1 accumulate", "● full → accumulate in "]);
    let told = wait_for("the journal", || {
        journal(run).into_iter().map(|row| row.text).find(|text| text.starts_with("shifted full → accumulate in "))
    });
    for part in ["save", "stop", "start and load", "first step"] {
        assert!(told.contains(part), "how long each part took: {told}");
    }
    let steps = told.split_once("step ").and_then(|(_, rest)| rest.split_once(", loss")).unwrap().0.replace(' ', "");
    let (last, next) = steps.split_once('→').unwrap();
    let (last, next): (u64, u64) = (last.parse().unwrap(), next.parse().unwrap());
    assert!(last >= before.step && next == last + 1, "{told}");
    let after = wait_status(run, "more steps", |status| status.step > next + 20);
    assert_eq!((after.rung, after.attempts, after.shifts, after.restarts), (1, 2, 1, 0));
    let rows = place.rows();
    let attempts: Vec<(u64, u64)> =
        rows.iter().map(|row| (row["step"].as_u64().unwrap(), row["attempt"].as_u64().unwrap())).collect();
    let expected: Vec<(u64, u64)> = (1..).zip(attempts.iter().map(|(step, _)| 1 + u64::from(*step > last))).collect();
    assert_eq!(attempts, expected, "every step once, in order, the shift at its place");
    let samples = |step: u64| rows[step as usize - 1]["samples"].as_u64().unwrap();
    // The last step of an epoch takes the remaining samples.
    let (batch, epoch) = (samples(1), after.epoch_samples.unwrap());
    let expected = |step: u64| step / epoch.div_ceil(batch) * epoch + step % epoch.div_ceil(batch) * batch;
    assert!((1..=next + 20).all(|step| samples(step) == expected(step)), "samples go on");
}
