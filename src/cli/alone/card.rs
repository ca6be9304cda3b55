//! A card while workers come and go on it: what each of them held at most, over what was in use before.

use crate::cli::{say, watch};
use crate::config::watch::Ending;
use crate::keeper::sentences::bytes;
use crate::protocol::probe::Reading;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(200);
/// A card that cannot be read is taken to be free of a worker that ended so long ago.
const BLIND_WAIT: Duration = Duration::from_secs(2);

/// The card. Readings come from a probe of its own for as long as this lives.
pub struct Card {
    readings: Receiver<Option<u64>>,
    /// In use before the worker that runs or comes next.
    before: Option<u64>,
    /// The most that was in use since then.
    most: Option<u64>,
    /// Whether there was a worker on it.
    worked: bool,
}

impl Card {
    /// Looks at the GPU of this NVML number from now on.
    pub fn watch(gpu: u32) -> Self {
        let (tell, readings) = mpsc::channel();
        thread::spawn(move || {
            watch::each_reading(&std::env::temp_dir(), gpu, LOOK, |reading| {
                reading.is_opening() || tell.send(used(&reading)).is_ok()
            })
        });
        Self { readings, before: None, most: None, worked: false }
    }

    /// Waits until the card is free of the worker before. What is in use after that belongs to others,
    /// and the next worker is measured over it.
    pub fn clear(&mut self, ending: &Ending) {
        let limit = self.before.map(|before| before.saturating_add(ending.vram_slack_mib << 20));
        let deadline = Instant::now() + ending.vram_wait.duration().unwrap_or_default();
        let mut now = self.look();
        while self.before.is_some()
            && now.zip(limit).is_none_or(|(now, limit)| now > limit)
            && Instant::now() < deadline
        {
            now = self.look();
        }
        if let Some((now, limit)) = now.zip(limit).filter(|(now, limit)| now > limit) {
            let more = bytes(now - limit + (ending.vram_slack_mib << 20));
            say(&format!(
                "the card holds {more} more than before the last worker, and does not let go; that is left out"
            ));
        }
        if self.worked && now.is_none() {
            thread::sleep(BLIND_WAIT);
        }
        (self.before, self.most, self.worked) = (now, None, true);
    }

    /// What is in use now, by a reading that began after this call.
    pub fn look(&mut self) -> Option<u64> {
        while let Ok(earlier) = self.readings.try_recv() {
            self.most = self.most.max(earlier);
        }
        // The first one to come may have begun before.
        let mut now = None;
        for _ in 0..2 {
            let Ok(reading) = self.readings.recv() else {
                // The probe has ended: nothing is known any more.
                self.before = None;
                return None;
            };
            (now, self.most) = (reading, self.most.max(reading));
        }
        now
    }

    /// The most that the worker has held.
    pub fn peak(&self) -> Option<u64> {
        Some(self.most?.saturating_sub(self.before?))
    }
}

fn used(reading: &Reading) -> Option<u64> {
    reading.gpu.as_ref().ok()?.vram_used_bytes.get()
}
