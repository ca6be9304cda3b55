//! What lies in a run directory.

pub mod checkpoint;
