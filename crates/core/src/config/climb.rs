//! The section `climb:`: the rungs that a run trains on in turn, and how long it stays on each.
//!
//! ```yaml
//! climb:
//!   plan: [{ rung: safe, epochs: 10 }, { rung: plain, epochs: 20 }, { rung: full }]
//! ```
//! `watch.climb` sets how long a stage must run cleanly before the next one begins, as for every climb.

use super::problem::Problem;
use super::typed;
use serde::{Deserialize, Deserializer, Serialize};
use std::fmt;

/// The section as written in a run file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Section {
    /// The stages in order; empty when the run begins on `full` and stays there. `null` is empty too, so
    /// that `--set climb.plan=null` drops the plan of a run file.
    #[serde(deserialize_with = "null_as_default")]
    pub plan: Vec<StageSpec>,
}

/// Reads a value where `null` stands for the default.
///
/// # Errors
/// Returns an error when the value is of another type.
pub fn null_as_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(input: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(input)?.unwrap_or_default())
}

/// A stage as written in a run file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageSpec {
    /// The name of its rung.
    pub rung: String,
    /// Its length in epochs; alternative to `steps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u64>,
    /// Its length in optimizer steps; alternative to `epochs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
}

/// A stage of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    /// The index of its rung.
    pub rung: usize,
    /// Its length; `None` for the last stage, which lasts until the run ends.
    pub length: Option<Length>,
}

/// The length of a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// Epochs of training data.
    Epochs(u64),
    /// Optimizer steps.
    Steps(u64),
}

impl fmt::Display for Length {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Epochs(1) => formatter.write_str("1 epoch"),
            Self::Epochs(epochs) => write!(formatter, "{epochs} epochs"),
            Self::Steps(1) => formatter.write_str("1 step"),
            Self::Steps(steps) => write!(formatter, "{steps} steps"),
        }
    }
}

impl Section {
    /// Resolves the stages to rung indices and returns every error in them.
    #[must_use]
    pub fn resolve(&self, rungs: &[&str]) -> (Vec<Stage>, Vec<Problem>) {
        let (mut stages, mut problems) = (Vec::new(), Vec::new());
        for (index, spec) in self.plan.iter().enumerate() {
            let at = |key: &str| format!("climb.plan[{index}].{key}");
            let is_last = index + 1 == self.plan.len();
            let (length, wrong) = spec.length(is_last);
            problems.extend(wrong.map(|(key, wrong, fix)| Problem::at(at(key), wrong, fix)));
            if index > 0 && self.plan[index - 1].rung == spec.rung {
                let fix = "merge the two stages, or name another rung";
                problems.push(Problem::at(at("rung"), "same rung as the stage before", fix));
            }
            let Some(rung) = rungs.iter().position(|rung| *rung == spec.rung) else {
                let wrong = format!("the ladder has no rung `{}`", spec.rung);
                problems.push(Problem::at(at("rung"), wrong, typed::suggest(&spec.rung, rungs)));
                continue;
            };
            stages.push(Stage { rung, length });
        }
        (stages, problems)
    }

    /// Returns the section that resolves to these stages.
    #[must_use]
    pub fn from_stages(stages: &[Stage], rungs: &[&str]) -> Self {
        let spec = |stage: &Stage| {
            let (epochs, steps) = match stage.length {
                Some(Length::Epochs(epochs)) => (Some(epochs), None),
                Some(Length::Steps(steps)) => (None, Some(steps)),
                None => (None, None),
            };
            StageSpec { rung: rungs.get(stage.rung).copied().unwrap_or_default().to_owned(), epochs, steps }
        };
        Self { plan: stages.iter().map(spec).collect() }
    }
}

type Wrong = (&'static str, &'static str, &'static str);

impl StageSpec {
    /// Returns the length, or the error in it: key, mistake, fix.
    fn length(&self, is_last: bool) -> (Option<Length>, Option<Wrong>) {
        let given = match (self.epochs, self.steps) {
            (Some(_), Some(_)) => {
                return (None, Some(("steps", "both `epochs` and `steps` are given", "keep one of the two")));
            }
            (Some(epochs), None) => Some((Length::Epochs(epochs), "epochs", epochs)),
            (None, Some(steps)) => Some((Length::Steps(steps), "steps", steps)),
            (None, None) => None,
        };
        match given {
            Some((_, key, _)) if is_last => {
                let wrong = "the last stage lasts until the run ends";
                (None, Some((key, wrong, "leave its length out, or add another stage after it")))
            }
            Some((_, key, 0)) => (None, Some((key, "a stage of length 0 trains nothing", "write 1 or more"))),
            Some((length, ..)) => (Some(length), None),
            None if is_last => (None, None),
            None => (None, Some(("rung", "this stage has no length", "add `epochs:` or `steps:`"))),
        }
    }
}

/// Formats the plan as a sentence: `safe for 10 epochs, plain for 20 epochs, then full`.
#[must_use]
pub fn describe_plan(stages: &[Stage], rungs: &[&str]) -> String {
    let last = stages.len().saturating_sub(1);
    let parts = stages.iter().enumerate().map(|(index, stage)| {
        let name = rungs.get(stage.rung).copied().unwrap_or("?");
        match stage.length {
            Some(length) => format!("{name} for {length}"),
            None if index == last && index > 0 => format!("then {name}"),
            None => name.to_owned(),
        }
    });
    parts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::{Length, Section, Stage, StageSpec, describe_plan};

    fn spec(rung: &str, epochs: Option<u64>, steps: Option<u64>) -> StageSpec {
        StageSpec { rung: rung.to_owned(), epochs, steps }
    }

    #[test]
    fn stages_are_resolved_written_back_and_put_into_words() {
        let rungs = ["full", "plain", "safe"];
        let plan = vec![spec("safe", Some(10), None), spec("plain", None, Some(300)), spec("full", None, None)];
        let section = Section { plan };
        let (stages, problems) = section.resolve(&rungs);
        assert_eq!(problems, []);
        assert_eq!(stages[1], Stage { rung: 1, length: Some(Length::Steps(300)) });
        assert_eq!(Section::from_stages(&stages, &rungs), section);
        assert_eq!(describe_plan(&stages, &rungs), "safe for 10 epochs, plain for 300 steps, then full");
    }

    #[test]
    fn every_mistake_is_named_at_its_key() {
        let plan = vec![
            spec("save", Some(0), None),
            spec("plain", None, None),
            spec("plain", Some(1), Some(2)),
            spec("full", Some(5), None),
        ];
        let (_, problems) = Section { plan }.resolve(&["full", "plain", "safe"]);
        let found: Vec<String> = problems.iter().map(ToString::to_string).collect();
        for (index, expected) in [
            "climb.plan[0].epochs: a stage of length 0 trains nothing",
            "climb.plan[0].rung: the ladder has no rung `save`; did you mean `safe`?",
            "climb.plan[1].rung: this stage has no length",
            "climb.plan[2].steps: both `epochs` and `steps`",
            "climb.plan[2].rung: same rung as the stage before",
            "climb.plan[3].epochs: the last stage lasts until the run ends",
        ]
        .into_iter()
        .enumerate()
        {
            assert!(found[index].starts_with(expected), "{found:#?}");
        }
    }
}
