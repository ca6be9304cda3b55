//! The tasks shipped with downshift, built on the same traits as user-defined tasks.

pub(crate) mod files;
pub mod lm;
pub mod vision;
