//! Real training on the CPU with a model small enough for hundreds of runs: exact resume, shifts, the guard,
//! checkpoints, and the worker as a process.
#![cfg(feature = "train")]
#![cfg_attr(
    feature = "train",
    expect(clippy::unwrap_used, clippy::panic, reason = "the helpers of a test fail by panicking")
)]

mod adapters;
mod blocks;
mod groups;
mod guard;
mod harness;
mod identity;
mod ladders;
mod ledger;
mod marked;
mod moments;
mod plateau;
mod poison;
mod process;
mod resume;
mod samples;
mod search;
mod shapes;
mod shift;
mod task_weights;
mod tiny;

/// Setup of the shared tests, which run in 32 bits here and in 16 bits elsewhere.
#[cfg(test)]
fn prepare() {}
