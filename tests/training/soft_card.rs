//! The soft card (examples/soft_card): kernels, streams, memory and faults, through the C interface.
#![expect(unsafe_code, reason = "calls a C interface")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "the helpers of a test fail by panicking, as the test does")]

mod card;
mod faults;
mod kernels;
mod matrices;
mod order;
mod small_float;
mod streams;
