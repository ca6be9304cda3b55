//! A command as its companion shows it: how well it continues after a restart, and the knobs that it ignores.

use super::companion::{CompanionNews, Grade, IgnoredKnob};
use crate::format::in_words;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How a run continues after a restart or a shift.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// The part of the training that the next process restores.
    pub grade: Grade,
    /// A trial has shown that the script resumes as the grade says.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub proven: bool,
    /// The difference to an exact resume, a short clause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Resume {
    /// Returns the resume of a command without a companion.
    #[must_use]
    pub fn of_script(resumes: bool, proven: bool) -> Self {
        let grade = if resumes { Grade::Script } else { Grade::None };
        Self { grade, proven: resumes && proven, reason: None }
    }

    /// Returns the resume that a companion reports.
    #[must_use]
    pub fn of_companion(companion: &CompanionNews, proven: bool) -> Self {
        let reason = companion.reason.clone().filter(|reason| !reason.is_empty());
        Self { grade: companion.grade, proven: proven && companion.grade != Grade::None, reason }
    }

    /// Returns the grade in two words at most; none for a command that cannot resume.
    #[must_use]
    pub fn word(&self) -> Option<&'static str> {
        Some(match (self.grade, self.proven) {
            (Grade::Exact, _) => "exact",
            (Grade::SameData, _) => "same data",
            (Grade::WeightsOnly, _) => "weights only",
            (Grade::Script, true) => "proven",
            (Grade::Script, false) => "unproven",
            (Grade::None, _) => return None,
        })
    }
}

impl fmt::Display for Resume {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.grade.fmt(formatter)?;
        if let Some(word) = self.word().filter(|_| self.grade == Grade::Script) {
            write!(formatter, ", {word}")?;
        }
        self.reason.as_ref().map_or(Ok(()), |reason| write!(formatter, " ({reason})"))
    }
}

/// How a run goes on after its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GoOn {
    /// `downshift resume` continues it from its newest checkpoint.
    Resumes(String),
    /// `downshift resume` starts it again from the beginning: it has no checkpoint.
    StartsOver(String),
    /// Nothing of it can be resumed; this command starts it anew.
    Anew(String),
    /// Its command runs on without a keeper, and `downshift resume` gives it one.
    TakesOver(String),
}

/// How a run starts anew whose command nothing resumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anew {
    /// The command to type.
    pub command: String,
    /// The command that writes a run file; none if the run has one.
    pub init: Option<String>,
}

impl Anew {
    /// Says what makes the command go on after a failure.
    #[must_use]
    pub fn advice(&self) -> String {
        match &self.init {
            Some(init) => format!(
                "`{init}` writes a run file that resumes from the script's checkpoints; a PyTorch loop can call \
                 `downshift.attach` instead"
            ),
            None => {
                "`checkpoints` and `resume` in its run file let it resume, `restart: from_start` lets it start over"
                    .to_owned()
            }
        }
    }
}

impl GoOn {
    /// Returns how a run goes on that `resume` accepts; `durable` is the step of its newest checkpoint.
    #[must_use]
    pub fn by_resume(resume: String, durable: Option<u64>) -> Self {
        if durable.is_some() { Self::Resumes(resume) } else { Self::StartsOver(resume) }
    }

    /// Returns the command to type.
    #[must_use]
    pub fn command(&self) -> &str {
        match self {
            Self::Resumes(command) | Self::StartsOver(command) | Self::Anew(command) | Self::TakesOver(command) => {
                command
            }
        }
    }

    /// Returns the effect of the command in two words and an object.
    #[must_use]
    pub fn effect(&self) -> &'static str {
        match self {
            Self::Resumes(_) => "continues it",
            Self::StartsOver(_) => "starts it over",
            Self::Anew(_) => "starts it anew",
            Self::TakesOver(_) => "takes it over",
        }
    }
}

impl fmt::Display for GoOn {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = match self {
            Self::Resumes(_) => " from its newest checkpoint",
            Self::StartsOver(_) | Self::Anew(_) => " from the beginning",
            Self::TakesOver(_) => "",
        };
        write!(formatter, "`{}` {}{from}", self.command(), self.effect())
    }
}

impl CompanionNews {
    /// Reports whether another process continues from what this one saves when asked.
    #[must_use]
    pub fn resumes(&self) -> bool {
        self.saves && self.grade != Grade::None
    }
}

/// Knobs that the saved state of an optimizer holds, too.
const OF_OPTIMIZER_STATE: [&str; 2] = ["optimizer.lr", "optimizer.weight_decay"];

/// Describes the knobs of a rung that a script ignores; none if it follows all of them.
#[must_use]
pub fn describe_ignored(ignored: &[IgnoredKnob]) -> Option<String> {
    let each = |knob: &IgnoredKnob| {
        format!("{}: the rung says {}, in force is {}", knob.name, in_words(&knob.rung), in_words(&knob.in_force))
    };
    let all: Vec<String> = ignored.iter().map(each).collect();
    let is_restored = ignored.iter().any(|knob| OF_OPTIMIZER_STATE.contains(&knob.name.as_str()));
    let why = if is_restored {
        "; `load_state_dict` may have brought the optimizer's old values back: set them in its `param_groups` after it"
    } else {
        ""
    };
    (!all.is_empty()).then(|| format!("the script ignores {}{why}", all.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::{GoOn, Resume, describe_ignored};
    use crate::protocol::companion::{Grade, IgnoredKnob};

    #[test]
    fn a_grade_is_named_with_what_it_lacks() {
        let of = |grade, proven, reason: Option<&str>| Resume { grade, proven, reason: reason.map(str::to_owned) };
        let data = of(Grade::SameData, false, Some("random states are not restored"));
        assert_eq!(data.to_string(), "same data (random states are not restored)");
        assert_eq!(of(Grade::Script, false, None).to_string(), "the script's own, unproven");
        assert_eq!(Resume::of_script(true, true).to_string(), "the script's own, proven");
        assert_eq!((Resume::of_script(false, true).word(), Resume::of_script(false, true).proven), (None, false));
        assert_eq!(of(Grade::Exact, true, None).to_string(), "exact");
    }

    #[test]
    fn a_run_goes_on_as_far_as_something_resumes_it() {
        let resume = || "downshift resume x".to_owned();
        assert_eq!(
            GoOn::by_resume(resume(), Some(40)).to_string(),
            "`downshift resume x` continues it from its newest checkpoint"
        );
        let over = GoOn::by_resume(resume(), None).to_string();
        assert_eq!(over, "`downshift resume x` starts it over from the beginning");
        let anew = GoOn::Anew("downshift run -- ./train".to_owned());
        assert_eq!(anew.to_string(), "`downshift run -- ./train` starts it anew from the beginning");
    }

    #[test]
    fn ignored_knobs_are_named_with_both_values() {
        let knob = |name: &str, rung: i32, in_force: i32| IgnoredKnob {
            name: name.to_owned(),
            rung: rung.into(),
            in_force: in_force.into(),
        };
        assert_eq!(describe_ignored(&[]), None);
        let both = [knob("training.micro_batch", 2, 4), knob("knobs.size", 8, 9)];
        assert_eq!(
            describe_ignored(&both).unwrap(),
            "the script ignores training.micro_batch: the rung says 2, in force is 4; knobs.size: the rung says 8, in \
             force is 9"
        );
        let rate = describe_ignored(&[knob("optimizer.lr", 1, 2)]).unwrap();
        assert!(rate.contains("`load_state_dict` may have brought the optimizer's old values back"), "{rate}");
    }
}
