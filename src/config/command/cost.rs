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
    /// At most one step: the companion saves at the next one.
    AtMostOneStep,
}

impl CommandSpec {
    /// Returns what is lost if a run of this level shifts now.
    #[must_use]
    pub fn shift_cost(&self, level: Level, reached: Reached) -> ShiftCost {
        let may_start_over = self.restart == RestartPolicy::FromStart;
        ShiftCost::of(Resumption { level, saves: self.save.is_some(), may_start_over }, reached)
    }
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

/// How a command goes on after it was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resumption {
    /// The level of its run.
    pub level: Level,
    /// Whether a signal asks it to save.
    pub saves: bool,
    /// Whether it may start from its beginning.
    pub may_start_over: bool,
}

impl ShiftCost {
    /// Returns the cost of an end now.
    #[must_use]
    pub fn of(Resumption { level, saves, may_start_over }: Resumption, reached: Reached) -> Self {
        let Reached { step, taken, durable } = reached;
        let has_checkpoints = level == Level::Checkpoints;
        match durable.filter(|_| has_checkpoints) {
            _ if level == Level::Companion => Self::AtMostOneStep,
            _ if has_checkpoints && saves => Self::SavesFirst,
            Some(checkpoint) => Self::BackTo { checkpoint, steps: step.saturating_sub(checkpoint) },
            // Before its first step, a command has nothing to lose.
            None if may_start_over || has_checkpoints && step == 0 => Self::Everything { steps: taken },
            None => Self::Refused(level),
        }
    }

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
                "refused: nothing resumes this command; add `checkpoints` and `resume` to a run file, or \
                 `restart: from_start`",
            ),
            Self::Refused(Level::Checkpoints | Level::Companion) => formatter.write_str(
                "refused until the script has written a complete checkpoint; `restart: from_start` would allow it",
            ),
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
    use super::{Reached, ShiftCost};
    use crate::config::command::Level;
    use crate::config::run::{AsWritten, Run, Source};
    use std::path::Path;

    #[test]
    fn a_shift_loses_what_the_script_cannot_resume() {
        let command = |more: &str| {
            let text = format!("name: x\ntask: command\ncommand: [train]\n{more}");
            let source = Source { file: "x", text: &text, base: Path::new("/"), overrides: &[] };
            Run::read(&source, &AsWritten).unwrap_or_else(|refusal| panic!("{refusal}")).command.unwrap()
        };
        let at = |step, durable| Reached { step, taken: step, durable };
        let cost = |more: &str, durable| command(more).shift_cost(command(more).level(), at(120, durable));
        let resumes = "checkpoints: { match: 'out/*' }\nresume: {}\n";
        assert_eq!(cost("", None), ShiftCost::Refused(Level::Command));
        assert_eq!(cost("restart: from_start\n", None), ShiftCost::Everything { steps: 120 });
        let adopted = Reached { step: 5_020, taken: 20, durable: None };
        let restarts = command("restart: from_start\n");
        assert_eq!(restarts.shift_cost(restarts.level(), adopted), ShiftCost::Everything { steps: 20 });
        assert_eq!(cost(resumes, None), ShiftCost::Refused(Level::Checkpoints));
        assert_eq!(
            command(resumes).shift_cost(Level::Checkpoints, at(0, None)),
            ShiftCost::Everything { steps: 0 },
            "before its first step"
        );
        assert_eq!(cost(resumes, Some(100)), ShiftCost::BackTo { checkpoint: 100, steps: 20 });
        let said = cost(resumes, Some(120)).to_string();
        assert_eq!(
            said, "goes back to checkpoint 120 and repeats any steps after it",
            "a script prints some steps only"
        );
        assert_eq!(cost(&format!("{resumes}restart: from_start\n"), None), ShiftCost::Everything { steps: 120 });
        assert_eq!(cost(&format!("{resumes}save: {{ signal: USR1 }}\n"), None), ShiftCost::SavesFirst);
        for durable in [None, Some(100)] {
            let plain = command("");
            assert_eq!(plain.shift_cost(plain.level_with(true), at(120, durable)), ShiftCost::AtMostOneStep);
        }
        // Without the arguments to resume, a checkpoint is only kept.
        assert_eq!(cost("checkpoints: { match: 'out/*' }\n", Some(100)), ShiftCost::Refused(Level::Command));
    }
}
