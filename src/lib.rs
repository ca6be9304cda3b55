//! downshift keeps a training run alive.
pub mod config;
pub mod protocol;
pub mod recipe;
pub mod store;
#[cfg(feature = "train")]
pub mod train;
