//! Run files, themes and keymaps: parses text into validated values, or into a list of every error.
//!
//! ```text
//! text ─ yaml ─▶ tree ─ typed ─▶ RunFile ─ ladder ─▶ one Preset per rung ─ check ─▶ Run
//!          └──────── problems, each with the line and column of the error ──────────┘
//! ```

pub mod architecture;
pub mod best;
pub mod check;
pub mod climb;
pub mod command;
pub mod document;
pub mod groups;
pub mod integrations;
pub mod knobs;
pub mod ladder;
pub mod mildness;
pub mod moments;
pub mod numerics;
pub mod plateau;
pub mod problem;
pub mod quality;
mod reach;
pub mod run;
pub mod settings_file;
pub mod trust;
pub mod typed;
pub mod units;
pub mod variants;
pub mod watch;
pub mod yaml;
