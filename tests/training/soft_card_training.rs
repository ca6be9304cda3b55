//! The real program trains on the soft card (examples/soft_card) as on a GPU.
#![cfg(feature = "cuda")]
#![cfg_attr(feature = "cuda", expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking"))]

mod caches;
mod card;
mod cold_start;
mod faults;
mod gradients;
mod holders;
mod ladders;
mod memory;
mod resume;
mod trace;
