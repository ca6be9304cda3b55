//! Profiles of trainers: the documented command of each is recognised, its run file passes `check`, and rung `full` starts the
//! command as it was typed, with settings files as they are.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

mod commands;
mod own;
mod training;
