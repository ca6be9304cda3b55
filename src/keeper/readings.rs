//! Handles the probe's readings: memory and temperature go to the policy, along with evidence of a lost GPU.

use super::keeper_state::Keeper;
use super::notice::{Need, Notice};
use super::stored_state::{ALARMS, ECC_SEEN};
use crate::faults::xid;
use crate::policy::event::{Event, Evidence};
use crate::policy::lifecycle::{Lifecycle, Then};
use crate::policy::spill::GpuLoad;
use crate::protocol::cause::{KernelKind, KernelLine};
use crate::protocol::control::JournalKind;
use crate::protocol::gpu_error::{DRIVER_SILENT, GpuProblem};
use crate::protocol::probe::{DRILL_FILE, GPU_LOST, Reading};
use crate::protocol::worker::{FailureClass, Level};
use crate::wsl::is_wsl;

impl Keeper {
    pub(super) fn handle_reading(&mut self, reading: Box<Reading>) {
        let gpu = reading.gpu.as_ref().ok();
        let used = gpu.and_then(|gpu| gpu.vram_used_bytes.get());
        let heat = gpu.map(|gpu| (gpu.temperature_c.get(), gpu.slowdown_c.get()));
        let lost = is_lost(&reading).filter(|_| !self.gpu.is_lost);
        self.gpu.is_lost |= lost.is_some();
        self.note_driver_state(&reading);
        let kernel = self.witness.observe(&reading);
        // A worker on the CPU uses no GPU, except in a drill.
        let uses_card = self.policy.is_on_gpu() || self.run_dir.file(DRILL_FILE).exists();
        let ecc_before = self.alarms.ecc_seen().cloned();
        let (place, now) = (self.describe_place(), self.now());
        let told = self.alarms.check_reading(&reading, uses_card, (&place, now));
        if !told.is_empty() {
            self.recorder.put_fact(ALARMS, self.alarms.raised());
        }
        for text in told {
            self.recorder.note(Level::Warn, JournalKind::Health, text);
        }
        if let Some(seen) = self.alarms.ecc_seen().filter(|seen| ecc_before.as_ref() != Some(*seen)) {
            self.recorder.put_fact(ECC_SEEN, seen);
        }
        let card = gpu.and_then(|gpu| self.gpu.users.observe(gpu, &self.recorder.status.rungs));
        let load = gpu.and_then(|gpu| GpuLoad::of(gpu, is_wsl()));
        let busy = gpu.and_then(|gpu| gpu.utilisation.get());
        let free = reading.host.disk_free_bytes.get();
        let xids: Vec<u32> = gpu.and_then(|gpu| gpu.more.xids.value()).cloned().unwrap_or_default();
        let action = gpu.and_then(|gpu| gpu.more.recovery.value().cloned());
        self.recorder.record_reading(*reading);
        for line in &kernel {
            self.handle_kernel_line(line);
        }
        let on_gpu = self.policy.is_on_gpu();
        for number in xids.into_iter().filter(|_| on_gpu) {
            let action = action.as_deref().filter(|_| number == xid::ACTION);
            let says = match action {
                Some("none") => "no action needed".to_owned(),
                Some(action) => format!("the driver asks to {action}"),
                None => xid::meaning(number).to_owned(),
            };
            let text = format!("the driver reported Xid {number}: {says}");
            if action == Some("none") {
                self.recorder.note(Level::Info, JournalKind::Health, text);
                continue;
            }
            self.follow_evidence(Evidence { class: FailureClass::Xid, number: Some(number), text });
        }
        self.decide(Event::Card(card), None);
        self.decide(Event::Vram(used), None);
        if let Some(free) = free {
            self.decide(Event::DiskLow(free < self.run.watch.disk_free_mib << 20), None);
        }
        load.into_iter().filter(|_| on_gpu).for_each(|load| self.decide(Event::GpuLoad(load), None));
        if on_gpu {
            self.decide(Event::Utilisation(busy), None);
        }
        if let Some((celsius, slowdown_c)) = heat.filter(|_| uses_card) {
            self.decide(Event::Temperature { celsius, slowdown_c }, None);
        }
        // A worker on the CPU cannot lose a GPU.
        if let Some(text) = lost.filter(|_| self.policy.is_on_gpu()) {
            self.follow_evidence(Evidence { class: FailureClass::GpuLost, number: None, text });
        }
    }

    /// Hands evidence to the policy. An Xid that does not end the run is told; the end of a run is told by itself.
    fn follow_evidence(&mut self, evidence: Evidence) {
        let number = evidence.number;
        let (key, text) = (format!("xid {}", number.unwrap_or_default()), evidence.text.clone());
        self.decide(Event::Evidence(evidence), None);
        let life = self.policy.life();
        let ends = matches!(life, Lifecycle::Over(_) | Lifecycle::Stopping { then: Then::Conclude(_), .. });
        if number.is_some() && !ends {
            let what = "GPU error".to_owned();
            self.tell(&Notice { key, level: Level::Warn, what, text, need: Need::Look });
        }
    }

    /// Reports once that the driver does not answer, and once that it answers again.
    fn note_driver_state(&mut self, reading: &Reading) {
        let silent = match &reading.gpu {
            Ok(gpu) => gpu.more.xids.why() == Some(DRIVER_SILENT),
            Err(error) if error.problem == GpuProblem::Opening => return,
            Err(error) => error.problem == GpuProblem::Silent,
        };
        if silent == std::mem::replace(&mut self.gpu.driver_is_silent, silent) {
            return;
        }
        let (level, text) = if silent {
            (Level::Warn, format!("{DRIVER_SILENT}; training continues, GPU temperature and memory are unknown"))
        } else {
            (Level::Info, "the NVIDIA driver answers again".to_owned())
        };
        self.recorder.note(level, JournalKind::Health, text);
    }

    /// Handles a kernel log line: evidence if it concerns the GPU in use, otherwise a note.
    fn handle_kernel_line(&mut self, line: &KernelLine) {
        let mut text = format!("kernel log: {}", line.text);
        if let KernelKind::Xid { number, .. } = line.kind {
            text = format!("{text} (Xid {number}: {})", xid::meaning(number));
        }
        let told = match &line.kind {
            KernelKind::Xid { number, .. } if xid::asks_for_nothing(*number, &line.text) => None,
            KernelKind::Xid { number, pci } if self.witness.is_our_card(pci) => {
                Some((FailureClass::Xid, Some(*number)))
            }
            KernelKind::GpuLost => Some((FailureClass::GpuLost, None)),
            KernelKind::Xid { .. } | KernelKind::OutOfMemory { .. } | KernelKind::DeviceOutOfMemory => None,
        };
        match told.filter(|_| self.policy.is_on_gpu()) {
            Some((class, number)) => self.follow_evidence(Evidence { class, number, text }),
            None => self.recorder.note(Level::Warn, JournalKind::Health, text),
        }
    }
}

/// Returns a sentence if the driver reports that the GPU is lost.
fn is_lost(reading: &Reading) -> Option<String> {
    let lost = match &reading.gpu {
        Ok(gpu) => [gpu.temperature_c.why(), gpu.vram_used_bytes.why()].contains(&Some(GPU_LOST)),
        Err(error) => error.problem == GpuProblem::Lost,
    };
    lost.then(|| "the driver reports that the GPU is lost".to_owned())
}
