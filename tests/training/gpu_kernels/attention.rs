//! Attention in tiles, beside one that Burn's operations compose.

use super::{FORMATS, Graph, Inner, no_nans, on_card, tensor};
use burn::backend::{Autodiff, Flex};
use burn::tensor::{
    FloatDType, Tensor, TensorData, activation,
    backend::{AutodiffBackend, Backend},
};
use downshift::burn;
use downshift::train::native::{
    Scope,
    ops::{self, AttentionShape},
};

/// Returns output and gradients of attention over `[batch, length, size]` of each head, from numbers in one format, computed
/// in another.
fn attend<B: AutodiffBackend>(
    [batch, length, size]: [usize; 3],
    heads: AttentionShape,
    dtype: FloatDType,
    attention: impl Fn([Tensor<B, 3>; 3]) -> Tensor<B, 3>,
    to: FloatDType,
) -> [TensorData; 4] {
    let exact = |heads: usize, salt| {
        let x = tensor::<B::InnerBackend, 3>([batch, length, heads * size], salt, dtype);
        Tensor::<B, 3>::from_inner(x.mul_scalar(0.5).cast(to))
    };
    let [count, shared] = [heads.heads, heads.kv_heads];
    let inputs = [(count, 3), (shared, 50), (shared, 99)].map(|(heads, salt)| exact(heads, salt).require_grad());
    let mixed = attention(inputs.clone());
    let grads = (mixed.clone() * exact(count, 8)).sum().backward();
    let [q, k, v] = inputs.map(|x| x.grad(&grads).unwrap());
    [mixed.inner(), q, k, v].map(|tensor| tensor.cast(FloatDType::F32).into_data())
}

/// Composes attention of Burn's operations.
fn composed<B: Backend>([q, k, v]: [Tensor<B, 3>; 3], heads: AttentionShape) -> Tensor<B, 3> {
    let ([batch, length, width], AttentionShape { heads, kv_heads }) = (q.dims(), heads);
    let size = width / heads;
    let split = |x: Tensor<B, 3>, of: usize| {
        let x = x.reshape([batch, length, of, size]).swap_dims(1, 2).unsqueeze_dim::<5>(2);
        x.repeat_dim(2, heads / of).reshape([batch, heads, length, size])
    };
    let mask = Tensor::<B, 2>::ones([length, length], &q.device()).triu(1) * -1e30;
    let scores = split(q, heads).matmul(split(k, kv_heads).swap_dims(2, 3)) / (size as f32).sqrt();
    let mixed = activation::softmax(scores + mask.unsqueeze(), 3).matmul(split(v, kv_heads));
    mixed.swap_dims(1, 2).reshape([batch, length, width])
}

#[test]
fn tiles_match_a_composed_one() {
    on_card("attention::tiles_match_a_composed_one", || {
        // Tiles of which the last is not full; a full one with two heads for each of keys; the largest head; one row.
        let [_, f16, bf16] = FORMATS;
        let cases = [
            ([2, 70, 16], [2, 1], f16),
            ([1, 139, 32], [2, 2], bf16),
            ([1, 64, 48], [4, 2], bf16),
            ([1, 20, 128], [2, 1], bf16),
            ([1, 1, 64], [1, 1], f16),
        ];
        for (shape, [heads, kv_heads], (dtype, apart)) in cases {
            let heads = AttentionShape { heads, kv_heads };
            let tiles = |inputs| ops::tiled_attention(inputs, |x| x, heads).unwrap();
            let run = || attend::<Graph>(shape, heads, dtype, tiles, dtype);
            let found = run();
            let expected =
                attend::<Autodiff<Flex>>(shape, heads, dtype, |inputs| composed(inputs, heads), FloatDType::F32);
            for ((found, expected), name) in found.iter().zip(&expected).zip(["mixed", "q", "k", "v"]) {
                // Weights and their gradients are rounded before they are multiplied again.
                let largest = expected.iter::<f32>().fold(0.0, |most: f32, value| most.max(value.abs()));
                let pairs = found.iter::<f32>().zip(expected.iter::<f32>());
                let most = pairs.map(|(found, expected)| (found - expected).abs()).fold(0.0, f32::max);
                let is_near = no_nans(found) && most <= 4.0 * apart * largest;
                assert!(is_near, "{name} {shape:?} {dtype:?}: {most} of {largest}");
            }
            assert_eq!(found, run(), "the same bits again");
        }
    });
}

#[test]
fn shapes_without_tiles_are_left_to_products() {
    on_card("attention::shapes_without_tiles_are_left_to_products", || {
        let heads = AttentionShape { heads: 2, kv_heads: 1 };
        let takes = |size: usize, dtype| {
            let [q, k, v] = [2, 1, 1].map(|heads| tensor::<Inner, 3>([1, 5, heads * size], heads, dtype));
            ops::tiled_attention([q, k, v], |x| x, heads).is_ok()
        };
        assert!(takes(16, FloatDType::BF16));
        let others = [(16, FloatDType::F32), (8, FloatDType::BF16), (144, FloatDType::BF16)];
        assert!(others.into_iter().all(|(size, dtype)| !takes(size, dtype)));
        let _operations = Scope::new(false);
        assert!(!takes(16, FloatDType::BF16));
    });
}
