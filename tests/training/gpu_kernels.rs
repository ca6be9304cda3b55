//! The kernels of our own on the soft card (examples/soft_card), beside the operations that Burn composes.
#![cfg(feature = "cuda")]
#![cfg_attr(feature = "cuda", expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking"))]

mod attention;
mod products;

use crate::libraries::{CACHE, build_libraries, built_library};
use burn::backend::{Autodiff, Flex};
use burn::tensor::{
    DType, FloatDType, Tensor, TensorData, TensorPrimitive, Tolerance, activation,
    backend::{AutodiffBackend, Backend},
    ops::FloatTensor,
};
use downshift::burn;
use downshift::train::backends::CudaFused;
use downshift::train::native::{
    Scope,
    ops::{self, Factors, Gelu, NormOptions},
};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

type Graph = CudaFused;
type Inner = <CudaFused as AutodiffBackend>::InnerBackend;

/// Set in the process that has the soft card.
const HAS_CARD: &str = "GPU_KERNELS_HAS_CARD";

/// Runs a test in a process of its own, which finds the soft card where it looks for NVIDIA's libraries.
fn on_card(name: &str, test: impl FnOnce()) {
    if std::env::var_os(HAS_CARD).is_some() {
        return test();
    }
    run_on_card(name, place_of_card().path(), &[]);
}

/// Returns a folder with the libraries of the soft card, where its tests also keep their caches.
fn place_of_card() -> TempDir {
    build_libraries();
    let place = tempfile::tempdir().unwrap();
    for library in ["libcuda.so", "libcuda.so.1"] {
        symlink(built_library("libsoft_card_driver.so"), place.path().join(library)).unwrap();
    }
    symlink(built_library("libsoft_card_nvrtc.so"), place.path().join("libnvrtc.so")).unwrap();
    place
}

fn run_on_card(name: &str, place: &Path, settings: &[(&str, &str)]) {
    // A kernel that never ends, such as at a barrier that some threads miss, must not stop all tests.
    let done = Command::new("timeout")
        .args(["--kill-after=5", "1500"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("gpu_kernels::{name}"), "--nocapture"])
        .env(HAS_CARD, "1")
        .env("LD_LIBRARY_PATH", place)
        .env("CUDA_PATH", Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/soft_card"))
        .env("SOFT_CARD_CACHE", CACHE)
        .env("SOFT_CARD_CAPABILITY", "8.0")
        .env("XDG_CACHE_HOME", place)
        .envs(settings.iter().copied())
        .current_dir(place)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success() && said.contains("1 passed"), "{said}");
}

/// Returns numbers between −2 and 2.
fn numbers<const D: usize>(shape: [usize; D], salt: usize) -> TensorData {
    let count = shape.iter().product::<usize>();
    TensorData::new((0..count).map(|at| 2.0 * ((at * 7 + salt) as f32 * 0.37).sin()).collect::<Vec<f32>>(), shape)
}

fn tensor<B: Backend, const D: usize>(shape: [usize; D], salt: usize, dtype: FloatDType) -> Tensor<B, D> {
    Tensor::<B, D>::from_data(numbers(shape, salt), &B::Device::default()).cast(dtype)
}

fn device() -> <Inner as burn::tensor::backend::BackendTypes>::Device {
    <Inner as burn::tensor::backend::BackendTypes>::Device::default()
}

fn values<const D: usize>(tensor: Tensor<Inner, D>) -> TensorData {
    tensor.cast(FloatDType::F32).into_data()
}

/// Formats, and how far each number may be from that in f32 on the same inputs: outputs are rounded once.
const FORMATS: [(FloatDType, f32); 3] = [(FloatDType::F32, 1e-5), (FloatDType::F16, 1e-3), (FloatDType::BF16, 4e-3)];
/// How far a sum whose parts cancel out may be off.
const CANCELLED: f32 = 4e-5;

/// Compares numbers of which most are far below 1.
#[track_caller]
fn check(found: &TensorData, expected: &TensorData, apart: f32) {
    found.assert_approx_eq::<f32>(expected, Tolerance::rel_abs(apart, 5e-6));
}

fn no_nans(data: &TensorData) -> bool {
    data.iter::<f32>().all(f32::is_finite)
}

