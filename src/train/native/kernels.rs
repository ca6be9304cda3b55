//! Loops over numbers, forward and backward: what the operations compute, without tensors.

pub mod activation;
pub mod adamw;
pub mod attention;
pub mod convolution;
pub mod cross_entropy;
pub mod linear;
pub mod math;
pub mod matrix;
pub mod norm;
