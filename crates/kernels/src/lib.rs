//! Loops over numbers, forward and backward: what the trainer's operations compute on the CPU, without tensors.
//!
//! The same inputs give the same bits on any number of [`threads`] and at every [`simd`] level. A crate of its own, since only
//! optimized loops are quick: the development profile optimizes this crate and none of the others in the workspace.

pub mod activation;
pub mod adamw;
pub mod attention;
pub mod convolution;
pub mod cross_entropy;
pub mod linear;
pub mod math;
pub mod matrix;
pub mod norm;
pub mod simd;
pub mod threads;

#[cfg(test)]
mod tests;
