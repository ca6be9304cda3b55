//! Lines of the journal about the phases of a search.

use super::attempt::Attempt;
use crate::recipe::phases::SearchPhase;
use crate::train::task::Task;

/// The phase announced last.
#[derive(Debug, Default)]
pub struct PhaseLog(Option<SearchPhase>);

impl PhaseLog {
    /// Adds a line to the journal if a search begins or enters another phase.
    pub fn announce<T: Task>(&mut self, phase: SearchPhase, epoch: u64, attempt: &Attempt<'_>) {
        if T::ARCHITECTURE.is_empty() || self.0.replace(phase) == Some(phase) {
            return;
        }
        let trained = if phase == SearchPhase::Architecture { "architecture" } else { "weights" };
        attempt.note(format!("epoch {}: training the {trained}", epoch + 1));
    }
}
