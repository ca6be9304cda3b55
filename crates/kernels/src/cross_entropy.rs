//! Cross-entropy of rows of logits.

use crate::math::{exponentiate, largest};
use crate::simd::for_each_simd_level;
use crate::threads::{Rows, split_rows};

/// Fills `losses`, and turns logits into the gradients of the summed losses: softmax − onehot(target).
///
/// # Panics
/// Panics if a target is not the index of a class.
pub fn losses_and_grads(logits: &mut [f32], targets: &[f32], losses: &mut [f32]) {
    let width = logits.len() / targets.len().max(1);
    let outputs = [Rows { data: logits, width }, Rows { data: losses, width: 1 }];
    split_rows(targets.len(), 8 * width, outputs, &|range, [logits, losses]| {
        piece(logits, &targets[range], losses);
    });
}

for_each_simd_level! {
    fn piece(logits: &mut [f32], targets: &[f32], losses: &mut [f32]) {
        let width = logits.len() / targets.len();
        for ((row, target), loss) in logits.chunks_exact_mut(width).zip(targets).zip(losses) {
            assert!(*target >= 0.0, "target {target} is not the index of a class");
            let target = *target as usize;
            let highest = largest(row);
            let at_target = row[target] - highest;
            let sum = exponentiate(row, highest);
            *loss = sum.ln() - at_target;
            let share = 1.0 / sum;
            for value in row.iter_mut() {
                *value *= share;
            }
            row[target] -= 1.0;
        }
    }
}
