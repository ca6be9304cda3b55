//! Counts as scripts print them.

use super::{LineClock, LineStep};
use crate::log_metrics::clock::{Counting, Epoch, Position};

/// An epoch and how many of them there are, a count, and its end.
type Printed = (Option<(u64, Option<u64>)>, u64, Option<u64>);

/// A step, `-1` for another loop, `-2` for an uncertain step, `-3` for a doubted one.
fn place(clock: &mut LineClock, (epoch, count, out_of): Printed, announced: Option<u64>) -> i64 {
    let epoch = epoch.map(|(value, count)| Epoch { value: value as f64, count, zero_based: false });
    let position = Position { count, out_of, epoch, ..Position::default() };
    match clock.place(&position, announced) {
        LineStep::At(placed) | LineStep::Confirmed(placed) => i64::try_from(placed.step).unwrap(),
        LineStep::Elsewhere => -1,
        LineStep::Uncertain => -2,
        LineStep::Doubtful(_) => -3,
    }
}

fn steps(printed: impl IntoIterator<Item = Printed>) -> Vec<i64> {
    let mut clock = LineClock::default();
    printed.into_iter().map(|printed| place(&mut clock, printed, None)).collect()
}

/// Lines without an epoch and without a total.
fn plain(counts: &[u64]) -> Vec<i64> {
    steps(counts.iter().map(|count| (None, *count, None)))
}

#[test]
fn an_epoch_and_its_size_make_the_step() {
    let of = |epoch| Some((epoch, Some(10)));
    let printed = [(of(1), 50, Some(100)), (of(1), 100, Some(100)), (of(2), 50, Some(100)), (of(3), 100, Some(100))];
    assert_eq!(steps(printed), [50, 100, 150, 300]);
    let of = |epoch| Some((epoch, None));
    let printed = [(of(0), 0, Some(100)), (of(0), 90, Some(100)), (of(1), 0, Some(100)), (of(2), 10, Some(100))];
    assert_eq!(steps(printed), [0, 90, 100, 210]);
    // One line in each epoch, and an epoch without any.
    assert_eq!(steps([1, 2, 3, 5].map(|epoch| (of(epoch), 100, Some(100)))), [100, 200, 300, 500]);
    // Epochs of different sizes.
    let printed = [(of(1), 7, Some(8)), (of(2), 3, Some(9)), (of(3), 2, Some(7)), (of(4), 2, Some(7))];
    assert_eq!(steps(printed), [7, 11, 19, 26]);
}

