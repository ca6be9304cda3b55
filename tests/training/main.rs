//! Real training: on the CPU, and on the simulated card (examples/soft_card).

mod campaign;
mod checkpoints;
mod gpu_kernels;
#[path = "../helper/mod.rs"]
mod helper;
mod ladders;
mod libraries;
mod own_task;
mod plan;
mod quality;
mod run;
mod soft_card;
mod soft_card_training;
mod train;
