//! The arithmetic of training, without a tensor in sight: which samples a step takes, what the
//! learning rate is there, and what a change of knobs means for the experiment.
//!
//! One clock rules all of it: **samples consumed** (tokens for text). Schedules, evaluation and
//! the order of the data are functions of that clock and the seed, never of the optimizer step,
//! so that a shift to another batch size moves none of them.

pub mod batch;
pub mod class;
pub mod interval;
pub mod leave_out;
pub mod loss_scale;
pub mod order;
pub mod schedule;
pub mod seed;
