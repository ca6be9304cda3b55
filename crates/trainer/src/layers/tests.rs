use super::{MAX_LAYERS, ParameterStats, UpdateObserver, layers, round};
use burn::backend::{Flex, flex::FlexDevice};
use burn::tensor::{FloatDType, Tensor};
use std::collections::BTreeSet;

fn stats(path: &str, rank: usize, units: usize, dead: f64) -> ParameterStats {
    let (grad_square, weight_square, change_square) = (1.0, 4.0, 0.01);
    ParameterStats { path: path.to_owned(), rank, units, grad_square, dead, weight_square, change_square }
}

fn names(parameters: &[ParameterStats]) -> Vec<String> {
    layers(parameters, &BTreeSet::new()).into_iter().map(|layer| layer.name).collect()
}

#[test]
fn an_update_is_measured_by_hand() {
    let matrix = |values: [[f32; 3]; 2]| Tensor::<Flex, 2>::from_data(values, &FlexDevice);
    let filters = |values: [[[f32; 2]; 1]; 3]| Tensor::<Flex, 3>::from_data(values, &FlexDevice);
    let mut observer = UpdateObserver::<Flex>::default();
    observer.observe_gradient("up.weight", &matrix([[1.0, 0.0, -2.0], [-1.0, 0.0, 0.0]]));
    observer.observe_change(matrix([[1.0; 3]; 2]), matrix([[1.0, 3.0, 1.0], [1.0, 1.0, 2.0]]));
    observer.observe_gradient("conv.weight", &filters([[[0.0, 0.0]], [[0.0, -3.0]], [[0.0, 0.0]]]));
    observer.observe_change(filters([[[2.0; 2]]; 3]), filters([[[2.0; 2]]; 3]));
    let parameters = observer.read().unwrap();
    let found: Vec<_> = parameters
        .iter()
        .map(|one| (one.units, one.dead, one.grad_square, one.weight_square, one.change_square))
        .collect();
    assert_eq!(found, [(3, 1.0, 6.0, 17.0, 5.0), (3, 2.0, 9.0, 24.0, 0.0)], "columns of a matrix, filters");
    let layers = layers(&parameters, &BTreeSet::from(["conv.weight".to_owned()]));
    assert_eq!(layers[0].dead, Some(1.0 / 3.0));
    assert_eq!((layers[0].weight_norm, layers[0].grad_norm), (round(17f64.sqrt()), Some(round(6f64.sqrt()))));
    assert_eq!(layers[0].update_ratio, Some(round((5f64 / 17.0).sqrt())));
    assert_eq!((layers[0].non_finite, layers[1].non_finite), (false, true));
    assert!(UpdateObserver::<Flex>::default().read().unwrap().is_empty());
}

#[test]
fn sums_of_half_precision_do_not_overflow() {
    let half = |value: f32| Tensor::<Flex, 1>::full([4], value, &FlexDevice).cast(FloatDType::F16);
    let mut observer = UpdateObserver::<Flex>::default();
    observer.observe_gradient("norm.gamma", &half(300.0));
    observer.observe_change(half(0.0), half(400.0));
    let parameters = observer.read().unwrap();
    assert_eq!((parameters[0].grad_square, parameters[0].weight_square), (360_000.0, 640_000.0));
}

#[test]
fn layers_follow_the_model_and_biases_count_no_units_twice() {
    let parameters = [
        stats("blocks.2.query.weight", 2, 8, 2.0),
        stats("blocks.2.query.bias", 1, 8, 8.0),
        stats("blocks.10.norm.gamma", 1, 8, 4.0),
        stats("head", 2, 4, 0.0),
    ];
    assert_eq!(names(&parameters), ["blocks.2.query", "blocks.10.norm", "head"]);
    let layers = layers(&parameters, &BTreeSet::new());
    assert_eq!(layers.iter().map(|layer| layer.dead).collect::<Vec<_>>(), [Some(0.25), Some(0.5), Some(0.0)]);
    assert_eq!((layers[0].weight_norm, layers[0].update_ratio), (round(8f64.sqrt()), Some(0.05)));
}

#[test]
fn a_deep_model_is_merged_until_its_layers_can_be_listed() {
    let deep = |blocks: usize| -> Vec<ParameterStats> {
        let block = |block| (0..4).map(move |layer| stats(&format!("blocks.{block}.part.{layer}.weight"), 2, 1, 0.0));
        (0..blocks).flat_map(block).chain([stats("head.weight", 2, 1, 0.0)]).collect()
    };
    assert_eq!(names(&deep(49)).len(), 4 * 49 + 1);
    let merged = names(&deep(MAX_LAYERS - 1));
    assert_eq!((merged.len(), merged[7].as_str()), (MAX_LAYERS, "blocks.7.part"));
    assert_eq!(names(&deep(MAX_LAYERS)), ["blocks", "head"]);
}

#[test]
fn numbers_that_are_not_finite_stay_out_of_the_row() {
    let grown = ParameterStats { weight_square: f64::INFINITY, ..stats("a.weight", 2, 1, 0.0) };
    let empty = ParameterStats { weight_square: 0.0, change_square: 0.0, ..stats("b.weight", 2, 0, 0.0) };
    let layers = layers(&[grown, empty], &BTreeSet::new());
    assert_eq!((layers[0].weight_norm, layers[0].non_finite), (0.0, true));
    assert_eq!((layers[1].update_ratio, layers[1].dead, layers[1].non_finite), (None, None, false));
    assert_eq!([1.0, 0.123_456_78, 0.0].map(|value| round(value).to_string()), ["1", "0.12346", "0"]);
}
