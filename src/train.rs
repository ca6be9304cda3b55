//! The training worker: the only code that uses Burn.
//!
//! ```text
//! worker   the process: lock, file descriptors, panic hook, contract, exit code
//!    └─ session   one life of training, top down: data, model, resume, loop
//!          ├─ loader      micro-batches, prepared ahead of the step on threads
//!          ├─ step        forward, backward, one read-back, the guard's verdict
//!          ├─ groups      which parameters are trained, and under which rules
//!          ├─ optimizer   AdamW, moments keyed by parameter path, optionally in 8 bits or in host memory
//!          ├─ lora        adapters, and how they are kept across a change of rank
//!          ├─ evaluate    the validation set (compare: several checkpoints in turn)
//!          └─ saver       host copies to a durable checkpoint, on its own thread
//! foresee    memory estimate of a rung: trains it on `counting`, a backend that only counts
//! registry   tasks by name, type-erased;  backends   every type they are compiled for
//! device     device detection without panics
//! ```

pub mod backends;
mod compare;
pub mod counting;
#[cfg(feature = "cuda")]
mod cuda_probe;
pub mod device;
mod evaluate;
mod exit;
pub mod foresee;
mod groups;
#[cfg(feature = "cuda")]
mod kernels;
mod loader;
pub mod lora;
pub mod memory;
mod optimizer;
mod params;
mod pour;
pub mod registry;
mod resume;
mod saver;
pub mod selftest;
mod session;
mod step;
mod strike;
pub mod task;
pub mod tasks;
mod trainer;
pub mod worker;
