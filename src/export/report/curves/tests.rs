use super::{BUDGET, COLUMNS, EVALS, columns_of, shorten, thin, thin_extremes};
use crate::series::Series;

#[test]
fn short_runs_have_a_column_for_each_step_and_long_ones_as_many_as_fit() {
    assert_eq!((columns_of(900, 4), columns_of(5000, 4)), (900, COLUMNS));
    // Between: every leaf fills a column.
    assert_eq!(columns_of(100_000, 4), 100_000 / 64);
    assert_eq!((columns_of(1_000_000, 12), columns_of(u64::MAX, 64)), (COLUMNS, BUDGET / 64));
    assert!(columns_of(Series::EXACT_LEAVES as u64 * 64, 4) >= Series::EXACT_LEAVES);
}

#[test]
fn thinning_keeps_extremes_and_the_newest() {
    let values: Vec<(u64, f64)> =
        (0..100_000).map(|step| (step, if step == 77_777 { -5.0 } else { (step % 7) as f64 })).collect();
    let thinned = thin_extremes(values);
    assert!(thinned.len() <= EVALS && thinned.contains(&(77_777, -5.0)), "{}", thinned.len());
    assert!(thinned.is_sorted_by_key(|(step, _)| *step));
    let steps: Vec<u64> = (1..=10_000).collect();
    let kept = thin(&steps, 1000);
    assert_eq!((kept.len(), kept.last()), (1000, Some(&10_000)));
    assert!((shorten(0.123_456_79) - 0.12346).abs() < 1e-9);
}
