//! The phases of a search in a worker: which one an epoch's steps belong to, and what the journal says of them.

use super::attempt::Attempt;
use downshift_core::protocol::worker::{Level, Phase};
use downshift_core::recipe::phases::{Phases, SearchPhase};

/// The phases of a search, and those that this attempt has entered; without phases, all steps update weights.
#[derive(Debug)]
pub struct PhaseLog {
    phases: Option<Phases>,
    current: Option<SearchPhase>,
    entered: [bool; 2],
    /// Whether the first step of a phase compiles kernels.
    compiles: bool,
}

impl PhaseLog {
    /// Begins the log of an attempt. Warns of a search that ends before it trains its architecture.
    pub fn begin(phases: Option<Phases>, compiles: bool, epochs: u64, attempt: &Attempt<'_>) -> Self {
        let first = phases.map_or(0, |phases| phases.first_arch_epoch().saturating_add(1));
        if epochs < first {
            let text = format!(
                "the run ends after epoch {epochs}, and its architecture is trained from epoch {first} on: the genotype \
                 will mean nothing"
            );
            attempt.note(Level::Warn, text);
        }
        Self { phases, current: None, entered: [false; 2], compiles }
    }

    /// Returns the phase of an epoch. Adds a line to the journal when a search begins or enters another phase.
    pub fn enter(&mut self, epoch: u64, attempt: &mut Attempt<'_>) -> SearchPhase {
        let Some(phases) = self.phases else { return SearchPhase::Weights };
        let phase = phases.at(epoch);
        if self.current.replace(phase) == Some(phase) {
            return phase;
        }
        let trained = if phase == SearchPhase::Architecture { "architecture" } else { "weights" };
        attempt.note(Level::Info, format!("epoch {}: training the {trained}", epoch + 1));
        // Its backward pass has kernels of its own, which take longer than a step may.
        if !std::mem::replace(&mut self.entered[phase.index()], true) && self.compiles {
            attempt.enter_phase(Phase::Compiling);
        }
        phase
    }
}
