//! The real program trains on the soft card (examples/soft_card) as on a GPU.
#![cfg(feature = "cuda")]
#![cfg_attr(feature = "cuda", expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking"))]

#[path = "soft_card_training/caches.rs"]
mod caches;
#[path = "soft_card_training/card.rs"]
mod card;
#[path = "soft_card_training/cold_start.rs"]
mod cold_start;
#[path = "soft_card_training/faults.rs"]
mod faults;
#[path = "soft_card_training/gradients.rs"]
mod gradients;
mod helper;
#[path = "soft_card_training/holders.rs"]
mod holders;
#[path = "soft_card_training/ladders.rs"]
mod ladders;
#[path = "soft_card/libraries.rs"]
mod libraries;
#[path = "soft_card_training/memory.rs"]
mod memory;
#[path = "soft_card_training/resume.rs"]
mod resume;
#[path = "soft_card_training/trace.rs"]
mod trace;
