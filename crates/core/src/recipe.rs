//! The arithmetic of training, without tensors: the samples of each step, the learning rate, and the effect
//! of a change of knobs on the experiment.
//!
//! Everything runs on one clock: **samples consumed** (tokens for text). Schedules, evaluation and data order
//! are functions of that clock and the seed, never of the optimizer step, so a shift to another batch size
//! moves none of them. Also the names of metrics, which run files, messages and the store share, and whether a run learns.

pub mod batch;
pub mod class;
pub mod interval;
pub mod learning;
pub mod leave_out;
pub mod loss_scale;
pub mod metrics;
pub mod order;
pub mod phases;
pub mod plateau;
pub mod schedule;
pub mod seed;
