use super::axis::Axis;
use super::{Column, Extent, Metric, MetricNames, Series};
use crate::protocol::control::StepRow;
use crate::store::summary::{Point, leaves};
use proptest::prelude::*;

fn row(attempt: u64, step: u64, loss: Option<f64>) -> StepRow {
    StepRow {
        attempt,
        rung: usize::try_from(attempt).unwrap() % 3,
        step,
        samples: step.saturating_mul(32),
        epoch: 0,
        loss,
        lr: Some(1e-3),
        grad_norm: loss.map(|_| 1.0),
        skipped: loss.is_none(),
        data_wait_ms: 1.0,
        compute_ms: 9.0,
        time_ms: 0,
        ..StepRow::default()
    }
}

fn series(losses: &[Option<f64>]) -> Series {
    let mut series = Series::default();
    for (step, loss) in (1..).zip(losses) {
        assert!(series.push(&row(1, step, *loss)));
    }
    series
}

fn all_columns(series: &Series, width: usize) -> Vec<Column> {
    let (first, last) = series.ends().unwrap();
    series.columns(Metric::Loss, first as f64..last as f64, width)
}

proptest! {
    #[test]
    fn thinning_keeps_the_smallest_the_largest_the_mean_and_every_skip(
        losses in proptest::collection::vec(proptest::option::weighted(0.9, -1e3f64..1e3), 1..3000),
        width in 1usize..200,
    ) {
        let series = series(&losses);
        let columns = all_columns(&series, width);
        let known: Vec<f32> = losses.iter().flatten().map(|loss| *loss as f32).collect();
        let extents: Vec<_> = columns.iter().filter_map(|column| column.extent).collect();
        let smallest = extents.iter().map(|extent| extent.min).fold(f32::INFINITY, f32::min);
        let largest = extents.iter().map(|extent| extent.max).fold(f32::NEG_INFINITY, f32::max);
        prop_assert_eq!(smallest.to_bits(), known.iter().copied().fold(f32::INFINITY, f32::min).to_bits());
        prop_assert_eq!(largest.to_bits(), known.iter().copied().fold(f32::NEG_INFINITY, f32::max).to_bits());
        let skipped: u32 = columns.iter().map(|column| column.skipped).sum();
        prop_assert_eq!(skipped as usize, losses.len() - known.len());
        let counted: u32 = extents.iter().map(|extent| extent.count).sum();
        prop_assert_eq!(counted as usize, known.len());
        let sum: f64 = extents.iter().map(|extent| f64::from(extent.mean) * f64::from(extent.count)).sum();
        let expected: f64 = known.iter().map(|loss| f64::from(*loss)).sum();
        prop_assert!((sum - expected).abs() <= 1e-3 * (1.0 + known.len() as f64 * 10.0));
        prop_assert!(extents.iter().all(|extent| extent.min <= extent.mean + 1e-3 && extent.mean <= extent.max + 1e-3));
    }

    #[test]
    fn a_redone_stretch_leaves_the_curve_of_the_highest_attempt(
        lengths in proptest::collection::vec((1u64..200, 0u64..150), 1..6),
        width in 1usize..60,
    ) {
        let (mut redone, mut model, mut last) = (Series::default(), Vec::new(), 0u64);
        for (attempt, (length, back)) in (1u64..).zip(lengths) {
            let start = last.saturating_sub(back) + 1;
            model.truncate(usize::try_from(start - 1).unwrap());
            for step in start..start + length {
                let loss = Some((attempt * 1000 + step) as f64);
                redone.push(&row(attempt, step, loss));
                model.push((attempt, loss));
            }
            last = start + length - 1;
        }
        let mut fresh = Series::default();
        for (step, (attempt, loss)) in (1..).zip(&model) { fresh.push(&row(*attempt, step, *loss)); }
        prop_assert_eq!(all_columns(&redone, width), all_columns(&fresh, width));
        prop_assert_eq!(redone.segments(), fresh.segments());
    }

    #[test]
    fn no_window_panics(
        losses in proptest::collection::vec(proptest::option::of(any::<f64>()), 0..100),
        start: f64, end: f64, width in 0usize..50,
    ) {
        let series = series(&losses);
        let columns = series.columns(Metric::Loss, start..end, width);
        prop_assert_eq!(columns.len(), width);
        prop_assert!(columns.iter().filter_map(|column| column.extent).all(|extent| extent.mean.is_finite()));
    }
}

