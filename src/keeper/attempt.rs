//! What is known of the attempt under way.

use crate::protocol::control::StepRow;
use crate::protocol::pace::{Pace, Pacer};

/// The attempt under way.
#[derive(Debug, Default)]
pub struct Attempt {
    /// Its number.
    pub id: u64,
    /// Its rung.
    pub rung: usize,
    pacer: Pacer,
}

impl Attempt {
    /// An attempt that begins.
    pub fn new(id: u64, rung: usize) -> Self {
        Self { id, rung, ..Self::default() }
    }

    /// A step was taken.
    pub fn stepped(&mut self, row: &StepRow) {
        self.pacer.push(row);
    }

    /// Its speed, once there are two steps.
    pub fn pace(&self) -> Option<Pace> {
        self.pacer.pace()
    }
}
