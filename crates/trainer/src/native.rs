//! Operations of the models with gradients derived by hand: loops over numbers on the CPU, CubeCL kernels on a GPU.
//!
//! ```text
//! tasks, optimizer ── ops ── operation ── runner ┬─ Flex          runs the kernel
//!                     │      a node of            └─ ShapeBackend  counts its outputs
//!                     │      Burn's graph     kernels  what is computed;  threads, simd  how
//!                     ├───── gpu              the same for a GPU: Burn's fused CUDA backend, and ShapeBackend
//!                     └─ None: another backend or number format, or `training.fused_kernels: false`;
//!                        the caller composes the operation of Burn's own
//! ```
//! [`applies`], and `gpu::applies` for a GPU, decide by backend and number format; an operation may also refuse a shape. A backend
//! is recognized by the type of its tensors, so models stay generic over all backends, and a kernel is compiled once instead of
//! once for each task.

#[cfg(feature = "cuda")]
mod gpu;
mod operation;
pub mod ops;
mod runner;

pub use downshift_kernels::{simd::level, threads::join_pool};
pub use operation::{applies, update_in_place};

use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static ENABLED: Cell<bool> = const { Cell::new(true) };
}

/// Enables or disables native operations on this thread until it is dropped: `training.fused_kernels`. Like the
/// number format, which Burn keeps with the device, it holds for all that a session computes.
#[derive(Debug)]
pub struct Scope {
    before: bool,
    /// Not sent to other threads.
    here: PhantomData<*const ()>,
}

impl Scope {
    /// Begins a scope.
    pub fn new(enabled: bool) -> Self {
        Self { before: ENABLED.replace(enabled), here: PhantomData }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        ENABLED.set(self.before);
    }
}

fn is_enabled() -> bool {
    ENABLED.get()
}

#[cfg(test)]
mod tests;