/// Builds a series as the store would: leaves, then the newest rows.
fn stored(rows: &[StepRow], newest: usize) -> Series {
    let (old, new) = rows.split_at(rows.len().saturating_sub(newest));
    let mut names = MetricNames::default();
    let points: Vec<Point> = old.iter().map(|row| Point::of(row, &mut names)).collect();
    let mut series = Series::with_names(names);
    for leaf in leaves(&points) {
        series.extend(1, 1, leaf);
    }
    for row in new {
        assert!(series.push(row));
    }
    series
}

/// Computes extremes and skips of a window by brute force.
fn naive(rows: &[StepRow], start: f64, end: f64) -> (Option<f32>, Option<f32>, u32) {
    let within = || rows.iter().filter(|row| (start..=end).contains(&(row.step as f64)));
    let losses = || within().filter_map(|row| row.loss.map(|loss| loss as f32));
    (losses().reduce(f32::min), losses().reduce(f32::max), within().filter(|row| row.skipped).count() as u32)
}

fn totals(columns: &[Column]) -> (Option<f32>, Option<f32>, u32) {
    let extents = || columns.iter().filter_map(|column| column.extent);
    let least = extents().map(|extent: Extent| extent.min).reduce(f32::min);
    let most = extents().map(|extent| extent.max).reduce(f32::max);
    (least, most, columns.iter().map(|column| column.skipped).sum())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn a_spike_and_every_skip_are_seen_at_any_zoom_before_and_after_the_rows_are_there(
        length in 200u64..20_000, newest in 0usize..5000, spikes in proptest::collection::vec(0f64..1.0, 1..5),
        skips in proptest::collection::vec(0f64..1.0, 0..40), from in 0f64..1.0, to in 0f64..1.0, width in 8usize..400,
    ) {
        let at = |share: f64| (share * length as f64) as u64 + 1;
        let mut rows: Vec<_> = (1..=length).map(|step| row(1, step, Some(1.0 + 1.0 / step as f64))).collect();
        for (height, spike) in (2u8..).zip(&spikes) {
            rows[(at(*spike) - 1).min(length - 1) as usize].loss = Some(f64::from(height) * 10.0);
        }
        for skip in &skips {
            let place = (at(*skip) - 1).min(length - 1) as usize;
            rows[place] = row(1, place as u64 + 1, None);
        }
        let mut series = stored(&rows, newest);
        prop_assert_eq!(series.len() as u64, length);
        let (start, end) = (from.min(to) * length as f64, from.max(to) * length as f64);
        let exact = naive(&rows, start, end);
        let coarse = totals(&series.columns(Metric::Loss, start..end, width));
        prop_assert!(coarse.2 >= exact.2, "{} of {} skips", coarse.2, exact.2);
        prop_assert!(exact.1.is_none() || coarse.1 >= exact.1);
        prop_assert!(exact.0.is_none() || coarse.0 <= exact.0);
        if let Some(wanted) = series.missing(Axis::Steps, &(start..end), width) {
            let read: Vec<_> = rows.iter().filter(|row| wanted.contains(&row.step)).cloned().collect();
            series.fill(&read);
            prop_assert!(series.missing(Axis::Steps, &(start..end), width).is_none_or(|again| again != wanted));
            if let Some(rest) = series.missing(Axis::Steps, &(start..end), width) {
                let read: Vec<_> = rows.iter().filter(|row| rest.contains(&row.step)).cloned().collect();
                series.fill(&read);
            }
            prop_assert_eq!(series.missing(Axis::Steps, &(start..end), width), None);
            prop_assert_eq!(totals(&series.columns(Metric::Loss, start..end, width)), exact);
        }
        // The whole run is exact from the first frame.
        prop_assert_eq!(totals(&all_columns(&series, width)), naive(&rows, 0.0, f64::MAX));
        let streaks = rows.chunk_by(|a, b| a.skipped == b.skipped).filter(|run| run[0].skipped).map(<[_]>::len);
        prop_assert_eq!(series.aggregate().unwrap().longest as usize, streaks.max().unwrap_or(0));
    }

    #[test]
    fn other_axes_show_the_same_steps(length in 2u64..9000, newest in 0usize..600, at in 0f64..1.0, width in 2usize..300) {
        let mut rows: Vec<_> = (1..=length).map(|step| row(1, step, (step % 7 > 0).then_some(step as f64))).collect();
        for row in &mut rows {
            row.time_ms = (row.step * 40) as i64 + 1_000_000;
        }
        let series = stored(&rows, newest);
        let (first, last) = series.spots().unwrap();
        for axis in [Axis::Steps, Axis::Samples, Axis::Time] {
            let columns = series.columns_on(Metric::Loss, axis, axis.place(first)..axis.place(last), width);
            prop_assert_eq!(&columns, &all_columns(&series, width));
            let step = 1 + (at * (length - 1) as f64) as u64;
            let spot = Point::of(&rows[step as usize - 1], &mut MetricNames::default()).spot;
            let found = series.at(axis, axis.place(spot)).unwrap();
            let near = if found.steps() == 1 { 0 } else { 64 };
            prop_assert!(found.spot().step.abs_diff(step) <= near);
            let before = series.before_on(Metric::Loss, axis, axis.place(spot), 256);
            prop_assert!(before.iter().all(|(value, _)| f64::from(*value) < step as f64 + 64.0));
            prop_assert!(before.is_sorted_by(|a, b| a.0 <= b.0));
        }
    }
}

