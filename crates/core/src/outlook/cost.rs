//! The cost of an end of the worker, for a shift, a restart or a pause. It depends on how well the worker resumes.

use crate::format::{count, counted};
use crate::protocol::capability::{Capability, Resumption};
use crate::protocol::control::Status;
use std::fmt;

/// The cost of an end of the worker that is followed by another start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// Everything since the start.
    Everything {
        /// The steps taken.
        steps: u64,
    },
    /// Everything since the newest complete checkpoint.
    BackTo {
        /// The step of the checkpoint.
        checkpoint: u64,
        /// The steps taken since.
        steps: u64,
    },
    /// Next to nothing: the script saves first.
    SavesFirst,
    /// At most one step: the worker saves at the next one.
    AtMostOneStep,
}

/// How far a run has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reached {
    /// Its step.
    pub step: u64,
    /// The steps that it has taken itself: fewer if its training began elsewhere.
    pub taken: u64,
    /// The step of its newest complete checkpoint.
    pub durable: Option<u64>,
}

impl Reached {
    /// Returns how far a run has come, as its status says.
    #[must_use]
    pub fn of_status(status: &Status) -> Self {
        Self { step: status.step, taken: status.taken_steps(), durable: status.durable_step }
    }
}

impl Cost {
    /// Returns the cost of an end now; none if the worker cannot continue, and may not start over.
    #[must_use]
    pub fn of(capability: Capability, reached: Reached) -> Option<Self> {
        let Reached { step, taken, durable } = reached;
        let has_files = capability.resumes == Resumption::Checkpoints;
        match durable.filter(|_| has_files) {
            _ if matches!(capability.resumes, Resumption::BuiltIn | Resumption::Companion) => Some(Self::AtMostOneStep),
            _ if has_files && capability.saves_on_signal => Some(Self::SavesFirst),
            Some(checkpoint) => Some(Self::BackTo { checkpoint, steps: step.saturating_sub(checkpoint) }),
            // Before its first step, a command has nothing to lose.
            None if capability.may_start_over || has_files && step == 0 => Some(Self::Everything { steps: taken }),
            None => None,
        }
    }

    /// Reports whether the worker saves before it ends.
    #[must_use]
    pub fn saves_first(self) -> bool {
        matches!(self, Self::SavesFirst | Self::AtMostOneStep)
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everything { steps } => {
                write!(formatter, "the command starts over and loses {}", lost(*steps))
            }
            Self::BackTo { checkpoint, steps } => {
                write!(formatter, "goes back to checkpoint {} and repeats {}", count(*checkpoint), repeated(*steps))
            }
            Self::SavesFirst => formatter.write_str("the script saves first, then continues from there"),
            Self::AtMostOneStep => formatter.write_str("saves at the next step and continues from it"),
        }
    }
}

/// Names the steps that are lost. A script that has printed none may have taken some.
#[must_use]
pub fn lost(steps: u64) -> String {
    if steps == 0 { "what the script did since its start".to_owned() } else { counted(steps, "step") }
}

/// Names the steps that are repeated. Where none was printed since the checkpoint, some may have been taken.
#[must_use]
pub fn repeated(steps: u64) -> String {
    if steps == 0 { "any steps after it".to_owned() } else { counted(steps, "step") }
}

#[cfg(test)]
mod tests {
    use super::{Cost, Reached};
    use crate::config::run::{AsWritten, Run, Source};
    use crate::outlook::capability::capability_of;
    use crate::protocol::capability::Resumption;
    use std::path::Path;

    #[test]
    fn an_end_loses_what_the_script_cannot_resume() {
        let capability = |more: &str| {
            let text = format!("name: x\ntask: command\ncommand: [train]\n{more}");
            let source = Source { file: "x", text: &text, base: Path::new("/"), overrides: &[] };
            let run = Run::read(&source, &AsWritten).unwrap_or_else(|refusal| panic!("{refusal}"));
            capability_of(run.command.as_ref())
        };
        let at = |step, durable| Reached { step, taken: step, durable };
        let cost = |more: &str, durable| Cost::of(capability(more), at(120, durable));
        let resumes = "checkpoints: { match: 'out/*' }\nresume: {}\n";
        assert_eq!(cost("", None), None);
        assert_eq!(cost("restart: from_start\n", None), Some(Cost::Everything { steps: 120 }));
        let adopted = Reached { step: 5_020, taken: 20, durable: None };
        assert_eq!(Cost::of(capability("restart: from_start\n"), adopted), Some(Cost::Everything { steps: 20 }));
        assert_eq!(cost(resumes, None), None);
        let unbegun = Cost::of(capability(resumes), at(0, None));
        assert_eq!(unbegun, Some(Cost::Everything { steps: 0 }), "before its first step");
        assert_eq!(cost(resumes, Some(100)), Some(Cost::BackTo { checkpoint: 100, steps: 20 }));
        let said = cost(resumes, Some(120)).unwrap().to_string();
        assert_eq!(
            said, "goes back to checkpoint 120 and repeats any steps after it",
            "a script prints some steps only"
        );
        assert_eq!(cost(&format!("{resumes}restart: from_start\n"), None), Some(Cost::Everything { steps: 120 }));
        assert_eq!(cost(&format!("{resumes}save: {{ signal: USR1 }}\n"), None), Some(Cost::SavesFirst));
        for durable in [None, Some(100)] {
            let mut with_companion = capability("");
            with_companion.resumes = Resumption::Companion;
            assert_eq!(Cost::of(with_companion, at(120, durable)), Some(Cost::AtMostOneStep));
        }
        // Without the arguments to resume, a checkpoint is only kept.
        assert_eq!(cost("checkpoints: { match: 'out/*' }\n", Some(100)), None);
    }
}
