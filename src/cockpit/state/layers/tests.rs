use super::Layers;
use crate::cockpit::read_error::ReadError;
use crate::protocol::control::LayerRow;
use crate::protocol::samples::{Layer, LayerStats, NonFiniteParameter};
use crate::series::layers::LayerHistory;

fn layer(name: &str, weight_norm: f64) -> Layer {
    Layer { name: name.to_owned(), weight_norm, ..Layer::default() }
}

fn row(attempt: u64, step: u64, layers: Vec<Layer>) -> LayerRow {
    let time_ms = (1_000_000 * attempt + step).cast_signed();
    LayerRow { attempt, time_ms, stats: LayerStats { step, layers } }
}

fn steps(layers: &Layers) -> Vec<u64> {
    let history = layers.history.as_ref().unwrap().as_ref().unwrap();
    history.rows_until(None).map(|row| row.stats.step).collect()
}

#[test]
fn the_first_parameter_that_is_not_finite_is_read_once_the_store_knows_it() {
    let mut layers = Layers::default();
    assert!(layers.take_missing());
    layers.store_history(Ok(LayerHistory::new([row(1, 10, vec![layer("a", 1.0)])], None)));
    let broken = row(1, 20, vec![Layer { non_finite: true, ..layer("a", 1.0) }]);
    let now_ms = broken.time_ms;
    layers.push(broken.clone());
    layers.retry(now_ms + 100);
    assert!(!layers.take_missing(), "the keeper may not have written it");
    layers.retry(now_ms + 1_000);
    assert!(layers.take_missing());
    layers.push(row(1, 30, vec![layer("a", 1.0)]));
    let first = NonFiniteParameter { step: 17, parameter: "a.weight".to_owned() };
    let stored = LayerHistory::new([row(1, 10, vec![layer("a", 1.0)]), broken.clone()], Some(first.clone()));
    layers.store_history(Ok(stored));
    assert_eq!(steps(&layers), [10, 20, 30], "an evaluation that came meanwhile stays");
    assert_eq!(layers.history.as_ref().unwrap().as_ref().unwrap().first_non_finite, Some(first));
    assert!(layers.take_missing(), "one may have been missed");
    layers.push(LayerRow { stats: LayerStats { step: 40, ..broken.stats }, ..broken });
    layers.store_history(layers.history.clone().unwrap().map(|history| (*history).clone()));
    layers.take_missing();
    layers.store_history(layers.history.clone().unwrap().map(|history| (*history).clone()));
    layers.retry(now_ms + 9_000);
    assert!(!layers.take_missing(), "it is known");
}

#[test]
fn a_history_that_could_not_be_read_is_read_again_on_request() {
    let mut layers = Layers::default();
    assert!(layers.take_missing());
    layers.store_history(Err(ReadError::Store("database is locked".to_owned())));
    assert!(!layers.take_missing());
    layers.retry(0);
    assert!(layers.take_missing() && !layers.take_missing());
}
