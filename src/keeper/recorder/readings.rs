//! Readings of the probe: each for the listeners, a few for the store, and the most memory that a rung took.

use super::{Recorder, now_ms};
use crate::protocol::control::{ReadingRow, Update};
use crate::protocol::probe::Reading;
use std::time::{Duration, Instant};

/// Minimum interval between probe readings in the store.
const STORED_EVERY: Duration = Duration::from_secs(5);

impl Recorder {
    /// Records a probe reading.
    pub fn record_reading(&mut self, reading: Reading) {
        // A worker on the CPU uses none of the GPU that the machine may have.
        let vram = reading.gpu.as_ref().ok().and_then(|gpu| gpu.vram_worker_bytes.get()).filter(|bytes| *bytes > 0);
        let ram = reading.host.ram_worker_bytes.get();
        if let Some(record) = self.status.rungs.get_mut(self.attempt.rung).filter(|_| self.status.pid_worker.is_some())
        {
            record.vram_bytes = record.vram_bytes.max(vram);
            record.ram_bytes = record.ram_bytes.max(ram);
        }
        let row = ReadingRow { time_ms: now_ms(), reading };
        // Days of readings would fill the disk; listeners get every one.
        if self.sampled.is_none_or(|at| at.elapsed() >= STORED_EVERY) {
            self.sampled = Some(Instant::now());
            self.batch.samples.push(row.clone());
        }
        self.updates.push(Update::Reading(Box::new(row)));
    }
}
