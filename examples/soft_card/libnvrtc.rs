//! A shared library that plays NVRTC (`libnvrtc.so`): it compiles CUDA C++ with g++ for the soft card's driver.
//!
//! The PTX it returns is the source, with a heading (`ptx.rs`). The driver finds the compiled kernel in the cache, or
//! compiles it again.
#![expect(unsafe_code, reason = "a C interface: exported names, the caller's pointers")]

mod build;
mod nvrtc;
#[expect(dead_code, reason = "the driver reads it")]
mod ptx;
mod rewrite;
#[expect(dead_code, reason = "the compiler reads few of them")]
mod settings;
