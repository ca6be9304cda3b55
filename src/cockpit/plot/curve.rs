//! Draws columns as dots: the band of raw values, with the smoothed line above it.

use super::braille::Braille;
use crate::series::scale::{Scale, above_zero, range_top};
use crate::series::{Column, Extent};

/// Returns the range that holds the visible values, and the largest value if it was cut off. Isolated
/// columns far above their neighbours do not flatten the curve: the range ends below them.
pub fn value_range(columns: &[Column]) -> Option<(f64, f64, Option<f64>)> {
    let extents = || columns.iter().filter_map(|column| column.extent);
    let low = f64::from(extents().map(|extent| extent.min).reduce(f32::min)?);
    let highs: Vec<f64> = extents().map(|extent| f64::from(extent.max)).collect();
    let (high, cut) = range_top(low, [&highs[..]])?;
    Some((low, high, cut))
}

/// Returns the range of the means, without isolated columns far above their neighbours: what the curve spans, whatever
/// its noise. A mean of 0 is one that was printed with too few digits.
pub fn mean_range(columns: &[Column]) -> Option<(f64, f64)> {
    let means: Vec<f64> = columns.iter().filter_map(|column| Some(f64::from(column.extent?.mean))).collect();
    let low = above_zero(means.iter().copied()).or_else(|| means.iter().copied().reduce(f64::min))?;
    Some((low, range_top(low, [&means[..]])?.0))
}

/// Returns the least value above 0 if none is below; those that are 0 are drawn at the bottom of a logarithmic scale.
pub fn least_above_zero(columns: &[Column]) -> Option<f64> {
    let least = |extent: Extent| f64::from(if extent.min > 0.0 { extent.min } else { extent.mean });
    let extents = || columns.iter().filter_map(|column| column.extent);
    above_zero(extents().map(least)).filter(|_| extents().all(|extent| extent.min >= 0.0))
}

/// Smooths exponentially as if step by step: a column counts as that many steps of its mean that its values stand for.
/// Skipped steps are ignored. `before` holds the values left of the first column, each with the number of steps
/// it stands for.
pub fn smooth_columns(columns: &[Column], weight: f64, before: &[(f32, u32)]) -> Vec<Option<f64>> {
    let (mut sum, mut norm) = (0.0, 0.0);
    let mut add = |value: f64, steps: u32| {
        let kept = weight.powi(i32::try_from(steps).unwrap_or(i32::MAX));
        sum = kept * sum + (1.0 - kept) * value;
        norm = kept * norm + (1.0 - kept);
        sum / norm
    };
    for (value, steps) in before {
        add(f64::from(*value), *steps);
    }
    let mut one = |column: &Column| {
        let extent = column.extent?;
        Some(add(f64::from(extent.mean), column.steps.max(extent.count)))
    };
    columns.iter().map(&mut one).collect()
}

/// Draws the band between minimum and maximum, joined from column to column; a column whose steps were
/// all skipped interrupts it.
pub fn draw_band(canvas: &mut Braille, columns: &[Column], scale: Scale) {
    let rows = canvas.dots_high();
    let mut last: Option<(usize, Extent)> = None;
    for (x, column) in columns.iter().enumerate() {
        let Some(extent) = column.extent else {
            last = last.filter(|_| column.skipped == 0);
            continue;
        };
        let (top, bottom) = (scale.row(f64::from(extent.max), rows), scale.row(f64::from(extent.min), rows));
        canvas.vertical(x, top, bottom);
        if let Some((before, other)) = last {
            let (other_top, other_bottom) =
                (scale.row(f64::from(other.max), rows), scale.row(f64::from(other.min), rows));
            if other_top > bottom {
                canvas.line((before, other_top), (x, bottom));
            } else if other_bottom < top {
                canvas.line((before, other_bottom), (x, top));
            } else if x - before > 1 {
                canvas.line((before, other_top), (x, top));
            }
        }
        last = Some((x, extent));
    }
}

