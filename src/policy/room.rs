//! When the card has room for the next worker.
//!
//! Where the driver says who holds what, that is when our own processes are gone from it and the rung
//! fits what is free, whatever others do. Where it does not, when no more is in use than before the
//! run, and some slack.

use super::event::Effect;
use super::life::{Life, Outcome, Start};
use super::machine::Policy;
use crate::protocol::control::JournalKind;
use crate::protocol::worker::Level;
use std::fmt;
use std::time::Duration;

/// Who holds the card's memory, where the driver says so.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CardUse {
    /// Bytes of this run's workers.
    pub ours: u64,
    /// Bytes that nobody uses.
    pub free: u64,
    /// The others, the largest first.
    pub holders: Vec<Holder>,
    /// Bytes that each rung needs, as measured or else as planned.
    pub peaks: Vec<Option<u64>>,
}

/// A process of others on the card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its id.
    pub pid: u32,
    /// Its name, where it can be read.
    pub name: Option<String>,
    /// Its bytes.
    pub bytes: u64,
}

impl fmt::Display for Holder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, mib) = (self.name.as_deref().unwrap_or("a process"), self.bytes >> 20);
        write!(formatter, "{name} (pid {}) holds {mib} MiB", self.pid)
    }
}

impl Policy {
    /// A reading of the card's memory: a start may have waited for it.
    pub(super) fn measured(&mut self, used: Option<u64>, now: Duration) -> Vec<Effect> {
        self.vram = used;
        match std::mem::replace(&mut self.life, Life::New) {
            Life::AwaitingVram { start, .. } if self.has_room(start.rung) => return self.launch(start, now),
            other => self.life = other,
        }
        Vec::new()
    }

    fn slack(&self) -> u64 {
        self.limits.watch.ending.vram_slack_mib << 20
    }

    fn has_room(&self, rung: usize) -> bool {
        let before = self.vram.zip(self.baseline);
        let as_before = before.is_some_and(|(used, baseline)| used <= baseline.saturating_add(self.slack()));
        as_before || self.card.as_ref().is_some_and(|card| card.ours == 0 && self.fits(card, rung))
    }

    /// A rung that never ran and has no plan is tried: nothing else shows whether it fits.
    fn fits(&self, card: &CardUse, rung: usize) -> bool {
        let peak = card.peaks.get(rung).copied().flatten();
        peak.is_none_or(|peak| peak.saturating_add(self.slack()) <= card.free)
    }

    /// The wait for the card is over and there is no room.
    pub(super) fn no_room(&mut self, start: Start, now: Duration) -> Vec<Effect> {
        let why = match (&self.card, self.baseline.zip(self.vram)) {
            (Some(card), _) if card.ours == 0 => {
                let needed = card.peaks.get(start.rung).copied().flatten().unwrap_or(0);
                format!(
                    "rung {} needs {} MiB of the card, and {} MiB are free: {}; end what is not needed, then \
                     `downshift resume`",
                    self.rung_name(start.rung),
                    needed >> 20,
                    card.free >> 20,
                    holders(&card.holders)
                )
            }
            (Some(card), _) => format!(
                "the card did not become free: the last worker of this run is gone, and the driver still counts {} MiB \
                 for it; restart the machine or, under WSL2, run `wsl --shutdown`, then `downshift resume`",
                card.ours >> 20
            ),
            (None, Some((baseline, used))) => format!(
                "the card did not become free: {} MiB in use, {} MiB before the run; find who holds it with `nvidia-smi`",
                used >> 20,
                baseline >> 20
            ),
            (None, None) => {
                let text = "the card's memory cannot be read; went on after a fixed wait".to_owned();
                let mut effects = vec![Effect::Journal(Level::Warn, JournalKind::Health, text)];
                effects.extend(self.launch(start, now));
                return effects;
            }
        };
        self.finish(Outcome::NeedsPerson(why))
    }
}

fn holders(holders: &[Holder]) -> String {
    let named: Vec<String> = holders.iter().take(3).map(ToString::to_string).collect();
    if named.is_empty() { "the driver does not say who holds the rest".to_owned() } else { named.join(", ") }
}
