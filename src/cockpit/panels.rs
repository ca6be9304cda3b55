//! The parts of the screen, one file each: `render(frame, area, &state, &theme)`.

pub mod chart;
pub mod chart_bar;
pub mod checkpoints;
pub mod compare;
pub mod confusion;
pub mod curve;
pub mod difference;
pub mod footer;
pub mod gauges;
pub mod geometry;
pub mod header;
pub mod journal;
pub mod ladder;
pub mod layers;
pub mod learning;
pub mod log;
pub mod meters;
pub mod outcome;
pub mod progress;
pub mod ranks;
pub mod run_list;
pub mod rung;
pub mod samples;
pub mod tabs;
pub mod tiny;
pub mod verdict;
