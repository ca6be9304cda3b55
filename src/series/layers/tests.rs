use super::{Extent, LayerHistory, Measure};
use crate::protocol::control::LayerRow;
use crate::protocol::samples::{Layer, LayerStats};

fn layer(name: &str, weight_norm: f64) -> Layer {
    Layer { name: name.to_owned(), weight_norm, ..Layer::default() }
}

fn row(attempt: u64, step: u64, layers: Vec<Layer>) -> LayerRow {
    let time_ms = (1_000_000 * attempt + step).cast_signed();
    LayerRow { attempt, time_ms, stats: LayerStats { step, layers } }
}

#[test]
fn extents_follow_the_evaluations_that_count() {
    let norms = |step: u64, norm: f64| row(1, step, vec![layer("a", norm), layer("b", 0.0)]);
    let mut history = LayerHistory::new([norms(10, 2.0), norms(20, 0.5), norms(30, 100.0)], None);
    let extent = |history: &LayerHistory, moment| history.extent_until(moment, Measure::WeightNorm);
    assert_eq!(extent(&history, None), Extent { low: 0.5, high: 100.0 });
    assert_eq!(extent(&history, Some(1_000_010)), Extent { low: 2.0, high: 2.0 });
    // A later attempt redoes the largest and the smallest.
    history.push(row(2, 15, vec![layer("a", 3.0)]));
    assert_eq!(extent(&history, None), Extent { low: 2.0, high: 3.0 });
    assert_eq!(history.extent_until(None, Measure::GradNorm), Extent::NONE);
}

#[test]
fn layers_are_found_by_name_wherever_they_are() {
    let first = row(1, 10, vec![layer("a", 1.0), layer("b", 2.0)]);
    let second = row(1, 20, vec![layer("b", 3.0), layer("c", 4.0)]);
    let history = LayerHistory::new([first.clone(), second.clone()], None);
    assert_eq!(history.names(), ["a", "b", "c"]);
    let norms = |row| [0, 1, 2, 3].map(|place| history.layer_in(row, place).map(|layer| layer.weight_norm));
    assert_eq!(norms(&first), [Some(1.0), Some(2.0), None, None]);
    assert_eq!(norms(&second), [None, Some(3.0), Some(4.0), None]);
}
