use super::{Named, Trail};
use std::time::Duration;

fn trail(readings: &[(u64, u64)]) -> Trail {
    let mut trail = Trail::default();
    for (ms, step) in readings {
        trail.record(*step, Duration::from_millis(*ms));
    }
    trail
}

#[test]
fn a_checkpoint_has_the_step_at_which_it_was_written_and_not_that_at_which_it_was_found() {
    for (readings, written_ms, step) in [
        // A bar counts a step once the next one begins; then the script evaluates.
        (&[(0, 48), (60, 49), (9000, 50), (9060, 51)][..], 130, 50),
        // A line for each step, and the save behind it.
        (&[(0, 49), (60, 50), (120, 51), (180, 52)], 65, 50),
        // A bar that is drawn ten times a second.
        (&[(0, 48), (100, 51), (200, 54)], 70, 50),
        // A line for each hundredth step.
        (&[(0, 100), (5000, 200)], 2500, 150),
        (&[(0, 100), (5000, 200), (10_000, 300)], 5010, 200),
        // The last save, and one at the end of an epoch.
        (&[(0, 1095), (60, 1096)], 70, 1096),
        (&[(0, 136), (60, 137), (120, 138)], 62, 137),
    ] {
        let found = trail(readings).find_step(Duration::from_millis(written_ms));
        assert_eq!(found, Some(step), "{readings:?} at {written_ms} ms");
    }
    assert_eq!(trail(&[(100, 1)]).find_step(Duration::from_millis(50)), None, "before the first step");
    assert_eq!(Trail::default().find_step(Duration::ZERO), None);
}

#[test]
fn a_number_counts_epochs_if_it_is_far_below_the_steps_around_it() {
    let every = |gap: u64| -> Vec<(u64, u64)> { (1..=60).map(|step| (step * 100, step * gap)).collect() };
    for (readings, number, written_ms, counts_epochs) in [
        (&every(1)[..], 1, 5050, true),
        (&every(3), 3, 5050, true),
        (&every(1), 12, 6100, true),
        (&every(1), 50, 5050, false),
        (&every(1), 60, 6100, false),
        // Lines are printed for the first step and then for every hundredth, or every fifth.
        (&[(0, 1)], 40, 4000, false),
        (&[(0, 1), (9900, 100)], 40, 4000, false),
        (&[(0, 1), (9900, 100)], 140, 14_000, false),
        (&every(1000), 1900, 195, false),
        (&every(5), 2, 150, false),
        // A count that begins again in each epoch, of which the trail has the first.
        (&every(1), 120, 12_000, false),
        (&[], 7, 100, false),
    ] {
        let found = trail(readings).is_beyond(number, Duration::from_millis(written_ms));
        assert_eq!(found, counts_epochs, "{number} at {written_ms} ms in {readings:?}");
    }
}

