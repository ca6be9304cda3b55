//! The trainer of downshift: its tasks and the process that trains them. The only code that uses Burn.
//!
//! ```text
//! worker   the process: lock, stdout for events, panic hook, orders, exit code
//!    └─ session   one attempt, top down: data, model, resume, loop
//!          ├─ loader       micro-batches, prepared ahead of the step on threads
//!          ├─ step         forward, backward, one read-back, the guard's verdict
//!          ├─ param_rules  the trained parameters and their rules
//!          ├─ optimizer    AdamW, moments keyed by parameter path, optionally in 8 bits or in host memory
//!          ├─ lora         adapters, and their conversion to another rank
//!          ├─ evaluate     the validation set (checkpoint_eval: several checkpoints in turn)
//!          ├─ samples      what the model does with held-out samples, kept with the run
//!          ├─ layers       norms, update ratios and dead units, read off an update
//!          └─ saver        host copies to a durable checkpoint, on its own thread
//! job              the input of an attempt;  failure   errors as they leave the process (device_failure: of a device)
//! memory_estimate  memory of a rung: trains it on `shape_backend`, which tracks shapes only
//! registry         tasks by name, type-erased;  backends   every type they are compiled for
//! native           operations of the models with gradients derived by hand: loops on the CPU, kernels on a GPU
//! device           device detection without panics
//! ```

pub mod backends;
mod checkpoint_eval;
#[cfg(feature = "cuda")]
mod cuda_probe;
pub mod device;
mod device_failure;
#[cfg(feature = "cuda")]
mod driver_error;
mod evaluate;
mod exit;
pub mod failure;
mod first_checkpoint;
#[cfg(feature = "cuda")]
mod gpu_pages;
#[cfg(feature = "cuda")]
mod gpu_runtime;
mod inject;
mod inject_grad;
pub mod job;
#[cfg(feature = "cuda")]
mod kernel_cache;
mod kernel_start;
pub mod layers;
mod load_values;
mod loader;
pub mod lora;
pub mod memory;
pub mod memory_estimate;
pub mod native;
mod optimizer;
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub mod own_kernels;
pub mod param_rules;
mod params;
pub mod quality;
mod recompute;
pub mod registry;
mod resume;
pub mod samples;
mod saver;
mod sections;
pub mod self_test;
mod session;
pub mod shape_backend;
mod step;
mod stored_tensor;
pub mod task;
pub mod tasks;
mod trainer;
pub mod worker;

pub use burn;
