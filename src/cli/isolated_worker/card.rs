//! Measures GPU memory across workers: the peak of each of them, above the level before it.

use crate::cli::say;
use crate::config::watch::Ending;
use crate::diagnose::readings::each_reading;
use crate::format::bytes;
use crate::protocol::probe::Reading;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// Interval between two samples.
const INTERVAL: Duration = Duration::from_millis(200);
/// Time after a worker's end at which a GPU that cannot be read is assumed free.
const BLIND_WAIT: Duration = Duration::from_secs(2);

/// The GPU. A separate probe supplies readings as long as this lives.
pub struct Card {
    readings: Receiver<Option<u64>>,
    /// Memory in use before the current or next worker.
    before: Option<u64>,
    /// Peak memory in use since then.
    most: Option<u64>,
    /// Whether a worker has run on it.
    worked: bool,
}

impl Card {
    /// Starts to sample the GPU with this NVML index.
    pub fn watch(gpu: u32) -> Self {
        let (tell, readings) = mpsc::channel();
        thread::spawn(move || {
            each_reading(&std::env::temp_dir(), gpu, INTERVAL, |reading| {
                reading.is_opening() || tell.send(vram_in_use(&reading)).is_ok()
            })
        });
        Self { readings, before: None, most: None, worked: false }
    }

    /// Waits, up to a limit, until the GPU is free of the previous worker. Memory still in use then belongs
    /// to others and is the baseline for the next worker.
    pub fn clear(&mut self, ending: &Ending) {
        let limit = self.before.map(|before| before.saturating_add(ending.vram_slack_mib << 20));
        let deadline = Instant::now() + ending.vram_wait.duration().unwrap_or_default();
        let mut now = self.update_peak();
        while self.before.is_some()
            && now.zip(limit).is_none_or(|(now, limit)| now > limit)
            && Instant::now() < deadline
        {
            now = self.update_peak();
        }
        if let Some((now, limit)) = now.zip(limit).filter(|(now, limit)| now > limit) {
            let more = bytes(now - limit + (ending.vram_slack_mib << 20));
            say(&format!("the GPU still holds {more} more than before the last worker; this is not counted"));
        }
        if self.worked && now.is_none() {
            // A GPU that cannot be read has no event to wait for.
            thread::sleep(BLIND_WAIT);
        }
        (self.before, self.most, self.worked) = (now, None, true);
    }

    /// Returns the memory in use, from a reading that began after this call.
    pub fn update_peak(&mut self) -> Option<u64> {
        while let Ok(earlier) = self.readings.try_recv() {
            self.most = self.most.max(earlier);
        }
        // The first reading to arrive may have begun earlier.
        let mut now = None;
        for _ in 0..2 {
            let Ok(reading) = self.readings.recv() else {
                // The probe has ended, so nothing is known any more.
                self.before = None;
                return None;
            };
            (now, self.most) = (reading, self.most.max(reading));
        }
        now
    }

    /// Returns the worker's peak memory.
    pub fn peak(&self) -> Option<u64> {
        Some(self.most?.saturating_sub(self.before?))
    }
}

fn vram_in_use(reading: &Reading) -> Option<u64> {
    reading.gpu.as_ref().ok()?.vram_used_bytes.get()
}
