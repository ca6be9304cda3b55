//! Any command as a trainer: plain scripts, the companion, ranks, nodes, jobs, trials.

mod command;
mod companion;
mod companion_levels;
mod harness;
#[path = "../helper/mod.rs"]
mod helper;
mod job;
mod measure;
mod nodes;
mod ranks;
mod trial;
