//! The companion's protocol: the file that it reads at its start, and the lines between it and the harness.
//!
//! ```text
//! harness ── companion.json: Setup ──▶ companion in a Python process of the command
//!         ── CompanionOrder ─────────▶
//!         ◀─────────── CompanionLine ──   and events of the worker contract
//! ```
//! Every line is one JSON object.

mod news;
mod setup;

use super::line;
use super::ranks::Collective;
use super::resumed::Loaded;
use super::worker::Event;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

pub use news::{CompanionNews, IgnoredKnob, SeenKnob};
pub use setup::{BestSoFar, ResumeFrom, ResumePoint, SaveRhythm, Setup};

/// Version of this protocol.
pub const PROTOCOL: u32 = 1;
/// The environment variable that names the setup file.
pub const SETUP_VARIABLE: &str = "DOWNSHIFT_COMPANION";

/// A line that only a companion sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum CompanionLine {
    /// The training begins, or a value in its introduction changed.
    Companion(Box<Introduction>),
    /// The files of a checkpoint are written; the harness completes and publishes it.
    Staged(Staged),
    /// The files and states that the process had loaded before its first optimizer step.
    Loaded(Loaded),
    /// The framework's own checkpoint is complete.
    Wrote(ResumePoint),
    /// The command ends now because it was asked to.
    Stopping {
        /// The last step taken.
        step: u64,
        /// Whether that step is in a checkpoint.
        #[serde(default)]
        saved: bool,
    },
    /// The training took its own last step; the script may go on.
    Ended {
        /// The last step.
        step: u64,
    },
    /// The process ends by itself: its connection does not break off.
    Left,
    /// A fingerprint of a step, in a trial.
    Fingerprint(Fingerprint),
    /// The newest collective operation of a rank, as it was asked for.
    Collective(Collective),
}

/// A companion's introduction.
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Introduction {
    /// Its [`PROTOCOL`].
    pub protocol: u32,
    /// The process.
    pub pid: u32,
    /// Its rank in a distributed training; rank 0 reports the training.
    #[serde(default)]
    pub rank: u32,
    /// The number of ranks.
    #[serde(default = "one")]
    pub world: u32,
    /// Version of Python.
    #[serde(default)]
    pub python: Option<String>,
    /// Version of PyTorch.
    #[serde(default)]
    pub torch: Option<String>,
    /// The training loop.
    pub framework: Framework,
    /// The framework's version.
    #[serde(default)]
    pub version: Option<String>,
    /// How well a resume restores the training.
    pub grade: Grade,
    /// The difference to an exact resume, a short clause.
    #[serde(default)]
    pub reason: Option<String>,
    /// It can save when asked.
    #[serde(default)]
    pub saves: bool,
    /// It drops steps that are not finite.
    #[serde(default)]
    pub guards: bool,
    /// It sees every update that is left out.
    #[serde(default)]
    pub counts_skips: bool,
    /// Trainable parameters.
    #[serde(default)]
    pub parameters: Option<u64>,
    /// The step of the checkpoint it resumed from.
    #[serde(default)]
    pub resumed_from: Option<u64>,
    /// The run's clock now.
    #[serde(default)]
    pub samples: Option<u64>,
    /// Steps in the whole training.
    #[serde(default)]
    pub total_steps: Option<u64>,
    /// Units in an epoch.
    #[serde(default)]
    pub epoch_units: Option<u64>,
    /// Units in the whole training.
    #[serde(default)]
    pub total_units: Option<u64>,
    /// Name of a unit: `samples`, `tokens` or `steps`.
    #[serde(default)]
    pub unit: Option<String>,
    /// Its weights are spread over the ranks: they resume on as many only.
    #[serde(default)]
    pub sharded: bool,
    /// Values in force, by the dotted names of run files.
    #[serde(default)]
    pub knobs: BTreeMap<String, Value>,
    /// Those of them that were measured: they say that the script ignores the rung only if they stay when it changes.
    #[serde(default)]
    pub measured: Vec<String>,
    /// The signal on which it writes the stacks of its threads.
    #[serde(default)]
    pub stacks_signal: Option<i32>,
    /// The file that it writes them to.
    #[serde(default)]
    pub stacks_file: Option<PathBuf>,
    /// The file in which it records where it stands, if it is one of several ranks.
    #[serde(default)]
    pub rank_file: Option<PathBuf>,
}

fn one() -> u32 {
    1
}

/// A staged checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Staged {
    /// Its step.
    pub step: u64,
    /// The run's clock at that step.
    pub samples: u64,
    /// The name of its folder in the staging folder.
    pub folder: String,
    /// How long training stopped for it, in milliseconds.
    #[serde(default)]
    pub pause_ms: f64,
}

/// The ingredients of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The step.
    pub step: u64,
    /// Hash of the sample numbers in its order.
    #[serde(default)]
    pub ids: Option<String>,
    /// Hash of the random states.
    #[serde(default)]
    pub random: Option<String>,
    /// The learning rate.
    #[serde(default)]
    pub lr: Option<f64>,
    /// The loss scale.
    #[serde(default)]
    pub scale: Option<f64>,
}

/// The training loop that a companion found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Framework {
    /// A plain loop that calls `downshift.attach`.
    Loop,
    /// The Hugging Face Trainer.
    Transformers,
    /// PyTorch Lightning.
    Lightning,
    /// A loop over accelerate, of which only the steps are seen.
    Accelerate,
    /// A loop over accelerate that is saved and resumed.
    AccelerateLoop,
    /// Any other loop, seen through PyTorch's optimizers.
    Torch,
}

