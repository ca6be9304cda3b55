//! downshift keeps a training run alive.
pub mod cockpit;
pub mod config;
pub mod protocol;
pub mod recipe;
#[cfg(feature = "train")]
pub mod train;
