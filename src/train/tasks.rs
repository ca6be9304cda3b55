//! The tasks that ship with downshift, on the same traits as a person's own.

pub(crate) mod files;
pub mod lm;
pub mod vision;
