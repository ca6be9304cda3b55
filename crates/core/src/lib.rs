//! Run files, the messages between the processes, the run directory: the parts that the program and its trainer share.
//!
//! ```text
//! trainer    the seam between the command line and a trainer
//! store      run directories, run.db, checkpoints
//! outlook    what can be done with a run now
//! protocol   messages between the processes
//! config     run files
//! recipe     the arithmetic of training
//! process_tree, untrusted, format, wsl
//! ```
//!
//! The program `downshift` and its trainer stand on this crate. Its API follows their needs: it has no promise of its own.

pub mod config;
pub mod format;
pub mod outlook;
pub mod process_tree;
pub mod protocol;
pub mod recipe;
pub mod store;
pub mod trainer;
pub mod untrusted;
pub mod wsl;
