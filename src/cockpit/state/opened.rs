//! The box, view or run that Enter opens in a panel.

use super::screen::View;
use crate::cockpit::quantity::Quantity;

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