#[test]
fn norms_match_composed_ones() {
    on_card("norms_match_composed_ones", || {
        let limits = [[1, 3, 1], [1, 2, 4096]].map(|shape| (FORMATS[0], shape));
        for ((dtype, apart), shape, centered) in [[2, 35, 16], [1, 33, 33], [3, 1, 1600]]
            .into_iter()
            .flat_map(|shape| FORMATS.map(|format| (format, shape)))
            .chain(limits)
            .flat_map(|(format, shape)| [true, false].map(|centered| (format, shape, centered)))
        {
            let norm = |dtype| {
                let inputs = [0, 50, 99].map(|salt| tensor::<Inner, 1>([shape[2]], salt, dtype).cast(FloatDType::F32));
                let x = tensor::<Inner, 3>(shape, 3, dtype).cast(FloatDType::F32);
                (x, inputs)
            };
            let (x, [gamma, beta, _]) = norm(dtype);
            let weight = tensor::<Inner, 3>(shape, 8, dtype).cast(FloatDType::F32);
            let run = |dtype: FloatDType, fused: bool| {
                let _operations = Scope::new(fused);
                let x = Tensor::<Graph, 3>::from_inner(x.clone().cast(dtype)).require_grad();
                let [gamma, beta] =
                    [&gamma, &beta].map(|p| Tensor::<Graph, 1>::from_inner(p.clone().cast(dtype)).require_grad());
                let options = NormOptions { epsilon: 1e-5, relu: false };
                let found = ops::norm(&x, &gamma, centered.then_some(&beta), options);
                assert_eq!(found.is_some(), fused);
                let y = found.unwrap_or_else(|| {
                    let centre = if centered { x.clone() - x.clone().mean_dim(2) } else { x.clone() };
                    let size = centre.clone().square().mean_dim(2).add_scalar(1e-5).sqrt();
                    let y = centre / size * gamma.clone().unsqueeze();
                    if centered { y + beta.clone().unsqueeze() } else { y }
                });
                let weight = Tensor::from_inner(weight.clone().cast(dtype));
                let grads = (y.clone() * weight).sum().backward();
                let of_beta = centered.then(|| values(beta.grad(&grads).unwrap()));
                [values(y.inner()), values(x.grad(&grads).unwrap()), values(gamma.grad(&grads).unwrap())]
                    .into_iter()
                    .chain(of_beta)
                    .collect::<Vec<_>>()
            };
            let (found, expected) = (run(dtype, true), run(FloatDType::F32, false));
            for (found, expected) in found.iter().zip(&expected) {
                found.assert_approx_eq::<f32>(expected, Tolerance::rel_abs(apart, CANCELLED));
            }
            assert_eq!(found.len(), expected.len());
        }
    });
}

#[test]
fn causal_softmax_matches_a_masked_one() {
    on_card("causal_softmax_matches_a_masked_one", || {
        for (length, (dtype, apart)) in [1, 7, 72, 264, 523].into_iter().flat_map(|length| FORMATS.map(|f| (length, f)))
        {
            // Rows of one thread, of two planes of eight numbers a thread, and longer than the threads of a row.
            let shape = [if length > 100 { 1 } else { 3 }, length, length];
            let exact = |salt| tensor::<Inner, 3>(shape, salt, dtype).cast(FloatDType::F32);
            let mask = Tensor::<Inner, 2>::ones([length, length], &device()).triu(1) * -1e30;
            let scores = (exact(1) * 3.0).cast(dtype);
            let expected = activation::softmax(scores.clone().cast(FloatDType::F32) + mask.unsqueeze(), 2);
            let weights = ops::causal_softmax(scores).unwrap();
            assert_eq!(weights.dtype(), DType::from(dtype));
            check(&values(weights.clone()), &values(expected), apart);

            let rounded = weights.clone().cast(FloatDType::F32);
            let mean = (exact(9) * rounded.clone()).sum_dim(2);
            let expected = rounded * (exact(9) - mean);
            let later = Tensor::<Inner, 2>::ones([length, length], &device()).triu(1).equal_elem(1.0);
            let later = later.unsqueeze::<3>().expand(shape);
            let grad = exact(9).mask_fill(later, f32::NAN).cast(dtype);
            let found = values(ops::causal_softmax_grad(grad, weights).unwrap());
            assert!(no_nans(&found), "later positions are not read");
            check(&found, &values(expected), apart);
        }
    });
}

