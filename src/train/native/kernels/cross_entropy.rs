//! Cross-entropy of rows of logits.

use super::super::simd::for_each_simd_level;
use super::super::threads::{Rows, split_rows};
use super::math::{exp, largest};

/// Fills `losses`, and turns logits into the gradients of the summed losses: softmax − onehot(target).
/// Targets are whole numbers.
pub fn losses_and_grads(logits: &mut [f32], targets: &[f32], losses: &mut [f32]) {
    let width = logits.len() / targets.len().max(1);
    let outputs = [Rows { data: logits, width }, Rows { data: losses, width: 1 }];
    split_rows(targets.len(), 8 * width, outputs, &|range, [logits, losses]| {
        piece(logits, &targets[range], losses);
    });
}

for_each_simd_level! {
    pub fn piece(logits: &mut [f32], targets: &[f32], losses: &mut [f32]) {
        let width = logits.len() / targets.len();
        for ((row, target), loss) in logits.chunks_exact_mut(width).zip(targets).zip(losses) {
            let target = *target as usize;
            let highest = largest(row);
            let at_target = row[target] - highest;
            let mut total = [0.0_f32; super::super::simd::LANES];
            let (chunks, rest) = row.as_chunks_mut::<{ super::super::simd::LANES }>();
            for chunk in chunks {
                for (value, total) in chunk.iter_mut().zip(&mut total) {
                    *value = exp(*value - highest);
                    *total += *value;
                }
            }
            let mut sum: f32 = total.iter().sum();
            for value in rest {
                *value = exp(*value - highest);
                sum += *value;
            }
            *loss = sum.ln() - at_target;
            let share = 1.0 / sum;
            row.iter_mut().for_each(|value| *value *= share);
            row[target] -= 1.0;
        }
    }
}
