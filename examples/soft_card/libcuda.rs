//! A shared library that plays the CUDA driver (`libcuda.so.1`): a GPU made of a CPU, for tests on machines without one.
//!
//! It makes the calls of cudarc 0.19 and cubecl-cuda 0.10. Kernels are compiled by g++ (`build.rs`) and run on the
//! thread of their stream, so a launch returns at once and its errors arrive at the next call that waits for it.
//!
//! `settings.rs` describes the environment variables, `driver/faults.rs` the faults on order, `driver/ledger.rs` the
//! memory that processes share.
#![expect(unsafe_code, reason = "a C interface: exported names, the caller's pointers, kernels and their stacks")]

mod build;
mod driver;
#[expect(dead_code, reason = "the compiler writes it")]
mod ptx;
mod rewrite;
mod settings;
mod trace;
