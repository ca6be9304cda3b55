//! Matrix products, with each kernel that tuning may choose for them: which one is fastest differs from card to card.

use super::{Graph, HAS_CARD, place_of_card, run_on_card, tensor};
use burn::backend::{Autodiff, Flex};
use burn::tensor::{FloatDType, Tensor, TensorData, backend::AutodiffBackend};
use downshift::burn;
use downshift::train::native::ops::{self, Gelu};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The file in which `CubeCL` keeps the times of product kernels.
const TIMES: &str = "burn_cubecl-kernel-matmul-tune-base.json.log";

/// Runs a test as `on_card` does, with each kernel that tuning tries. A card that runs no kernel names them; the test is told
/// whether its card runs any.
fn with_each_kernel(name: &str, test: impl FnOnce(bool)) {
    if std::env::var_os(HAS_CARD).is_some() {
        return test(std::env::var_os("SOFT_CARD_SKIP").is_none());
    }
    let place = place_of_card();
    run_on_card(name, place.path(), &[("SOFT_CARD_SKIP", "1")]);
    let times = find_file(place.path(), TIMES).unwrap();
    let written = fs::read_to_string(&times).unwrap();
    let tuned: Vec<Value> = written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kernels: BTreeSet<(u64, String)> = tuned.iter().flat_map(kernels_of).collect();
    assert!(kernels.iter().any(|(_, name)| name.contains("cyclic_mma")), "{kernels:?}");
    for (kernel, called) in &kernels {
        let choose = |line: &Value| {
            let mut line = line.clone();
            if kernels_of(&line).iter().any(|(tried, _)| tried == kernel) {
                line["value"]["fastest_index"] = (*kernel).into();
            }
            format!("{line}\n")
        };
        fs::write(&times, tuned.iter().map(choose).collect::<String>()).unwrap();
        println!("with {called}");
        run_on_card(name, place.path(), &[]);
    }
}

/// Returns the kernels that tuning tried for one shape, with their names.
fn kernels_of(line: &Value) -> Vec<(u64, String)> {
    let results = line["value"]["results"].as_array().unwrap();
    let tried = results.iter().filter_map(|result| result["outcome"].get("Ok"));
    tried.map(|tried| (tried["index"].as_u64().unwrap(), tried["name"].to_string())).collect()
}

fn find_file(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let here = entries.iter().find(|path| path.file_name().is_some_and(|found| found == name)).cloned();
    here.or_else(|| entries.iter().filter(|path| path.is_dir()).find_map(|path| find_file(path, name)))
}

/// Returns the distance of two tensors as a share of the second's norm.
fn relative_distance(found: &TensorData, expected: &TensorData) -> f64 {
    assert_eq!(found.shape, expected.shape);
    let norm = |values: Vec<f64>| values.iter().map(|value| value * value).sum::<f64>().sqrt();
    let difference = found.iter::<f64>().zip(expected.iter::<f64>()).map(|(one, other)| one - other);
    norm(difference.collect()) / norm(expected.iter().collect())
}

#[test]
fn a_linear_layer_of_gelu_is_that_of_the_cpu() {
    /// Returns the output and the gradients of x, W and b, of inputs rounded to `dtype` and computed in `to`.
    fn run<B: AutodiffBackend>(
        [dtype, to]: [FloatDType; 2],
        layer: impl Fn(&Tensor<B, 3>, &Tensor<B, 2>, &Tensor<B, 1>) -> Tensor<B, 3>,
    ) -> [TensorData; 4] {
        let x = Tensor::<B, 3>::from_inner(tensor([2, 5, 48], 1, dtype).cast(to)).require_grad();
        let weight = Tensor::<B, 2>::from_inner(tensor([48, 24], 2, dtype).cast(to)).require_grad();
        let bias = Tensor::<B, 1>::from_inner(tensor([24], 3, dtype).cast(to)).require_grad();
        let y = layer(&x, &weight, &bias);
        let grads = (y.clone() * Tensor::from_inner(tensor([2, 5, 24], 4, dtype).cast(to))).sum().backward();
        let of_bias = bias.grad(&grads).unwrap_or_else(|| bias.inner().zeros_like());
        let [y, of_x] = [y.inner(), x.grad(&grads).unwrap()].map(|tensor| tensor.cast(FloatDType::F32).into_data());
        let of_weight = weight.grad(&grads).unwrap().cast(FloatDType::F32).into_data();
        [y, of_x, of_weight, of_bias.cast(FloatDType::F32).into_data()]
    }
    with_each_kernel("products::a_linear_layer_of_gelu_is_that_of_the_cpu", |computes| {
        // Products of f32 may round their factors to the 11 bits of TF32.
        let formats = [(FloatDType::F32, 2e-3), (FloatDType::F16, 2e-3), (FloatDType::BF16, 1e-2)];
        for (kind, (dtype, apart)) in [Gelu::Exact, Gelu::Tanh].into_iter().flat_map(|kind| formats.map(|f| (kind, f)))
        {
            let expected = run::<Autodiff<Flex>>([dtype, FloatDType::F32], |x, weight, bias| {
                ops::linear(&ops::gelu(x, kind).unwrap(), weight, Some(bias)).unwrap()
            });
            let found =
                run::<Graph>([dtype; 2], |x, weight, bias| ops::gelu_linear(x, kind, weight, Some(bias)).unwrap());
            let without = run::<Graph>([dtype; 2], |x, weight, _| ops::gelu_linear(x, kind, weight, None).unwrap());
            if !computes {
                continue;
            }
            for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let distance = relative_distance(found, expected);
                assert!(distance < apart, "part {place} in {dtype:?}: {distance}");
            }
            assert_eq!(without[1..3], found[1..3], "gradients of x and W without a bias");
            assert!(without[3].iter::<f32>().all(|value| value == 0.0));
        }
    });
}