impl Framework {
    /// Reports whether its companion sees every loss.
    #[must_use]
    pub fn sees_losses(self) -> bool {
        matches!(self, Self::Loop | Self::Transformers | Self::Lightning | Self::AccelerateLoop)
    }
}

impl fmt::Display for Framework {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Loop => "plain loop",
            Self::Transformers => "transformers",
            Self::Lightning => "lightning",
            Self::Accelerate | Self::AccelerateLoop => "accelerate",
            Self::Torch => "torch",
        })
    }
}

/// How well a resume restores the training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// Bit for bit as if it had never stopped.
    Exact,
    /// The same samples in the same order, but other random numbers.
    SameData,
    /// Weights, but not the position in the data.
    WeightsOnly,
    /// As the script does it.
    Script,
    /// Not at all.
    None,
}

impl fmt::Display for Grade {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Exact => "exact",
            Self::SameData => "same data",
            Self::WeightsOnly => "weights only",
            Self::Script => "the script's own",
            Self::None => "none",
        })
    }
}

/// A line to a companion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum CompanionOrder {
    /// Save at the next step border.
    Checkpoint,
    /// End at the next step border.
    Stop {
        /// Whether to save first.
        checkpoint: bool,
    },
    /// Train on: the stop that was ordered took too long.
    WithdrawStop,
    /// Tell the newest collective: the run hangs.
    Collective,
    /// A staged or written checkpoint is durable.
    Published {
        /// Its step.
        step: u64,
    },
    /// A checkpoint could not be made durable.
    PublishFailed {
        /// Its step.
        step: u64,
        /// The reason.
        message: String,
        /// The disk caused it.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        of_disk: bool,
    },
}

/// A message of a companion.
#[derive(Debug, Clone, PartialEq)]
pub enum FromCompanion {
    /// A line of its own.
    Line(CompanionLine),
    /// An event of the worker contract, sent on to the keeper.
    Event(Event),
}

impl FromCompanion {
    /// Parses a line. Returns none for anything that a companion may not say.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(line) = line::decode(text) {
            return Some(Self::Line(line));
        }
        line::decode(text).filter(may_say).map(Self::Event)
    }
}

/// Reports whether an event of the worker contract may come from a companion. The others are the harness's own.
fn may_say(event: &Event) -> bool {
    match event {
        Event::Step(_)
        | Event::Skipped(_)
        | Event::Eval(_)
        | Event::Samples { .. }
        | Event::Phase { .. }
        | Event::Note { .. }
        | Event::SaveFailed { .. }
        | Event::Failed(_)
        | Event::Injected { .. }
        | Event::StopRefused { .. } => true,
        Event::Hello(_)
        | Event::Saved(_)
        | Event::Layers(_)
        | Event::Memory(_)
        | Event::Command { .. }
        | Event::Kernels(_)
        | Event::KernelsTuned
        | Event::Done { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{CompanionLine, CompanionOrder, FromCompanion, ResumeFrom, ResumePoint};
    use crate::protocol::line;
    use crate::protocol::worker::Event;

    #[test]
    fn a_companion_says_its_own_lines_and_events_about_the_training() {
        let said = |text: &str| FromCompanion::parse(text);
        let short = r#"{"event":"companion","protocol":1,"pid":7,"framework":"loop","grade":"same_data"}"#;
        let Some(FromCompanion::Line(CompanionLine::Companion(found))) = said(short) else { panic!("{short}") };
        assert_eq!((found.pid, found.world, found.parameters, found.saves), (7, 1, None, false));
        let null = r#"{"event":"companion","protocol":1,"pid":7,"framework":"torch","grade":"none","version":null,
            "epoch_units":null,"knobs":{"training.micro_batch":4}}"#;
        assert!(matches!(said(null), Some(FromCompanion::Line(CompanionLine::Companion(_)))));
        let step = r#"{"event":"step","step":3,"samples":12,"epoch":0,"loss":0.5,"micro_batches":1,
            "data_wait_ms":0.0,"compute_ms":1.5}"#;
        assert!(matches!(said(step), Some(FromCompanion::Event(Event::Step(_)))));
        let samples = said(r#"{"event":"samples","step":3}"#);
        assert_eq!(samples, Some(FromCompanion::Event(Event::Samples { step: 3 })));
        assert!(matches!(
            said(r#"{"event":"stopping","step":3}"#),
            Some(FromCompanion::Line(CompanionLine::Stopping { step: 3, saved: false }))
        ));
        for refused in [
            r#"{"event":"done","reason":"finished","step":3}"#,
            r#"{"event":"saved","path":"x","step":1,"samples":1,"bytes":1,"pause_ms":0,"total_ms":0,"eval_loss":null}"#,
            r#"{"event":"layers","step":3,"layers":[]}"#,
            r#"{"event":"companion","pid":7}"#,
            "loss 0.5",
            "",
        ] {
            assert_eq!(said(refused), None, "{refused}");
        }
    }

    #[test]
    fn the_file_and_the_orders_have_the_form_that_python_reads() {
        let point = ResumePoint { path: "/out/checkpoint-120".into(), step: 120, samples: 3840 };
        let text = serde_json::to_string(&ResumeFrom::Script(point)).unwrap();
        assert_eq!(text, r#"{"kind":"script","path":"/out/checkpoint-120","step":120,"samples":3840}"#);
        let failed = |of_disk| CompanionOrder::PublishFailed { step: 3, message: "full".to_owned(), of_disk };
        let text = "{\"order\":\"publish_failed\",\"step\":3,\"message\":\"full\"}\n";
        assert_eq!(line::encode(&failed(false)).unwrap(), text);
        assert_eq!(line::encode(&failed(true)).unwrap(), text.replace('}', ",\"of_disk\":true}"));
    }
}
