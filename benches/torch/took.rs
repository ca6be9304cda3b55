//! The figures of a process, which prints them as its last line.

use serde::{Deserialize, Serialize};
use std::process::{Command, Stdio};

/// A result of the benchmark; any error ends it.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The largest difference between two losses of the same step, relative to a loss above 1.
pub const MOST_APART: f64 = 1e-4;
/// The steps whose losses are compared, before the ones that are timed.
pub const COMPARED: usize = 20;

/// Figures of one process.
#[derive(Debug, Serialize, Deserialize)]
pub struct Took {
    /// The losses of the first steps.
    pub losses: Vec<f64>,
    /// The median time of a step, in seconds.
    pub step_s: f64,
    /// The peak of resident memory above that before the model.
    pub peak_bytes: u64,
}

/// Starts a program and reads its figures.
pub fn read_figures(command: &mut Command) -> Outcome<Took> {
    let out = command.stderr(Stdio::inherit()).output()?;
    if !out.status.success() {
        return Err(format!("{command:?} ended with {}", out.status).into());
    }
    let text = String::from_utf8(out.stdout)?;
    Ok(serde_json::from_str(text.lines().last().unwrap_or_default())?)
}

/// Returns the middle of these values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
