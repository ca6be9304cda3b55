//! Measures GPU memory across attempts: the peak of each. Of a command's processes the driver may report what each
//! holds; otherwise the peak is that of the whole card, above the level before the attempt.

use crate::cli::say;
use crate::config::watch::Ending;
use crate::diagnose::readings::each_reading;
use crate::format::bytes;
use crate::protocol::probe::Reading;
use crate::wsl::gpu_release_time;
use std::collections::HashSet;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// Interval between two samples.
const INTERVAL: Duration = Duration::from_millis(200);

/// Memory of a GPU at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Vram {
    used: Option<u64>,
    /// The processes that the driver lists, with their bytes.
    processes: Vec<(u32, Option<u64>)>,
}

/// The peak of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peak {
    /// The bytes.
    pub bytes: u64,
    /// They are those of the whole card, since the driver does not report them per process.
    pub of_card: bool,
}

/// The driver's report on the processes of an attempt.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum OfProcesses {
    /// It has named none of them.
    #[default]
    Unnamed,
    /// The peak of their sum.
    Bytes(u64),
    /// It names them, and does not say what they hold.
    Unreported,
}

/// The GPU. A separate probe supplies readings as long as this lives.
pub struct Card {
    readings: Receiver<Vram>,
    /// Memory in use before the current or next attempt.
    before: Option<u64>,
    /// Peak memory in use since then.
    most: Option<u64>,
    /// The processes of the attempt, alive or not.
    family: HashSet<u32>,
    ours: OfProcesses,
    /// Whether an attempt has run on it.
    worked: bool,
}

impl Card {
    /// Starts to sample the GPU with this NVML index.
    pub fn watch(gpu: u32) -> Self {
        let (tell, readings) = mpsc::channel();
        thread::spawn(move || {
            each_reading(&std::env::temp_dir(), gpu, INTERVAL, |reading| {
                reading.is_opening() || tell.send(Vram::of(&reading)).is_ok()
            })
        });
        Self::reading_from(readings)
    }

    fn reading_from(readings: Receiver<Vram>) -> Self {
        Self { readings, before: None, most: None, family: HashSet::new(), ours: OfProcesses::default(), worked: false }
    }

    /// Waits, up to a limit or until `is_over`, until the GPU is free of the previous attempt. Memory still in use
    /// then belongs to others and is the baseline for the next attempt.
    pub fn clear(&mut self, ending: &Ending, is_over: impl Fn() -> bool) {
        let limit = self.before.map(|before| before.saturating_add(ending.vram_slack_mib << 20));
        let deadline = Instant::now() + ending.vram_wait.duration();
        let mut now = self.update_peak();
        while self.before.is_some()
            && now.zip(limit).is_none_or(|(now, limit)| now > limit)
            && Instant::now() < deadline
            && !is_over()
        {
            now = self.update_peak();
        }
        if let Some((now, limit)) = now.zip(limit).filter(|(now, limit)| now > limit) {
            let more = bytes(now - limit + (ending.vram_slack_mib << 20));
            say(&format!("the GPU still holds {more} more than before the last worker; this is not counted"));
        }
        if self.worked && now.is_none() {
            // A GPU that cannot be read has no event to wait for.
            thread::sleep(gpu_release_time());
        }
        (self.before, self.most, self.worked) = (now, None, true);
        (self.family, self.ours) = (HashSet::new(), OfProcesses::default());
    }

    /// Adds processes to the attempt, and takes the readings that are there.
    pub fn follow(&mut self, family: impl Iterator<Item = u32>) {
        self.family.extend(family);
        while let Ok(reading) = self.readings.try_recv() {
            self.take(&reading);
        }
    }

    /// Returns the memory in use, from a reading that began after this call.
    pub fn update_peak(&mut self) -> Option<u64> {
        self.follow(std::iter::empty());
        // The first reading to arrive may have begun earlier.
        let mut now = None;
        for _ in 0..2 {
            let Ok(reading) = self.readings.recv() else {
                // The probe has ended, so nothing is known any more.
                self.before = None;
                return None;
            };
            self.take(&reading);
            now = reading.used;
        }
        now
    }

    fn take(&mut self, reading: &Vram) {
        self.most = self.most.max(reading.used);
        let ours = reading.processes.iter().filter(|(pid, _)| self.family.contains(pid));
        let sum = ours.map(|(_, bytes)| *bytes).reduce(|sum, more| Some(sum?.saturating_add(more?)));
        self.ours = match (self.ours, sum) {
            (OfProcesses::Unreported, _) | (_, Some(None)) => OfProcesses::Unreported,
            (OfProcesses::Bytes(most), Some(Some(now))) => OfProcesses::Bytes(most.max(now)),
            (OfProcesses::Unnamed, Some(Some(now))) => OfProcesses::Bytes(now),
            (before, None) => before,
        };
    }

    /// Returns the attempt's peak memory.
    pub fn peak(&self) -> Option<Peak> {
        if let OfProcesses::Bytes(bytes) = self.ours {
            return Some(Peak { bytes, of_card: false });
        }
        Some(Peak { bytes: self.most?.saturating_sub(self.before?), of_card: true })
    }
}

impl Vram {
    fn of(reading: &Reading) -> Self {
        let Ok(gpu) = &reading.gpu else { return Self::default() };
        let listed = gpu.more.processes.value().into_iter().flatten();
        let processes = listed.map(|process| (process.pid, process.vram_bytes.get())).collect();
        Self { used: gpu.vram_used_bytes.get(), processes }
    }
}

#[cfg(test)]
mod tests {
    use super::{Card, Peak, Vram};
    use std::sync::mpsc;

    /// Bytes in use on the card, and what the driver lists.
    type Listed<'a> = (u64, &'a [(u32, Option<u64>)]);

    fn peak_of(readings: &[Listed<'_>], family: &[u32]) -> Option<Peak> {
        let (tell, heard) = mpsc::channel();
        let mut card = Card::reading_from(heard);
        card.before = Some(100);
        for (used, processes) in readings {
            tell.send(Vram { used: Some(*used), processes: processes.to_vec() }).unwrap();
        }
        card.follow(family.iter().copied());
        card.peak()
    }

    #[test]
    fn the_peak_is_that_of_the_processes_or_else_of_the_card() {
        let of = |bytes| Some(Peak { bytes, of_card: false });
        let card = |bytes| Some(Peak { bytes, of_card: true });
        let [mine, other, more] = [(7, Some(30)), (9, Some(500)), (8, Some(25))];
        assert_eq!(peak_of(&[(700, &[mine, other]), (720, &[mine, more, other]), (650, &[mine])], &[7, 8]), of(55));
        assert_eq!(peak_of(&[(700, &[other]), (720, &[])], &[7]), card(620), "the driver has not named it");
        assert_eq!(
            peak_of(&[(150, &[mine]), (190, &[(7, Some(9)), (8, None)])], &[7, 8]),
            card(90),
            "one amount is missing"
        );
        assert_eq!(peak_of(&[], &[7]), None);
    }
}