#[test]
fn an_epoch_without_its_size_is_certain_if_all_of_its_steps_were_printed() {
    let of = |epoch| Some((epoch, None));
    let all = |epoch, first: u64| (first..first + 3).map(move |count| (of(epoch), count, None));
    assert_eq!(steps(all(1, 1).chain(all(2, 1)).chain(all(3, 1))), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(steps(all(0, 0).chain(all(1, 0))), [0, 1, 2, 3, 4, 5]);
    // CIFAR of PyTorch's tutorial: between 2000 and 3999 steps in an epoch of which step 2000 was printed.
    let printed = [(of(1), 1000, None), (of(1), 2000, None), (of(2), 1000, None), (of(2), 2000, None)];
    assert_eq!(steps(printed), [1000, 2000, -2, -2]);
    assert_eq!(steps([(of(1), 10, None), (of(2), 10, None)]), [10, -2]);
}

#[test]
fn a_count_that_goes_on_is_the_step() {
    let of = |epoch| Some((epoch, Some(3)));
    let printed = [(of(1), 8, Some(24)), (of(2), 9, Some(24)), (of(2), 16, Some(24)), (of(3), 20, Some(24))];
    assert_eq!(steps(printed), [8, 9, 16, 20]);
    assert_eq!(plain(&[10, 20, 30, 30, 45]), [10, 20, 30, 30, 45]);
    // Megatron's total, and one that grows.
    assert_eq!(steps([(None, 10, Some(50)), (None, 20, Some(50)), (None, 60, Some(90))]), [10, 20, 60]);
}

#[test]
fn a_pass_that_came_to_its_end_is_added_up_without_an_epoch() {
    let pass = |counts: &[u64]| counts.iter().map(|count| (None, *count, Some(100))).collect::<Vec<_>>();
    let twice = |counts: &[u64]| steps([pass(counts), pass(counts)].concat());
    assert_eq!(twice(&[50, 100]), [50, 100, 150, 200]);
    assert_eq!(twice(&[30, 60, 90]), [30, 60, 90, 130, 160, 190]);
    assert_eq!(twice(&[0, 25, 50, 75]), [0, 25, 50, 75, 100, 125, 150, 175]);
    // Left early, or begun again from its beginning; then none is certain.
    assert_eq!(twice(&[25, 50]), [25, 50, -2, -2]);
    // A validation with another number of steps changes nothing, and neither does one that goes back a little.
    let validation = [(None, 5, Some(20)), (None, 20, Some(20))];
    let interleaved = [&pass(&[50, 100])[..], &validation[..], &pass(&[50, 100])[..]].concat();
    assert_eq!(steps(interleaved), [50, 100, -1, -1, 150, 200]);
    assert_eq!(steps([pass(&[10, 20, 30, 40]), pass(&[30, 40, 50])].concat()), [10, 20, 30, 40, -1, 40, 50]);
}

#[test]
fn without_epoch_and_total_two_equal_passes_are_needed() {
    assert_eq!(plain(&[1, 2, 3, 1, 2, 3, 1, 2, 3, 1]), [1, 2, 3, -2, -2, -2, 7, 8, 9, 10]);
    assert_eq!(plain(&[0, 1, 2, 0, 1, 2, 0, 1]), [0, 1, 2, -2, -2, -2, 6, 7]);
    // Not every step is printed, or the passes differ.
    assert_eq!(plain(&[10, 20, 10, 20, 10, 20]), [10, 20, -2, -2, -2, -2]);
    assert_eq!(plain(&[1, 2, 3, 1, 2, 1]), [1, 2, 3, -2, -2, -2]);
    // Another loop counts in between: the count goes on where it was.
    assert_eq!(plain(&[10, 20, 5, 10, 30, 40, 5, 10, 50]), [10, 20, -2, -2, 30, 40, -2, -2, 50]);
}

#[test]
fn lines_of_the_same_epoch_that_go_back_belong_elsewhere() {
    let of = |epoch| Some((epoch, None));
    let printed = [
        (of(1), 90, Some(100)),
        (of(1), 5, Some(100)),
        (of(1), 5, Some(20)),
        (of(1), 95, Some(100)),
        (of(2), 5, Some(100)),
    ];
    assert_eq!(steps(printed), [90, -1, -1, 95, 105]);
    // A whole count, and a line of an earlier epoch.
    assert_eq!(steps([(of(1), 8, None), (of(2), 9, None), (of(2), 3, None), (of(2), 10, None)]), [8, 9, -1, 10]);
}

#[test]
fn an_epoch_announced_on_a_line_of_its_own_counts_when_the_count_starts_over() {
    let mut clock = LineClock::default();
    let found = [(1, 50), (1, 100), (2, 50), (2, 100), (3, 50)]
        .map(|(epoch, count)| place(&mut clock, (None, count, Some(100)), Some(epoch)));
    assert_eq!(found, [50, 100, 150, 200, 250]);
    let mut clock = LineClock::default();
    let found = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
        .map(|(epoch, count)| place(&mut clock, (None, count, None), Some(epoch)));
    assert_eq!(found, [0, 1, 2, 3, 4]);
    // A resumed training whose count goes on.
    let mut clock = LineClock::default();
    let found =
        [(4, 310), (4, 320), (5, 420)].map(|(epoch, count)| place(&mut clock, (None, count, None), Some(epoch)));
    assert_eq!(found, [310, 320, 420]);
}

#[test]
fn a_resumed_training_adds_no_unknown_passes_up() {
    let resumed = |from: u64, printed: &[Printed]| {
        let mut clock = LineClock::default();
        clock.resume(from);
        printed.iter().map(|printed| place(&mut clock, *printed, None)).collect::<Vec<_>>()
    };
    assert_eq!(resumed(40, &[(None, 50, Some(100)), (None, 100, Some(100)), (None, 50, Some(100))]), [50, 100, -2]);
    assert_eq!(resumed(300, &[(None, 310, None), (None, 320, None)]), [310, 320]);
    // A count that ends before the checkpoint is that of an epoch; one without an end may take steps again.
    assert_eq!(resumed(140, &[(None, 50, Some(100)), (None, 60, Some(100))]), [-2, -2]);
    assert_eq!(resumed(140, &[(None, 101, None), (None, 102, None)]), [101, 102]);
    let of = |epoch| Some((epoch, None));
    let goes_on = [(of(3), 255, None), (of(3), 260, None), (of(4), 265, None), (of(4), 270, None)];
    assert_eq!(resumed(250, &goes_on), [-2, -2, 265, 270], "a count of micro-batches in the epoch may be as large");
    let mut clock = LineClock::default();
    clock.resume(250);
    assert_eq!(place(&mut clock, goes_on[0], None), -2);
    clock.confirm_count();
    assert_eq!(
        goes_on[1..].iter().map(|printed| place(&mut clock, *printed, None)).collect::<Vec<_>>(),
        [260, 265, 270]
    );
    // Epoch 1 is the second one, or the first.
    let second = Some((1, None));
    assert_eq!(resumed(60, &[(second, 20, Some(40)), (second, 40, Some(40))]), [-2, -2]);
    assert_eq!(resumed(60, &[(second, 70, Some(100)), (second, 80, Some(100))]), [70, 80]);
    // Whether epochs count from 0 or 1 is unknown.
    let of = |epoch| Some((epoch, None));
    assert_eq!(resumed(320, &[(of(4), 50, Some(100)), (of(5), 50, Some(100))]), [-2, -2]);
    let of = |epoch| Some((epoch, Some(9)));
    assert_eq!(resumed(320, &[(of(4), 50, Some(100)), (of(5), 50, Some(100)), (of(6), 10, Some(100))]), [-2, 450, 510]);
}

#[test]
fn a_resumed_training_counts_as_it_did_before() {
    let of = |epoch| Some((epoch, None));
    let news = |printed: &[Printed]| {
        let mut clock = LineClock::default();
        for printed in printed {
            place(&mut clock, *printed, None);
        }
        let news = clock.counting_news();
        assert_eq!(clock.counting_news(), None, "it is news once");
        news
    };
    let whole = [(of(1), 10, None), (of(1), 20, None), (of(2), 30, None)];
    assert_eq!((news(&whole[..2]), news(&whole)), (None, Some(Counting::Whole)), "an epoch has to end");
    let within = [(of(0), 50, Some(100)), (of(0), 100, Some(100)), (of(1), 50, Some(100))];
    let of_size = |size| Counting::Within { first_epoch: 0, size };
    let hundred = of_size(Some(100));
    assert_eq!(news(&within), Some(hundred));
    let uneven = [&within[..], &[(of(2), 50, Some(90)), (of(3), 50, Some(100))]].concat();
    assert_eq!((news(&uneven[..4]), news(&uneven)), (Some(of_size(None)), Some(of_size(None))));
    let resumed = |learnt: Counting, from: u64, printed: &[Printed]| {
        let mut clock = LineClock::default();
        clock.resume(from);
        clock.recall(learnt);
        let found = printed.iter().map(|printed| place(&mut clock, *printed, None)).collect::<Vec<_>>();
        assert_eq!(clock.counting_news().filter(|news| *news == learnt), None, "known already");
        found
    };
    assert_eq!(resumed(Counting::Whole, 210, &[(of(11), 211, None), (of(11), 212, None)]), [211, 212]);
    assert_eq!(resumed(Counting::Whole, 210, &[(of(11), 11, None)]), [-2], "it began again nevertheless");
    assert_eq!(resumed(hundred, 320, &[(of(3), 21, Some(100)), (of(4), 5, Some(100))]), [321, 405]);
    assert_eq!(resumed(hundred, 320, &[(of(3), 21, Some(50))]), [-2], "another batch size");
    assert_eq!(resumed(of_size(None), 320, &[(of(3), 21, Some(100))]), [-2], "the epochs before are not known");
    assert_eq!(resumed(hundred, 320, &[(of(0), 5, Some(100))]), [5], "from its beginning");
}

#[test]
fn totals_are_those_of_the_training() {
    let mut clock = LineClock::default();
    let mut total = |epoch: u64, count| {
        let epoch = Epoch { value: epoch as f64, count: Some(3), zero_based: false };
        let position = Position { count, out_of: Some(100), epoch: Some(epoch), ..Position::default() };
        let LineStep::At(placed) = clock.place(&position, None) else { panic!("certain") };
        placed.total_steps
    };
    assert_eq!([total(1, 50), total(2, 50)], [None, Some(300)]);
}

#[test]
fn evaluations_belong_to_the_steps_around_them() {
    let position = |count, out_of| Position { count, out_of, ..Position::default() };
    let mut clock = LineClock::default();
    let step =
        |clock: &mut LineClock, count, out_of| clock.place_evaluation(&position(count, out_of)).map(|at| at.step);
    assert_eq!(step(&mut clock, 0, None), Some(0));
    place(&mut clock, (None, 100, Some(100)), None);
    place(&mut clock, (None, 10, Some(100)), None);
    assert_eq!((step(&mut clock, 10, None), step(&mut clock, 10, Some(100))), (Some(110), Some(110)));
    assert_eq!((step(&mut clock, 5, Some(20)), step(&mut clock, 50, None)), (None, None));
    let mut clock = LineClock::default();
    place(&mut clock, (None, 90, Some(200)), None);
    assert_eq!((step(&mut clock, 100, None), step(&mut clock, 5, None)), (Some(100), None));
}

#[test]
fn a_step_far_from_the_others_counts_only_if_the_next_lines_go_on_from_it() {
    let wild = 123_456_789;
    assert_eq!(plain(&[100, 101, wild, 102, wild + 1, 103, 104]), [100, 101, -3, 102, -3, 103, 104]);
    assert_eq!(plain(&[10, 20, wild, 9 * wild, 20, 30, 40]), [10, 20, -3, -3, 20, 30, 40]);
    // The training went on elsewhere: a resume, another logging interval, a clock that counts samples.
    assert_eq!(plain(&[1, 2, 500_000, 500_010, 500_020]), [1, 2, -3, -3, 500_020]);
    assert_eq!(plain(&[0, 5000, 10_000, 15_000]), [0, -3, 10_000, 15_000]);
    assert_eq!(plain(&[0, 1, 2, 3, 1000, 2000, 3000]), [0, 1, 2, 3, 1000, 2000, 3000]);
    assert_eq!(plain(&[65_536, 131_072, 196_608, 262_144]), [65_536, 131_072, 196_608, 262_144]);
    assert_eq!(plain(&[500_000, 500_010, 500_020]), [500_000, 500_010, 500_020]);
    // Every third line comes from another counter, which goes on, too.
    let mixed = (1..20).flat_map(|step| [step, step, 1_000_000 + 512 * step]).collect::<Vec<_>>();
    let found = plain(&mixed);
    for (place, chunk) in found.chunks(3).enumerate().skip(1) {
        assert_eq!(chunk, [place as i64 + 1, place as i64 + 1, -3], "{found:?}");
    }
    // With an epoch, or a total.
    let of = |epoch, count| (Some((epoch, Some(3))), count, Some(100));
    let printed = [of(1, 50), of(1, 100), of(2, 50), of(2, wild), of(2, 100), of(3, 50)];
    assert_eq!(steps(printed), [50, 100, 150, -3, 200, 250]);
    let of = |count| (None, count, Some(1000));
    assert_eq!(steps([10, 20, wild, 30, 40].map(of)), [10, 20, -3, 30, 40]);
}

#[test]
fn one_step_a_little_off_does_not_end_the_count() {
    assert_eq!(plain(&[100, 101, 150, 102, 103]), [100, 101, 150, 102, 103]);
    assert_eq!(plain(&[100, 102, 3, 103, 105, 106]), [100, 102, -2, 103, 105, 106]);
    // Believed at once, and then far ahead.
    assert_eq!(plain(&[1, 100, 200_000_000, 200, 300]), [1, 100, -3, 200, 300]);
    // A pass of an irregular count is longer than the one before it.
    assert_eq!(plain(&[3, 10, 55, 90, 5, 12, 60, 100]), [3, 10, 55, 90, -2, -2, -2, -2]);
}

#[test]
fn an_evaluation_far_from_the_training_has_a_count_of_its_own_unless_more_follow_there() {
    let mut clock = LineClock::default();
    for count in 1..5 {
        place(&mut clock, (None, count, None), None);
    }
    let mut step = |count| clock.place_evaluation(&Position { count, ..Position::default() }).map(|at| at.step);
    assert_eq!([step(5), step(900_000), step(910_000)], [Some(5), None, Some(910_000)]);
    assert_eq!(place(&mut clock, (None, 5, None), None), 5);
    assert_eq!(clock.place_evaluation(&Position { count: 900_000, ..Position::default() }), None);
}

#[test]
fn enormous_counts_do_not_overflow() {
    let most = u64::MAX;
    let mut clock = LineClock::default();
    for (epoch, count, out_of) in
        [(1.0, most, Some(most)), (2.0, 1, Some(most)), (9.0, most, Some(most)), (3.0, 0, None)]
    {
        let epoch = Epoch { value: epoch, count: Some(most), zero_based: false };
        clock.place(&Position { count, out_of, epoch: Some(epoch), ..Position::default() }, Some(most));
    }
    let mut clock = LineClock::default();
    for count in [most - 1, most, 0, 1, 0, 1, 0] {
        clock.place(&Position { count, ..Position::default() }, None);
    }
}

#[test]
fn a_resume_at_the_end_of_an_epoch_shows_the_epochs_before() {
    let resumed = |from: u64| {
        let mut clock = LineClock::default();
        clock.resume(from);
        [(20, 2), (40, 2), (20, 3)].map(|(count, epoch)| place(&mut clock, (None, count, Some(100)), Some(epoch)))
    };
    assert_eq!(resumed(100), [120, 140, 220], "the first epoch was 1");
    assert_eq!(resumed(200), [220, 240, 320], "it was 0");
    assert_eq!(resumed(150), [-2, -2, -2], "within an epoch");
    assert_eq!(resumed(500), [-2, -2, -2], "of another length");
}
