//! The soft card (examples/soft_card): kernels, streams, memory and faults, through the C interface.
#![expect(unsafe_code, reason = "calls a C interface")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "the helpers of a test fail by panicking, as the test does")]

#[path = "soft_card/card.rs"]
mod card;
#[path = "soft_card/faults.rs"]
mod faults;
#[path = "soft_card/kernels.rs"]
mod kernels;
#[path = "soft_card/libraries.rs"]
mod libraries;
#[path = "soft_card/matrices.rs"]
mod matrices;
#[path = "soft_card/order.rs"]
mod order;
#[path = "soft_card/small_float.rs"]
mod small_float;
#[path = "soft_card/streams.rs"]
mod streams;
