//! The parts of the screen, one file each: `render(frame, area, &state, &theme)`.

pub mod checkpoints;
pub mod curve;
pub mod footer;
pub mod gauges;
pub mod grad_norm;
pub mod header;
pub mod journal;
pub mod ladder;
pub mod log;
pub mod loss;
pub mod meters;
pub mod progress;
pub mod step_time;
pub mod tiny;
pub mod trends;
pub mod verdict;
