//! Matrix instructions of a warp: wmma, mma with ldmatrix.

use super::card::Argument::Memory;
use super::card::{Card, Launch, on_card};
use super::small_float::{BFLOAT16, Format, HALF};
use std::ptr;

const SOURCE: &str = include_str!("../../soft_card/matrix.cu");
const CARD: [(&str, &str); 1] = [("CAPABILITY", "8.0")];

fn run(card: &Card, name: &str, memory: [&u64; 3]) {
    let (function, stream) = (card.load_kernel(SOURCE, name), ptr::null_mut());
    let arguments = memory.map(Memory);
    let launch = Launch { function, blocks: 1, threads: 32, shared_bytes: 1024, stream, arguments: &arguments };
    assert_eq!((card.launch(&launch), card.synchronize(stream)), (0, 0), "{name}");
}

/// Small whole numbers, for which every sum is exact.
fn matrix(count: usize, factor: usize, modulus: usize) -> Vec<f32> {
    (0..count).map(|i| (i * factor % modulus) as f32 - (modulus / 2) as f32).collect()
}

fn pack(values: &[f32], format: Format) -> Vec<u16> {
    values.iter().map(|value| format.encode(f64::from(*value))).collect()
}

/// Returns rows × columns sums of `depth` products.
fn product(
    [rows, columns, depth]: [usize; 3],
    a: impl Fn(usize, usize) -> f32,
    b: impl Fn(usize, usize) -> f32,
) -> Vec<f32> {
    let element = |i: usize| (0..depth).map(|k| a(i / columns, k) * b(k, i % columns)).sum();
    (0..rows * columns).map(element).collect()
}

#[test]
fn mma_and_ldmatrix_multiply_halves() {
    on_card("matrices::mma_and_ldmatrix_multiply_halves", &CARD, |card| {
        let (a, b) = (matrix(256, 37, 11), matrix(128, 13, 7));
        let memory = [card.put(&pack(&a, HALF)), card.put(&pack(&b, HALF)), card.put(&[0_f32; 128])];
        run(card, "mma_half", memory.each_ref());
        let expected = product([16, 8, 16], |r, k| a[16 * r + k], |k, c| b[8 * k + c]);
        let expected: Vec<f32> = expected.into_iter().map(|sum| sum + 1.0).collect();
        assert_eq!(card.get::<f32>(memory[2], 128), expected);
    });
}

#[test]
fn mma_of_tf32_ignores_the_lowest_bits() {
    on_card("matrices::mma_of_tf32_ignores_the_lowest_bits", &CARD, |card| {
        let (a, b) = (matrix(128, 29, 13), matrix(64, 11, 9));
        let blurred: Vec<f32> = a.iter().map(|value| f32::from_bits(value.to_bits() | 0xfff)).collect();
        let memory = [card.put(&blurred), card.put(&b), card.put(&[0_f32; 128])];
        run(card, "mma_tf32", memory.each_ref());
        let expected = product([16, 8, 8], |r, k| a[8 * r + k], |k, c| b[8 * k + c]);
        assert_eq!(card.get::<f32>(memory[2], 128), expected);
    });
}

#[test]
fn wmma_multiplies_halves_and_bfloats() {
    on_card("matrices::wmma_multiplies_halves_and_bfloats", &CARD, |card| {
        let (a, b) = (matrix(256, 53, 17), matrix(256, 19, 15));
        // The second matrix is stored by columns, and the product is added twice.
        let expected = product([16, 16, 16], |r, k| 2.0 * a[16 * r + k], |k, c| b[16 * c + k]);
        for (name, format) in [("wmma_half", HALF), ("wmma_bfloat16", BFLOAT16)] {
            let memory = [card.put(&pack(&a, format)), card.put(&pack(&b, format)), card.put(&[0_f32; 256])];
            run(card, name, memory.each_ref());
            assert_eq!(card.get::<f32>(memory[2], 256), expected, "{name}");
        }
    });
}
