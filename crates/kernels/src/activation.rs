//! GELU, exact and by tanh, and SwiGLU.

use crate::math::{normal, sigmoid, tanh};
use crate::simd::for_each_simd_level;
use crate::threads::{Rows, split_rows};

/// The numbers that a thread takes at once.
const AT_ONCE: usize = 1 << 10;

/// A GELU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gelu {
    /// x Φ(x).
    Exact,
    /// ½ x (1 + tanh(√(2/π) (x + 0.044715 x³))).
    Tanh,
}

/// √(2/π).
pub const TANH_SCALE: f32 = 0.797_884_6;
/// The factor of x³.
pub const CUBIC: f32 = 0.044_715;

/// Fills `y` with GELU of x.
pub fn gelu(x: &[f32], kind: Gelu, y: &mut [f32]) {
    in_pieces(x.len(), [y], |range, [y]| gelu_piece(&x[range], kind, y));
}

for_each_simd_level! {
    fn gelu_piece(x: &[f32], kind: Gelu, y: &mut [f32]) {
        match kind {
            Gelu::Exact => y.iter_mut().zip(x).for_each(|(y, x)| *y = x * normal(*x)[0]),
            Gelu::Tanh => y.iter_mut().zip(x).for_each(|(y, x)| {
                *y = 0.5 * x * (1.0 + tanh(TANH_SCALE * (x + CUBIC * x * x * x)));
            }),
        }
    }
}

/// Multiplies `grad`, that of y, by the slope at x.
pub fn gelu_grad(x: &[f32], kind: Gelu, grad: &mut [f32]) {
    in_pieces(x.len(), [grad], |range, [grad]| gelu_grad_piece(&x[range], kind, grad));
}

for_each_simd_level! {
    fn gelu_grad_piece(x: &[f32], kind: Gelu, grad: &mut [f32]) {
        match kind {
            Gelu::Exact => grad.iter_mut().zip(x).for_each(|(grad, x)| {
                let [below, density] = normal(*x);
                *grad *= below + x * density;
            }),
            Gelu::Tanh => grad.iter_mut().zip(x).for_each(|(grad, x)| {
                let bent = tanh(TANH_SCALE * (x + CUBIC * x * x * x));
                let slope = TANH_SCALE * (1.0 + 3.0 * CUBIC * x * x);
                *grad *= 0.5 * (1.0 + bent) + 0.5 * x * (1.0 - bent * bent) * slope;
            }),
        }
    }
}

/// Fills `y` with silu(gate) · up.
pub fn swiglu([gate, up]: [&[f32]; 2], y: &mut [f32]) {
    in_pieces(gate.len(), [y], |range, [y]| swiglu_piece([&gate[range.clone()], &up[range]], y));
}

for_each_simd_level! {
    fn swiglu_piece(inputs: [&[f32]; 2], y: &mut [f32]) {
        let [gate, up] = inputs;
        for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
            *y = gate * sigmoid(*gate) * up;
        }
    }
}

/// Fills the gradients of gate and up from `grad`, that of y.
pub fn swiglu_grad([gate, up, grad]: [&[f32]; 3], grads: [&mut [f32]; 2]) {
    in_pieces(gate.len(), grads, |range, [of_gate, of_up]| {
        swiglu_grad_piece([&gate[range.clone()], &up[range.clone()], &grad[range]], of_gate, of_up);
    });
}

for_each_simd_level! {
    fn swiglu_grad_piece(inputs: [&[f32]; 3], of_gate: &mut [f32], of_up: &mut [f32]) {
        let [gate, up, grad] = inputs;
        let inputs = gate.iter().zip(up).zip(grad);
        for ((of_gate, of_up), ((gate, up), grad)) in of_gate.iter_mut().zip(of_up).zip(inputs) {
            let open = sigmoid(*gate);
            *of_gate = grad * up * open * (1.0 + gate * (1.0 - open));
            *of_up = grad * gate * open;
        }
    }
}

/// Splits numbers among the threads.
fn in_pieces<const N: usize>(
    count: usize,
    outputs: [&mut [f32]; N],
    work: impl Fn(std::ops::Range<usize>, [&mut [f32]; N]) + Sync,
) {
    let whole = count / AT_ONCE;
    let mut rest = Vec::with_capacity(N);
    let outputs = outputs.map(|output| {
        let (first, last) = output.split_at_mut(whole * AT_ONCE);
        rest.push(last);
        Rows { data: first, width: AT_ONCE }
    });
    // An exponential costs about as much as sixteen other numbers.
    split_rows(whole, 16 * AT_ONCE, outputs, &|range, outputs| {
        work(range.start * AT_ONCE..range.end * AT_ONCE, outputs);
    });
    let mut rest = rest.into_iter();
    work(whole * AT_ONCE..count, std::array::from_fn(|_| rest.next().unwrap_or_default()));
}