/// Draws a line through the values, this many dots thick; `breaks` marks the columns that the line must not cross.
pub fn draw_line(
    canvas: &mut Braille,
    values: &[Option<f64>],
    breaks: impl Fn(usize) -> bool,
    scale: Scale,
    thickness: usize,
) {
    let rows = canvas.dots_high();
    let mut last: Option<(usize, usize)> = None;
    for (x, value) in values.iter().enumerate() {
        let Some(value) = value else {
            last = last.filter(|_| !breaks(x));
            continue;
        };
        let here = (x, scale.row(*value, rows));
        let from = last.unwrap_or(here);
        for below in 0..thickness {
            canvas.line((from.0, from.1 + below), (x, here.1 + below));
        }
        last = Some(here);
    }
}

#[cfg(test)]
mod tests {
    use super::{least_above_zero, mean_range, smooth_columns, value_range};
    use crate::series::{Column, Extent};
    use proptest::prelude::*;

    fn column(value: f32, count: u32) -> Column {
        let extent = Some(Extent { min: value, max: value, mean: value, count });
        Column { extent, skipped: 0, rows: count, steps: count }
    }

    #[test]
    fn one_spike_does_not_flatten_the_rest() {
        let mut columns: Vec<_> = (0u8..100).map(|step| column(1.0 + f32::from(step) / 100.0, 1)).collect();
        assert_eq!(value_range(&columns).map(|(.., cut)| cut), Some(None));
        columns[50] = column(1e6, 1);
        let (low, high, cut) = value_range(&columns).unwrap();
        assert!(cut == Some(1e6) && low > 0.99 && high < 5.0, "{low} {high}");
    }

    #[test]
    fn spikes_are_cut_and_a_steep_beginning_is_not() {
        let falling = |place: u16| 0.25 + 2.1 * (-6.0 * f32::from(place) / 120.0).exp();
        let mut columns: Vec<_> = (0..120).map(|place| column(falling(place), 8)).collect();
        assert_eq!(value_range(&columns).map(|(_, high, cut)| (high > 2.3, cut)), Some((true, None)));
        for place in [24usize, 66, 107] {
            columns[place] = column(8.0 * falling(u16::try_from(place).unwrap()), 8);
        }
        let (_, high, cut) = value_range(&columns).unwrap();
        assert!((2.3..2.8).contains(&high) && cut.is_some_and(|cut| cut > 6.0), "{high} {cut:?}");
    }

    #[test]
    fn skips_do_not_poison_smoothing() {
        let columns = [column(1.0, 1), Column { extent: None, skipped: 3, rows: 3, steps: 0 }, column(1.0, 1)];
        assert_eq!(smooth_columns(&columns, 0.9, &[]), [Some(1.0), None, Some(1.0)]);
    }

    #[test]
    fn a_loss_that_stands_for_many_steps_counts_as_many() {
        let columns = [column(8.0, 1), Column { steps: 100, ..column(1.0, 1) }];
        let newest = smooth_columns(&columns, 0.9, &[])[1].unwrap();
        assert!((newest - 1.0).abs() < 0.01, "one loss per epoch: {newest}");
    }

    #[test]
    fn losses_printed_as_zero_leave_the_range_as_it_is() {
        let columns = [column(2.0, 1), column(0.001, 1), column(0.0, 1)];
        assert_eq!(
            (mean_range(&columns).map(|(low, _)| low < 0.002), least_above_zero(&columns).is_some()),
            (Some(true), true)
        );
        assert_eq!(mean_range(&columns).map(|(low, _)| low > 0.0), Some(true));
        assert_eq!(least_above_zero(&[column(-1.0, 1), column(0.0, 1), column(1.0, 1)]), None);
        assert_eq!(mean_range(&[column(0.0, 1)]), Some((0.0, 0.0)));
    }

    proptest! {
        #[test]
        fn a_column_counts_as_its_steps(value in -10f32..10.0, count in 1u32..50, weight in 0.0f64..0.99) {
            let apart: Vec<_> = std::iter::once(column(3.0, 1)).chain((0..count).map(|_| column(value, 1))).collect();
            let together = [column(3.0, 1), column(value, count)];
            let (a, b) = (smooth_columns(&apart, weight, &[]), smooth_columns(&together, weight, &[]));
            let (a, b) = (a.last().unwrap().unwrap(), b.last().unwrap().unwrap());
            prop_assert!((a - b).abs() < 1e-6, "{} {}", a, b);
        }
    }
}
