//! Real training on the CPU with a model small enough for hundreds of runs: exact resume, shifts,
//! the guard, checkpoints, and the worker as a process.
#![cfg(feature = "train")]

#[path = "train/guard.rs"]
mod guard;
#[path = "train/harness.rs"]
mod harness;
#[path = "train/process.rs"]
mod process;
#[path = "train/resume.rs"]
mod resume;
#[path = "train/shapes.rs"]
mod shapes;
#[path = "train/shift.rs"]
mod shift;
#[path = "train/tiny.rs"]
mod tiny;
