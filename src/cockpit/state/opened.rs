//! Decides which box, view or run Enter opens in the focused panel, for keys, mouse and footer.

use super::State;
use super::journal::{JournalEntry, chosen_entry};
use super::requests::Refusal;
use super::screen::{Panel, View};
use crate::cockpit::quantity::Quantity;
use crate::outlook::request::Refusal::SameRung;

/// The target of Enter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opened {
    /// A chart alone, or all charts again.
    Chart(Quantity),
    /// The cockpit of another run.
    Run(String),
    /// The fault that ended with this line of the journal.
    Fault(i64),
    /// The menu of the chosen checkpoint.
    CheckpointMenu,
    /// The preview of a shift to this rung.
    Preview(usize),
    /// The view that gives the panel the most space.
    View(View),
}

impl State {
    /// Returns what Enter opens in the focused panel, or why nothing opens.
    ///
    /// # Errors
    /// Returns the reason to show when there is nothing to open.
    pub fn opened_by_enter(&self) -> Result<Opened, Refusal> {
        match self.screen.focus {
            Panel::Chart(quantity) => Ok(Opened::Chart(quantity)),
            Panel::RunList | Panel::Difference => self.chosen_run_to_open(),
            Panel::Journal => match chosen_entry(self) {
                Some(JournalEntry::Fault(fault)) => Ok(Opened::Fault(fault.end.id)),
                _ => self.own_view_or(Refusal::NotAFault),
            },
            Panel::Checkpoints if self.chosen_checkpoint().is_some() => Ok(Opened::CheckpointMenu),
            Panel::Checkpoints => self.own_view_or(Refusal::NoCheckpoint),
            Panel::Ladder | Panel::Rung => self.chosen_shift(),
            Panel::Gauges
            | Panel::Log
            | Panel::Compare
            | Panel::Samples
            | Panel::Confusion
            | Panel::Layers
            | Panel::Ranks => self.own_view_or(Refusal::NothingToOpen),
        }
    }

    fn own_view_or(&self, refusal: Refusal) -> Result<Opened, Refusal> {
        let own = self.screen.focus.own_view();
        if self.screen.view == own { Err(refusal) } else { Ok(Opened::View(own)) }
    }

    fn chosen_run_to_open(&self) -> Result<Opened, Refusal> {
        match self.runs.chosen() {
            Some(row) if row.name == self.run_name() => Err(Refusal::AlreadyOpen),
            Some(row) if row.status.is_none() => Err(Refusal::NeverStarted),
            Some(row) => Ok(Opened::Run(row.name.clone())),
            None => Err(Refusal::NothingToOpen),
        }
    }

    fn chosen_shift(&self) -> Result<Opened, Refusal> {
        let here = self.rung();
        let chosen = self.screen.chosen_rung.filter(|rung| *rung < self.ladder.len() && Some(*rung) != here);
        if let Some(to) = chosen.filter(|_| here.is_some()) {
            return self.request_refusal().map_or(Ok(Opened::Preview(to)), Err);
        }
        let name = here.and_then(|rung| self.ladder.get(rung)).map(|rung| rung.name.clone());
        self.own_view_or(name.map_or(Refusal::NothingToOpen, |name| SameRung(name).into()))
    }
}
