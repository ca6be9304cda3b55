//! Real training on the CPU with a model small enough for hundreds of runs: exact resume, shifts, the guard,
//! checkpoints, and the worker as a process.
#![cfg(feature = "train")]

#[cfg(test)]
#[path = "train/adapters.rs"]
mod adapters;
#[cfg(test)]
#[path = "train/blocks.rs"]
mod blocks;
#[cfg(test)]
#[path = "train/groups.rs"]
mod groups;
#[cfg(test)]
#[path = "train/guard.rs"]
mod guard;
#[cfg(test)]
#[path = "train/harness.rs"]
mod harness;
#[cfg(test)]
#[path = "train/identity.rs"]
mod identity;
#[cfg(test)]
#[path = "train/ladders.rs"]
mod ladders;
#[cfg(test)]
#[path = "train/ledger.rs"]
mod ledger;
#[cfg(test)]
#[path = "train/marked.rs"]
mod marked;
#[cfg(test)]
#[path = "train/moments.rs"]
mod moments;
#[cfg(test)]
#[path = "train/plateau.rs"]
mod plateau;
#[cfg(test)]
#[path = "train/poison.rs"]
mod poison;
#[cfg(test)]
#[path = "train/process.rs"]
mod process;
#[cfg(test)]
#[path = "train/resume.rs"]
mod resume;
#[cfg(test)]
#[path = "train/samples.rs"]
mod samples;
#[cfg(test)]
#[path = "train/search.rs"]
mod search;
#[cfg(test)]
#[path = "train/shapes.rs"]
mod shapes;
#[cfg(test)]
#[path = "train/shift.rs"]
mod shift;
#[cfg(test)]
#[path = "train/tiny.rs"]
mod tiny;

/// Setup of the shared tests, which run in 32 bits here and in 16 bits elsewhere.
#[cfg(test)]
fn prepare() {}
