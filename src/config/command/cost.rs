//! The cost of a shift or a restart of a command. It depends on how well the script resumes.

use super::{CommandSpec, Level, RestartPolicy};
use crate::format::{count, counted};
use std::fmt;

/// The cost of a shift or a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShiftCost {
    /// The command cannot continue, and may not start over.
    Refused(Level),
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
}

impl CommandSpec {
    /// Returns what is lost if the run shifts at `step`, with its newest complete checkpoint at `durable`.
    #[must_use]
    pub fn shift_cost(&self, step: u64, durable: Option<u64>) -> ShiftCost {
        let level = self.level();
        if level == Level::Checkpoints && self.save.is_some() {
            return ShiftCost::SavesFirst;
        }
        match durable.filter(|_| level == Level::Checkpoints) {
            Some(checkpoint) => ShiftCost::BackTo { checkpoint, steps: step.saturating_sub(checkpoint) },
            None if self.restart == RestartPolicy::FromStart => ShiftCost::Everything { steps: step },
            None => ShiftCost::Refused(level),
        }
    }
}

impl ShiftCost {
    /// Reports whether the shift is possible.
    #[must_use]
    pub fn is_possible(self) -> bool {
        !matches!(self, Self::Refused(_))
    }
}

impl fmt::Display for ShiftCost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(Level::Command) => formatter.write_str(
                "refused: this command cannot resume; declare `checkpoints` and `resume`, or allow \
                 `restart: from_start`",
            ),
            Self::Refused(Level::Checkpoints) => formatter.write_str(
                "refused until the script has written a complete checkpoint; `restart: from_start` would allow it",
            ),
            Self::Everything { steps } => {
                write!(formatter, "the command starts over and loses {}", counted(*steps, "step"))
            }
            Self::BackTo { checkpoint, steps } => {
                let repeated = counted(*steps, "step");
                write!(formatter, "goes back to checkpoint {} and repeats {repeated}", count(*checkpoint))
            }
            Self::SavesFirst => formatter.write_str("the script saves first, then continues from there"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ShiftCost;
    use crate::config::command::Level;
    use crate::config::run::{AsWritten, Run, Source};
    use std::path::Path;

    #[test]
    fn a_shift_loses_what_the_script_cannot_resume() {
        let cost = |more: &str, durable| {
            let text = format!("name: x\ntask: command\ncommand: [train]\n{more}");
            let source = Source { file: "x", text: &text, base: Path::new("/"), overrides: &[] };
            let run = Run::read(&source, &AsWritten).unwrap_or_else(|refusal| panic!("{refusal}"));
            run.command.unwrap().shift_cost(120, durable)
        };
        let resumes = "checkpoints: { match: 'out/*' }\nresume: {}\n";
        assert_eq!(cost("", None), ShiftCost::Refused(Level::Command));
        assert_eq!(cost("restart: from_start\n", None), ShiftCost::Everything { steps: 120 });
        assert_eq!(cost(resumes, None), ShiftCost::Refused(Level::Checkpoints));
        assert_eq!(cost(resumes, Some(100)), ShiftCost::BackTo { checkpoint: 100, steps: 20 });
        assert_eq!(cost(&format!("{resumes}restart: from_start\n"), None), ShiftCost::Everything { steps: 120 });
        assert_eq!(cost(&format!("{resumes}save: {{ signal: USR1 }}\n"), None), ShiftCost::SavesFirst);
        // Without the arguments to resume, a checkpoint is only kept.
        assert_eq!(cost("checkpoints: { match: 'out/*' }\n", Some(100)), ShiftCost::Refused(Level::Command));
    }
}