#[test]
fn only_the_newest_steps_are_remembered() {
    let mut trail = Trail::default();
    for step in 1..=20_000 {
        trail.record(step, Duration::from_millis(step));
    }
    assert_eq!(trail.find_step(Duration::from_millis(100)), None);
    assert_eq!(trail.find_step(Duration::from_millis(19_001)), Some(19_000));
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns the trail of a script that takes a step every `every` ms and evaluates after each `of` steps, which takes 40 ms;
/// and when each evaluation was printed.
fn evaluating(every: u64, of: u64) -> (Trail, Vec<(u64, u64)>) {
    let (mut trail, mut now, mut printed) = (Trail::default(), 0, Vec::new());
    for step in 1..=6 * of {
        now += every;
        trail.record(step, ms(now));
        if step % of == 0 {
            now += 40;
            trail.record_evaluation(step, Some(step / of), false, ms(now));
            printed.push((step, now));
            now += 5;
        }
    }
    (trail, printed)
}

#[test]
fn a_checkpoint_belongs_to_the_evaluation_that_no_step_separates_from_it_at_any_pace() {
    for (every, of) in [(333, 10), (20, 50), (1, 200)] {
        // Written just after the evaluation was printed, or just before it; the clock of files lags.
        for late in [-38_i64, -4, 2] {
            let (mut trail, printed) = evaluating(every, of);
            for (step, at) in printed {
                let written = ms(at.saturating_add_signed(late));
                assert_eq!(trail.add_checkpoint(Named::Nothing, written), Some(step), "{every} ms, {late}");
                assert_eq!(trail.adopt_checkpoint(step), Some(step), "{every} ms, {late}");
            }
        }
        // Halfway between two evaluations.
        let (mut trail, printed) = evaluating(every, of);
        let halfway = ms(u64::midpoint(printed[1].1, printed[2].1));
        let step = trail.add_checkpoint(Named::Nothing, halfway).unwrap();
        assert!((printed[1].0 + 5..printed[2].0 - 5).contains(&step) || every == 333, "{every} ms: {step}");
        assert_eq!(trail.adopt_checkpoint(step), None, "{every} ms");
    }
}

#[test]
fn a_checkpoint_that_is_saved_before_a_long_evaluation_is_matched_once_that_is_printed() {
    let mut trail = trail(&[(20, 98), (40, 99), (60, 100)]);
    let step = trail.add_checkpoint(Named::Nothing, ms(58)).unwrap();
    assert_eq!((trail.adopt_checkpoint(step), trail.match_checkpoints()), (None, vec![]));
    trail.record_evaluation(100, None, false, ms(9000));
    assert_eq!(trail.match_checkpoints(), [(step, 100)]);
    assert_eq!(trail.match_checkpoints(), [], "it is told once");
    trail.record(101, ms(9020));
    trail.record_evaluation(101, None, false, ms(9030));
    assert_eq!(trail.match_checkpoints(), []);
}

#[test]
fn an_epoch_in_a_name_decides_between_evaluations_that_nothing_separates() {
    // One line for each epoch, and no steps: saved before or after it.
    let mut trail = Trail::default();
    trail.record_evaluation(1, Some(1), false, ms(1000));
    assert_eq!(trail.add_checkpoint(Named::Epoch(2), ms(1900)), Some(1), "so far");
    trail.adopt_checkpoint(1);
    trail.record_evaluation(2, Some(2), false, ms(2000));
    assert_eq!(trail.match_checkpoints(), [(1, 2)]);
    assert_eq!(trail.add_checkpoint(Named::Epoch(2), ms(2100)), Some(2));
    // Written on a thread, while the next steps are taken.
    (3..=90).for_each(|step| trail.record(step, ms(2100 + step * 10)));
    assert_eq!(trail.add_checkpoint(Named::Epoch(2), ms(2800)), Some(2));
}

#[test]
fn a_step_in_a_name_is_that_of_the_output_or_one_beside_it() {
    let mut counts_from_0 = trail(&[(300, 98), (600, 99)]);
    counts_from_0.record_evaluation(99, None, false, ms(650));
    counts_from_0.record(100, ms(900));
    counts_from_0.record(101, ms(1200));
    assert_eq!(counts_from_0.add_checkpoint(Named::Step(100), ms(660)), Some(100));
    assert_eq!(counts_from_0.adopt_checkpoint(100), Some(99));
    // At a high pace only the same number is certain.
    let mut fast = trail(&[(1, 98), (2, 99), (3, 100), (4, 101), (90, 170)]);
    fast.record_evaluation(100, None, false, ms(3));
    fast.add_checkpoint(Named::Step(99), ms(2));
    fast.add_checkpoint(Named::Step(100), ms(3));
    assert_eq!((fast.adopt_checkpoint(99), fast.adopt_checkpoint(100)), (None, Some(100)));
}

#[test]
fn a_file_that_is_written_well_after_the_first_one_of_an_evaluation_holds_later_weights() {
    // Only each hundredth step is printed, at 100 steps a second.
    let mut trail = trail(&[(1000, 100), (2000, 200), (3000, 300), (4000, 400)]);
    trail.record_evaluation(400, None, false, ms(4010));
    assert_eq!(trail.add_checkpoint(Named::Nothing, ms(4012)), Some(400));
    trail.add_checkpoint(Named::Nothing, ms(4500)).unwrap();
    assert_eq!(trail.checkpoints[1].evaluation, None);
}