#[test]
fn cross_entropy_matches_a_composed_one() {
    on_card("cross_entropy_matches_a_composed_one", || {
        for (classes, (dtype, apart)) in [257, 5000].into_iter().flat_map(|n| FORMATS.map(|f| (n, f))) {
            let rows = 5;
            let logits = tensor::<Inner, 2>([rows, classes], 4, dtype);
            let exact = logits.clone().cast(FloatDType::F32);
            let targets: Vec<usize> = (0..rows).map(|row| (row * 7919) % classes).collect();
            let of_row = |target: &usize| (0..classes).map(|class| f32::from(class == *target)).collect::<Vec<f32>>();
            let onehot: Vec<f32> = targets.iter().flat_map(of_row).collect();
            let onehot = Tensor::<Inner, 2>::from_data(TensorData::new(onehot, [rows, classes]), &device());
            let targets = Tensor::<Inner, 1>::from_data(
                TensorData::new(targets.iter().map(|at| *at as f32).collect(), [rows]),
                &device(),
            );
            let targets = targets.cast(FloatDType::F32).into_primitive().tensor();
            let [grads, losses] = ops::cross_entropy::<Inner>(logits.into_primitive().tensor(), || targets).unwrap();
            let [grads, losses] = [grads, losses].map(TensorPrimitive::Float);
            let grads = Tensor::<Inner, 2>::from_primitive(grads);
            assert_eq!(grads.dtype(), DType::from(dtype));
            let expected = -(activation::log_softmax(exact.clone(), 1) * onehot.clone()).sum_dim(1);
            check(&values(Tensor::<Inner, 1>::from_primitive(losses)), &values(expected.reshape([rows])), 1e-5);
            check(&values(grads), &values(activation::softmax(exact, 1) - onehot), apart);
        }
    });
}

#[test]
fn gelu_is_that_of_the_cpu() {
    on_card("gelu_is_that_of_the_cpu", || {
        fn run<B: AutodiffBackend>(kind: Gelu, dtype: FloatDType, to: FloatDType) -> [TensorData; 2] {
            let exact = |salt| tensor::<B::InnerBackend, 2>([3, 250], salt, dtype).mul_scalar(2.0).cast(to);
            let x = Tensor::<B, 2>::from_inner(exact(1)).require_grad();
            let y = ops::gelu(&x, kind).unwrap();
            let grads = (y.clone() * Tensor::from_inner(exact(5))).sum().backward();
            [y.inner(), x.grad(&grads).unwrap()].map(|tensor| tensor.cast(FloatDType::F32).into_data())
        }
        for (kind, (dtype, apart)) in [Gelu::Exact, Gelu::Tanh].into_iter().flat_map(|kind| FORMATS.map(|f| (kind, f)))
        {
            let expected = run::<Autodiff<Flex>>(kind, dtype, FloatDType::F32);
            for (found, expected) in run::<Graph>(kind, dtype, dtype).iter().zip(&expected) {
                check(found, expected, apart);
            }
        }
    });
}

#[test]
fn an_update_is_that_of_the_cpu() {
    on_card("an_update_is_that_of_the_cpu", || {
        fn inputs<B: Backend>(shape: [usize; 2], to: FloatDType) -> [FloatTensor<B>; 4] {
            let number = |salt| tensor::<B, 2>(shape, salt, FloatDType::BF16).cast(FloatDType::F32);
            let [weights, first, second] = [number(1), number(7), number(9).abs()];
            let grad = number(4).cast(to);
            [weights, first, second, grad].map(|tensor| tensor.into_primitive().tensor())
        }
        let betas = [0.9, 0.99];
        let factors = Factors { scale: 0.5, betas, rate: 1e-2, correction: 0.3, epsilon: 1e-8, keep: 0.999 };
        let rank = |tensor| values(Tensor::<Inner, 2>::from_primitive(TensorPrimitive::Float(tensor)));
        for (shape, to, rounded) in [
            ([3, 250], FloatDType::BF16, Some(FloatDType::BF16)),
            ([1, 4100], FloatDType::F32, Some(FloatDType::BF16)),
            ([5, 7], FloatDType::F32, None),
        ] {
            let [mut weights, mut first, mut second, grad] = inputs::<Flex>(shape, FloatDType::F32);
            assert!(ops::update::<Flex>([&mut weights, &mut first, &mut second], &grad, factors));
            let held = inputs::<Inner>(shape, to);
            let before = held.clone().map(rank);
            ops::update_on_gpu::<Inner>(held.clone(), factors, rounded).unwrap();
            assert_eq!(held.map(rank), before, "tensors that are still held keep their values");
            let (state, copy) = ops::update_on_gpu::<Inner>(inputs::<Inner>(shape, to), factors, rounded).unwrap();
            let [found, ..] = state.each_ref().map(|tensor| rank(tensor.clone()));
            if let (Some(format), Some(copy)) = (rounded, copy) {
                let expected = Tensor::<Inner, 2>::from_data(found.clone(), &device()).cast(format);
                assert_eq!(rank(copy), values(expected));
            } else {
                assert_eq!(rounded, None);
            }
            for (found, expected) in state.into_iter().map(rank).zip([weights, first, second]) {
                check(&found, &expected.into_data(), 1e-5);
            }
        }
    });
}