#[test]
fn a_redone_step_before_all_held_rows_marks_the_curve_as_torn() {
    let rows: Vec<_> = (1..=1000).map(|step| row(1, step, Some(1.0))).collect();
    let mut whole = stored(&rows, 500);
    assert!(whole.push(&row(2, 700, Some(1.0))) && !whole.is_torn());
    let mut series = stored(&rows, 500);
    assert!(series.push(&row(2, 100, Some(1.0))));
    assert!(series.is_torn());
}

#[test]
fn the_best_value_has_its_step() {
    let mut rows: Vec<_> = (1..=1000).map(|step| row(1, step, Some(2.0))).collect();
    rows[299].loss = Some(0.5);
    assert_eq!(stored(&rows, 1000).best(Metric::Loss), Some((300, 0.5)));
    let mut series = stored(&rows, 0);
    assert!(series.best(Metric::Loss).unwrap().0.abs_diff(300) < 64);
    series.fill(&rows);
    assert_eq!(series.best(Metric::Loss), Some((300, 0.5)));
}

#[test]
fn memory_for_rows_is_bounded() {
    let series = (1..=300_000).fold(Series::default(), |mut series, step| {
        series.push(&row(1, step, Some(1.0)));
        series
    });
    assert!(series.held <= super::HELD && series.held >= super::NEWEST);
    assert_eq!(series.held, series.rows.iter().flatten().count());
    assert_eq!(series.len(), 300_000);
}

#[test]
fn a_row_that_is_known_or_of_a_past_attempt_is_left_out() {
    let mut series = series(&[Some(3.0), Some(2.0), Some(1.0)]);
    assert!(!series.push(&row(1, 2, Some(9.0))));
    assert!(series.push(&row(2, 3, Some(7.0))));
    assert!(!series.push(&row(1, 4, Some(9.0))));
    assert_eq!(series.newest(Metric::Loss), Some((3, 7.0)));
    assert_eq!(series.len(), 3);
}

#[test]
fn skips_are_counted_and_leave_no_value() {
    let series = series(&[Some(1.0), None, Some(2.0), None, None]);
    assert_eq!(series.skipped_among(3, 0), (2, 3));
    assert_eq!(series.skipped_among(200, 0), (3, 5));
    assert_eq!(series.streak(), 2);
    assert_eq!((series.skips().streak, series.skips().longest, series.skips().first), (2, 2, Some(2)));
    assert_eq!(series.newest(Metric::Loss), Some((3, 2.0)));
    let columns = all_columns(&series, 5);
    assert!(columns[1].extent.is_none() && columns[1].skipped == 1);
    assert!(columns[0].extent.is_some());
}

#[test]
fn holes_and_huge_step_numbers_take_no_room() {
    let mut series = Series::default();
    for step in [1, 1_000_000, u64::MAX / 2, u64::MAX] {
        assert!(series.push(&row(1, step, Some(1.0))));
    }
    assert_eq!(series.len(), 4);
    assert_eq!(all_columns(&series, 10).iter().filter(|column| column.extent.is_some()).count(), 3);
}

#[test]
fn a_long_run_is_drawn_from_few_buckets() {
    let mut series = Series::default();
    for step in 1..=100_000 {
        series.push(&row(1, step, Some(1.0)));
    }
    let mut visited = 0;
    series.visit((Metric::Loss, Axis::Steps), &(1.0..100_000.0), 160, |_| visited += 1);
    assert!(visited < 160 * 16 + 64, "{visited} buckets for 160 columns");
}
