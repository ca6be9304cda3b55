//! Decides when the GPU has room for the next worker.
//!
//! If the driver reports memory per process, there is room once our own processes are gone and the
//! rung fits into the free memory, whatever other processes use. Otherwise there is room once total
//! use is back at the level from before the run, plus some slack.

use super::event::Effect;
use super::lifecycle::{Lifecycle, Outcome, Start};
use super::machine::Policy;
use super::reason::Reason;
use crate::protocol::control::JournalKind;
use crate::protocol::worker::Level;
use std::fmt;
use std::time::Duration;

/// GPU memory by process, as reported by the driver.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CardUse {
    /// Bytes held by this run's workers.
    pub ours: u64,
    /// Free bytes.
    pub free: u64,
    /// Other processes, largest first.
    pub holders: Vec<Holder>,
    /// Bytes that each rung needs: measured, or else planned.
    pub peaks: Vec<Option<u64>>,
}

/// A process on the GPU that does not belong to this run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Process id.
    pub pid: u32,
    /// Process name, if readable.
    pub name: Option<String>,
    /// Bytes held.
    pub bytes: u64,
}

impl fmt::Display for Holder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, mib) = (self.name.as_deref().unwrap_or("a process"), self.bytes >> 20);
        write!(formatter, "{name} (pid {}) holds {mib} MiB", self.pid)
    }
}

impl Policy {
    /// Takes in a reading of GPU memory; a waiting start may proceed.
    pub(super) fn handle_vram(&mut self, used: Option<u64>, now: Duration) -> Vec<Effect> {
        self.gpu.vram = used;
        match std::mem::replace(&mut self.life, Lifecycle::New) {
            Lifecycle::AwaitingVram { start, .. } if self.gpu_has_room(start.rung) => {
                return self.launch_worker(start, now);
            }
            other => self.life = other,
        }
        Vec::new()
    }

    fn slack_bytes(&self) -> u64 {
        self.limits.watch.ending.vram_slack_mib << 20
    }

    fn gpu_has_room(&self, rung: usize) -> bool {
        if !self.gpu.in_use {
            // The first worker only waited for a reading.
            return true;
        }
        let before = self.gpu.vram.zip(self.gpu.baseline);
        let as_before = before.is_some_and(|(used, baseline)| used <= baseline.saturating_add(self.slack_bytes()));
        as_before || self.gpu.holders.as_ref().is_some_and(|card| card.ours == 0 && self.rung_fits(card, rung))
    }

    /// Reports whether the rung fits. A rung without measurement or plan is tried: nothing else can show
    /// whether it fits.
    fn rung_fits(&self, card: &CardUse, rung: usize) -> bool {
        let peak = card.peaks.get(rung).copied().flatten();
        peak.is_none_or(|peak| peak.saturating_add(self.slack_bytes()) <= card.free)
    }

    /// Handles an expired wait for GPU memory.
    pub(super) fn handle_no_room(&mut self, start: Start, now: Duration) -> Vec<Effect> {
        if !self.gpu.in_use {
            return self.launch_worker(start, now);
        }
        let why = match (&self.gpu.holders, self.gpu.baseline.zip(self.gpu.vram)) {
            (Some(card), _) if card.ours == 0 => {
                let needed = card.peaks.get(start.rung).copied().flatten().unwrap_or(0);
                let (rung, holders) = (self.rung_name(start.rung).to_owned(), card.holders.clone());
                Reason::NoRoom { rung, needed, free: card.free, holders }
            }
            (Some(card), _) => Reason::NotReleased(card.ours),
            (None, Some((before, used))) => Reason::MemoryInUse { used, before },
            (None, None) => {
                let mut effects = Vec::new();
                // A start that is put off comes here again.
                if !std::mem::replace(&mut self.gpu.is_blind, true) {
                    let text = "GPU memory cannot be read; this start does not check that it is free".to_owned();
                    effects.push(Effect::Journal(Level::Warn, JournalKind::Health, text));
                }
                effects.extend(self.launch_worker(start, now));
                return effects;
            }
        };
        self.finish_run(Outcome::NeedsPerson(why))
    }
}