#[test]
fn squares_are_summed_over_all_tensors() {
    on_card("squares_are_summed_over_all_tensors", || {
        let shapes = [[300, 40], [1, 7], [2, 5000]];
        for (dtype, _) in FORMATS {
            let tensors = shapes.map(|shape| tensor::<Inner, 2>(shape, 5, dtype));
            let numbers = tensors.iter().flat_map(|tensor| values(tensor.clone()).to_vec::<f32>().unwrap());
            let expected: f64 = numbers.map(|number| f64::from(number).powi(2)).sum();
            let tensors = tensors.map(|tensor| tensor.into_primitive().tensor());
            let sum = ops::sum_of_squares_on_gpu::<Inner>(&tensors.each_ref()).unwrap();
            let sum = values(Tensor::<Inner, 1>::from_primitive(TensorPrimitive::Float(sum))).to_vec::<f32>().unwrap();
            assert!((f64::from(sum[0]) / expected - 1.0).abs() < 1e-6, "{sum:?} instead of {expected}");
        }
    });
}

#[test]
fn a_sum_in_f32_takes_terms_of_any_format() {
    on_card("a_sum_in_f32_takes_terms_of_any_format", || {
        for ((dtype, _), shape) in
            FORMATS.into_iter().flat_map(|format| [[3, 40], [5, 33]].map(|shape| (format, shape)))
        {
            let sum = |salt| tensor::<Inner, 2>(shape, salt, FloatDType::F32).into_primitive().tensor();
            let more = || tensor::<Inner, 2>(shape, 9, dtype);
            let expected = tensor::<Inner, 2>(shape, 1, FloatDType::F32) + more().cast(FloatDType::F32);
            let found = ops::add_to_sum::<Inner>(sum(1), more().into_primitive().tensor()).unwrap();
            let found = Tensor::<Inner, 2>::from_primitive(TensorPrimitive::Float(found));
            assert_eq!(values(found), values(expected), "{dtype:?}");
            let other = tensor::<Inner, 2>([shape[1], shape[0]], 9, dtype).into_primitive().tensor();
            assert!(ops::add_to_sum::<Inner>(sum(1), other).is_err(), "another shape");
        }
    });
}

#[test]
fn a_nan_spoils_its_row_alone() {
    on_card("a_nan_spoils_its_row_alone", || {
        let mut scores: Vec<f32> = numbers([1, 40, 40], 1).to_vec().unwrap();
        scores[20 * 40 + 7] = f32::NAN;
        // A later position, which is not read.
        scores[5 * 40 + 6] = f32::NAN;
        let scores = Tensor::<Inner, 3>::from_data(TensorData::new(scores, [1, 40, 40]), &device());
        let weights = values(ops::causal_softmax(scores).unwrap()).to_vec::<f32>().unwrap();
        for (row, weights) in weights.chunks(40).enumerate() {
            assert_eq!(weights[..=row].iter().all(|weight| weight.is_nan()), row == 20, "row {row}");
            assert!(row == 20 || weights.iter().all(|weight| weight.is_finite()), "row {row}");
        }
    });
}

#[test]
fn shapes_without_a_kernel_are_left_to_burn() {
    on_card("shapes_without_a_kernel_are_left_to_burn", || {
        let options = NormOptions { epsilon: 1e-5, relu: false };
        let wide = |salt| tensor::<Inner, 1>([4097], salt, FloatDType::F32);
        let x = tensor::<Inner, 3>([1, 2, 4097], 0, FloatDType::F32);
        assert!(ops::norm(&x, &wide(1), Some(&wide(2)), options).is_none());
        assert!(ops::causal_softmax(tensor::<Inner, 3>([2, 1, 8], 0, FloatDType::F32)).is_err(), "one query of eight");
    });
}

/// The control of the tests above: without the scope there are no kernels.
#[test]
fn kernels_are_off_outside_their_scope() {
    on_card("kernels_are_off_outside_their_scope", || {
        let _operations = Scope::new(false);
        assert!(ops::causal_softmax(tensor::<Inner, 3>([1, 4, 4], 0, FloatDType::F32)).is_err());
    });
}
