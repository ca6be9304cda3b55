//! The reports of single lines.

/// The report of a line, in the order of the lines: readings come later, once all of a step is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// It named a step.
    Step(u64),
    /// It named an epoch and nothing else.
    Epoch(u64),
    /// It reported an evaluation.
    Evaluation {
        /// The step that was evaluated; 0 if the output has named none.
        step: u64,
        /// The epoch that the output named last.
        epoch: Option<u64>,
        /// The same line named the step.
        names_step: bool,
    },
}
