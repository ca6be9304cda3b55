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
            (Grade::Script, true) => "tested",
            (Grade::Script, false) => "untested",
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
    use super::{Resume, describe_ignored};
    use crate::protocol::companion::{Grade, IgnoredKnob};

    #[test]
    fn a_grade_is_named_with_what_it_lacks() {
        let of = |grade, proven, reason: Option<&str>| Resume { grade, proven, reason: reason.map(str::to_owned) };
        let data = of(Grade::SameData, false, Some("random states are not restored"));
        assert_eq!(data.to_string(), "same data (random states are not restored)");
        assert_eq!(of(Grade::Script, false, None).to_string(), "the script's own, untested");
        assert_eq!(Resume::of_script(true, true).to_string(), "the script's own, tested");
        assert_eq!((Resume::of_script(false, true).word(), Resume::of_script(false, true).proven), (None, false));
        assert_eq!(of(Grade::Exact, true, None).to_string(), "exact");
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
