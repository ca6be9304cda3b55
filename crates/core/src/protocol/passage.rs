//! The transition from one worker to the next: a shift, or a restart on the same rung.

use crate::format::{count, counted};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The transition from one worker to the next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Passage {
    /// The previous rung.
    pub from: String,
    /// The new rung; the same for a restart.
    pub to: String,
    /// Its parts in order: completed parts have a time, the last one may be in progress.
    pub stages: Vec<Stage>,
    /// Step and loss before the transition.
    pub before: Option<(u64, f64)>,
    /// Step of the checkpoint that the new worker continues from, once known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_from: Option<u64>,
    /// Step and loss of the first step after it: the first one printed, where a script prints only some.
    pub after: Option<(u64, f64)>,
}

impl Passage {
    /// Returns how long a command started, and how long its first step took then; none if nothing told them apart.
    #[must_use]
    pub fn start_and_step_ms(&self) -> Option<(u64, u64)> {
        let took = |name: StageName| self.stages.iter().rev().find(|stage| stage.name == name)?.took_ms;
        took(StageName::Start).zip(took(StageName::FirstStep))
    }

    /// Returns the steps that are taken again, once known; none if there are none.
    #[must_use]
    pub fn repeated_steps(&self) -> Option<Repeated> {
        let (first, last) = (self.after?.0, self.before?.0);
        // A worker that continues elsewhere than at its checkpoint shows so by its first step.
        let checkpoint = self.resumed_from.filter(|from| *from < first);
        let first = checkpoint.map_or(first.max(1), |from| from + 1);
        (first <= last).then_some(Repeated { checkpoint, first, last })
    }

    /// Returns the total time of the completed parts.
    #[must_use]
    pub fn total_ms(&self) -> u64 {
        self.stages.iter().filter_map(|stage| stage.took_ms).sum()
    }
}

/// Steps that are taken again after a transition. A script may print only some of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repeated {
    /// The checkpoint that the training goes on from; none if its first step contradicts the one it was to go on from.
    pub checkpoint: Option<u64>,
    /// The first of them.
    pub first: u64,
    /// The last of them.
    pub last: u64,
}

impl fmt::Display for Repeated {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (count(self.first), count(self.last));
        let steps = counted(self.last + 1 - self.first, "step");
        match self.checkpoint {
            Some(0) => write!(formatter, "{steps} again from the beginning"),
            Some(step) => write!(formatter, "{steps} again from checkpoint {}", count(step)),
            None if first == last => write!(formatter, "{steps} again ({first})"),
            None => write!(formatter, "{steps} again ({first} to {last})"),
        }
    }
}

/// One part of a passage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// Which part it is.
    pub name: StageName,
    /// Duration; none while in progress.
    pub took_ms: Option<u64>,
}

/// The parts of a passage. A passage skips those that it does not need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StageName {
    /// The worker saves a checkpoint.
    #[serde(rename = "save")]
    Save,
    /// The worker ends.
    #[serde(rename = "stop")]
    Stop,
    /// From the worker's last step until the keeper notices the fault.
    #[serde(rename = "notice")]
    Notice,
    /// The worker gets SIGTERM.
    #[serde(rename = "end the worker")]
    Terminate,
    /// The worker gets SIGKILL.
    #[serde(rename = "kill the worker")]
    Kill,
    /// The GPU still holds memory of the last worker.
    #[serde(rename = "wait for VRAM")]
    AwaitVram,
    /// A wait after faults without progress.
    #[serde(rename = "back off")]
    BackOff,
    /// The GPU cools.
    #[serde(rename = "cool")]
    Cool,
    /// The next worker starts, and loads the checkpoint.
    #[serde(rename = "start and load")]
    Load,
    /// The next process of a command starts: Python, its imports, until its companion reports the training.
    #[serde(rename = "start")]
    Start,
    /// The next process of a command starts and takes its first step; no companion told the two apart.
    #[serde(rename = "start and first step")]
    StartAndStep,
    /// It compiles kernels.
    #[serde(rename = "compile")]
    Compile,
    /// It takes its first step.
    #[serde(rename = "first step")]
    FirstStep,
    /// A part that this version does not know.
    #[serde(other, rename = "other")]
    Other,
}

impl StageName {
    /// Returns the words for the journal; JSON has the same.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Save => "save",
            Self::Stop => "stop",
            Self::Notice => "notice",
            Self::Terminate => "end the worker",
            Self::Kill => "kill the worker",
            Self::AwaitVram => "wait for VRAM",
            Self::BackOff => "back off",
            Self::Cool => "cool",
            Self::Load => "start and load",
            Self::Start => "start",
            Self::StartAndStep => "start and first step",
            Self::Compile => "compile",
            Self::FirstStep => "first step",
            Self::Other => "other",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Passage, Stage, StageName};

    #[test]
    fn the_steps_taken_again_add_up() {
        let again = |before: u64, resumed_from: Option<u64>, after: u64| {
            let (from, to) = ("full".to_owned(), "safe".to_owned());
            let (before, after) = (Some((before, 0.5)), Some((after, 0.5)));
            let passage = Passage { from, to, stages: Vec::new(), before, resumed_from, after };
            passage.repeated_steps().map(|repeated| repeated.to_string())
        };
        // The script prints every fourth step: 2 023 is the first that it prints.
        assert_eq!(again(2055, Some(2019), 2023).unwrap(), "36 steps again from checkpoint 2 019");
        assert_eq!(again(700, None, 650).unwrap(), "51 steps again (650 to 700)");
        assert_eq!(again(700, Some(690), 650).unwrap(), "51 steps again (650 to 700)", "its first step is another");
        assert_eq!(again(30, Some(0), 1).unwrap(), "30 steps again from the beginning");
        assert_eq!(again(1204, Some(1204), 1205), None);
    }

    #[test]
    fn stages_have_the_same_words_in_json_as_in_the_journal() {
        use StageName::{
            AwaitVram, BackOff, Compile, Cool, FirstStep, Kill, Load, Notice, Other, Save, Start, StartAndStep, Stop,
            Terminate,
        };
        let parts = [Save, Stop, Notice, Terminate, Kill, AwaitVram, BackOff, Cool, Load, Start, StartAndStep, Compile];
        for name in parts.into_iter().chain([FirstStep, Other]) {
            let json = format!("\"{}\"", name.words());
            assert_eq!(serde_json::to_string(&name).unwrap(), json);
            assert_eq!(serde_json::from_str::<StageName>(&json).unwrap(), name);
        }
        let stage = r#"{"name":"first step","took_ms":38}"#;
        assert_eq!(serde_json::to_string(&Stage { name: FirstStep, took_ms: Some(38) }).unwrap(), stage);
    }

    #[test]
    fn a_stage_of_another_version_is_still_a_stage() {
        let stage: Stage = serde_json::from_str(r#"{"name":"warm up","took_ms":5}"#).unwrap();
        assert_eq!(stage, Stage { name: StageName::Other, took_ms: Some(5) });
    }
}
