//! Keys and numbers that a file stores together, as a reading.

use super::Reading;
use super::names::{self, Role};

/// Keys that say when or where, not what was measured.
const SKIPPED: [&str; 8] =
    ["_runtime", "_timestamp", "timestamp", "time", "wall_time", "date", "train/total_flos", "total_flos"];
/// Keys read of one record.
const MAX_KEYS: usize = 4 * names::MAX_NAMES;

/// Collects the keys of one record.
#[derive(Debug, Default)]
pub struct Record {
    reading: Reading,
    found: Vec<(String, f64)>,
    /// How certain the step is.
    rank: u8,
}

impl Record {
    /// Begins the record of a step that the file stores beside it.
    pub fn of_step(step: Option<u64>) -> Self {
        Self {
            reading: Reading { step: step.filter(|step| *step <= names::MAX_COUNT), ..Reading::default() },
            found: Vec::new(),
            rank: if step.is_some() { 4 } else { 0 },
        }
    }

    /// Adds a number.
    pub fn add(&mut self, key: &str, value: f64) {
        let key = names::sanitise(key);
        if SKIPPED.contains(&key.as_str()) || self.found.len() >= MAX_KEYS {
            return;
        }
        let rank = match key.as_str() {
            // The count of calls to W&B.
            "_step" => 1,
            _ if key.ends_with("global_step") => 3,
            _ => 2,
        };
        match names::role(&key) {
            _ if rank == 1 => self.take_step(value, rank),
            Role::Step => self.take_step(value, rank),
            Role::TotalSteps => self.reading.total_steps = whole(value),
            Role::Epoch => self.reading.epoch = Some(value).filter(|epoch| epoch.is_finite()),
            Role::Known(_) | Role::Own => self.found.push((key, value)),
        }
    }

    fn take_step(&mut self, value: f64, rank: u8) {
        if let Some(step) = whole(value).filter(|_| rank > self.rank) {
            (self.reading.step, self.rank) = (Some(step), rank);
        }
    }

    /// Returns the reading; none if it has no values.
    pub fn finish(self) -> Option<Reading> {
        let values = names::canonical_values(self.found);
        (!values.is_empty()).then_some(Reading { values, ..self.reading })
    }
}

/// Returns a number that is a count.
fn whole(value: f64) -> Option<u64> {
    (value.fract() == 0.0 && (0.0..=names::MAX_COUNT as f64).contains(&value)).then_some(value as u64)
}
