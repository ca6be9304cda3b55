use super::{Bucket, LEAF, METRICS, Metric, MetricId, Point, Spot, bytes, leaves};
use proptest::prelude::*;

fn point(step: u64, value: Option<f32>) -> Point {
    let spot = Spot { step, samples: step * 32, time_ms: step as i64 * 20 };
    // Half of the steps report a named metric.
    let named = value.filter(|_| step.is_multiple_of(2)).map(|value| (MetricId(3), value));
    let values = [value.unwrap_or(f32::NAN); METRICS];
    Point { spot, values, named: named.into_iter().collect(), skipped: value.is_none() }
}

fn points(values: &[Option<f32>]) -> Vec<Point> {
    (1..).zip(values).map(|(step, value)| point(step, *value)).collect()
}

proptest! {
    #[test]
    fn a_bucket_says_what_counting_by_hand_says(
        values in proptest::collection::vec(proptest::option::weighted(0.6, -1e3f32..1e3), 1..300), cut in 0usize..300,
    ) {
        let points = points(&values);
        let cut = cut.min(points.len());
        let halves = [Bucket::of(&points[..cut]), Bucket::of(&points[cut..])];
        let bucket = halves.into_iter().flatten().reduce(|all, part| all.with(&part)).unwrap();
        let skipped: Vec<bool> = values.iter().map(Option::is_none).collect();
        let runs: Vec<u32> = skipped.chunk_by(|a, b| a == b).filter(|run| run[0]).map(|run| run.len() as u32).collect();
        prop_assert_eq!(bucket.steps as usize, values.len());
        prop_assert_eq!(bucket.skipped, runs.iter().sum::<u32>());
        prop_assert_eq!(bucket.longest, runs.iter().copied().max().unwrap_or(0));
        prop_assert_eq!(bucket.lead as usize, skipped.iter().take_while(|skipped| **skipped).count());
        prop_assert_eq!(bucket.trail as usize, skipped.iter().rev().take_while(|skipped| **skipped).count());
        prop_assert_eq!(bucket.skipped_at, skipped.iter().position(|skipped| *skipped).map(|place| place as u64 + 1));
        let least = values.iter().flatten().copied().reduce(f32::min);
        prop_assert_eq!(bucket.extent(Metric::Lr).map(|extent| extent.min), least);
        let even = points.iter().filter(|point| point.spot.step % 2 == 0).filter_map(|point| {
            Some(point.value(Metric::Lr)).filter(|value| value.is_finite())
        });
        let named = bucket.extent(Metric::Named(MetricId(3)));
        prop_assert_eq!(named.map(|extent| extent.max), even.clone().reduce(f32::max));
        prop_assert_eq!(named.map_or(0, |extent| extent.count as usize), even.count());
        prop_assert_eq!(bucket.extent(Metric::Named(MetricId(4))), None);
    }

    #[test]
    fn leaves_survive_the_way_through_bytes(
        values in proptest::collection::vec(proptest::option::weighted(0.7, any::<f32>()), 0..500),
        noise in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        let leaves = leaves(&points(&values));
        prop_assert!(leaves.len() <= values.len() / LEAF as usize + 2);
        let bytes = bytes::encode(&leaves);
        prop_assert_eq!(bytes::decode(&bytes), Some(leaves));
        if bytes.len() > 1 {
            prop_assert_eq!(bytes::decode(&bytes[..bytes.len() - 1]), None);
        }
        // Any content of a damaged store must not panic.
        let _ = bytes::decode(&noise);
    }
}

#[test]
fn a_blob_of_other_figures_is_not_read() {
    assert_eq!(bytes::decode(&[METRICS as u8 + 1]), None);
    assert_eq!(bytes::decode(&[]), None);
    assert_eq!(bytes::decode(&[METRICS as u8]), Some(Vec::new()));
}

#[test]
fn leaves_without_named_metrics_are_written_as_before_there_were_any() {
    let plain = leaves(&points(&[Some(1.0)]));
    let bytes = bytes::encode(&plain);
    assert_eq!((bytes[0], bytes.len()), (7, 1 + 2 * 24 + 5 * 4 + 8 + 7 * 16));
    assert!(bytes::encode(&leaves(&points(&[Some(1.0), Some(2.0)]))).len() > bytes.len());
}
