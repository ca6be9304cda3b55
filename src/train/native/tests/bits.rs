//! Native operations have the same bits on any number of threads and at every SIMD level.

use super::super::{kernels, simd};
use super::{Cpu, decoder, loss_and_grads, numbers};
use crate::train::task::Pass;
use crate::train::tasks::lm::model::Transformer;
use crate::train::tasks::lm::shape::{Activation, Family};
use burn::backend::{Flex, flex::FlexDevice};
use burn::tensor::{Int, Tensor};

#[test]
fn the_number_of_threads_changes_no_bit() {
    let model = Transformer::<Cpu>::new(&decoder(Family::Gpt2, Activation::Gelu, None), &FlexDevice);
    let grads = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let tokens = Tensor::<Flex, 1, Int>::arange(0..8 * 70, &FlexDevice).remainder_scalar(50).reshape([8, 70]);
            loss_and_grads(&model, &model.loss(tokens.clone(), tokens, &Pass::plain(&FlexDevice)))
        })
    };
    let one = grads(1);
    for threads in [2, 3, 5] {
        assert_eq!(grads(threads), one, "{threads} threads");
    }
}

/// Returns the bits that `fill` writes in a pool of this size.
fn bits_with(threads: usize, length: usize, fill: impl Fn(&mut [f32]) + Sync) -> Vec<u32> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let mut values = vec![0.0; length];
    pool.install(|| fill(&mut values));
    values.into_iter().map(f32::to_bits).collect()
}

#[test]
fn sums_that_are_split_have_the_same_bits() {
    use kernels::{adamw, convolution, linear};
    // Enough rows for each of several threads.
    let (rows, width) = (4_001, 64);
    let grad = numbers(rows * width, 1);
    let picture = convolution::Picture { batch: 40, size: [33, 31], channels: 7, stride: 1 };
    let pixels = 40 * 33 * 31 * 7;
    let (x, of_y) = (numbers(pixels, 2), numbers(pixels, 3));
    let bias = |threads| bits_with(threads, width, |sum| linear::bias_grad(&grad, sum));
    let filter = |threads| bits_with(threads, 9 * 7, |sum| convolution::depthwise_filter_grad(&x, &of_y, picture, sum));
    let norm = |threads| bits_with(threads, 1, |sum| sum[0] = adamw::sum_of_squares(&x));
    let one = (bias(1), filter(1), norm(1));
    for threads in [2, 3, 5] {
        assert!((bias(threads), filter(threads), norm(threads)) == one, "{threads} threads");
    }
}

#[test]
fn the_simd_level_changes_no_bit_of_the_loops() {
    let model = Transformer::<Cpu>::new(&decoder(Family::Gpt2, Activation::Gelu, None), &FlexDevice);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let grads = |level| {
        pool.install(|| {
            simd::WIDEST.set(level);
            let tokens = Tensor::<Flex, 1, Int>::arange(0..8 * 70, &FlexDevice).remainder_scalar(50).reshape([8, 70]);
            loss_and_grads(&model, &model.loss(tokens.clone(), tokens, &Pass::plain(&FlexDevice)))
        })
    };
    let widest = grads(simd::Level::Avx512);
    for level in [simd::Level::Avx2, simd::Level::Portable] {
        assert_eq!(grads(level), widest, "{level}");
    }
}

#[test]
fn a_product_on_several_threads_has_the_same_bits() {
    use kernels::linear;
    // Large enough to be split, and no multiple of a block.
    let [rows, from, to] = [517, 301, 403];
    let (x, w, grad) = (numbers(rows * from, 1), numbers(from * to, 2), numbers(rows * to, 3));
    let products = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let mut all = [vec![0.0; rows * to], vec![0.0; rows * from], vec![0.0; from * to]];
        let [y, of_x, of_w] = &mut all;
        pool.install(|| {
            linear::forward(&x, &w, None, [from, to], y);
            linear::input_grad(&grad, &w, [from, to], of_x);
            linear::weight_grad(&x, &grad, [from, to], of_w);
        });
        all.map(|values| values.into_iter().map(f32::to_bits).collect::<Vec<_>>())
    };
    let one = products(1);
    for threads in [2, 3, 5] {
        assert!(products(threads) == one, "{threads} threads");
    }
}
