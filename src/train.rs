//! The training worker: the only code that knows Burn.

pub mod task;
pub mod tasks;
