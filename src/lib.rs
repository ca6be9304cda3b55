//! downshift keeps a training run alive.
pub mod config;
pub mod keeper;
pub mod policy;
pub mod probe;
pub mod protocol;
pub mod recipe;
pub mod store;
#[cfg(feature = "train")]
pub mod train;
