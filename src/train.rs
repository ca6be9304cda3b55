//! The training worker: the only code that knows Burn.
//!
//! ```text
//! worker   the process: lock, file descriptors, panic hook, contract, exit code
//!    └─ session   one life of training, top down: data, model, resume, loop
//!          ├─ loader      micro-batches, prepared ahead of the step by threads
//!          ├─ step        forward, backward, one read-back, the guard's verdict
//!          ├─ groups      which parameters are trained, and by which rules
//!          ├─ optimizer   AdamW, moments keyed by parameter path, in 8 bits or host memory where asked
//!          ├─ lora        adapters, and how they survive a change of rank
//!          ├─ evaluate    the validation set (compare: of one checkpoint after another)
//!          └─ saver       host copies to a durable checkpoint, on a thread of its own
//! foresee    what a rung will take of memory, by training it on counting: a backend that only counts
//! registry   tasks by name, their types erased;  backends   every type they are compiled for
//! device     which device there really is, found out without a panic
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
pub mod worker;
