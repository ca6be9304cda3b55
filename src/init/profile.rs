//! Profiles: what is known of a trainer, as data in `assets/trainers` and in the user's configuration folder.
//!
//! ```text
//! trainers/*.yaml ─ parse ─▶ Profile ─ recognise ─▶ the command's own ─▶ arguments, keys, ladder ─▶ proposal
//!                                                                   └──▶ checkpoints, resume, patterns ─▶ a run without a file
//! ```

mod arguments;
mod check;
mod ladder;
mod recognise;

pub use check::TIMES;
pub use ladder::{BuiltIn, LadderStep, OwnRung};
pub use recognise::{Evidence, Recognised, Signs};

use super::roles::Role;
use crate::config::command::{SaveRequest, StepCount};
use crate::config::document::{self, DocumentError};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// The shipped profiles: of several that fit a command, the first is taken, so general ones come last.
const SHIPPED: &[(&str, &str)] = &[
    ("kohya-network.yaml", include_str!("../../assets/trainers/kohya-network.yaml")),
    ("kohya.yaml", include_str!("../../assets/trainers/kohya.yaml")),
    ("llama-factory.yaml", include_str!("../../assets/trainers/llama-factory.yaml")),
    ("axolotl.yaml", include_str!("../../assets/trainers/axolotl.yaml")),
    ("ultralytics.yaml", include_str!("../../assets/trainers/ultralytics.yaml")),
    ("musubi-tuner.yaml", include_str!("../../assets/trainers/musubi-tuner.yaml")),
    ("ai-toolkit.yaml", include_str!("../../assets/trainers/ai-toolkit.yaml")),
    ("diffusion-pipe.yaml", include_str!("../../assets/trainers/diffusion-pipe.yaml")),
    ("onetrainer.yaml", include_str!("../../assets/trainers/onetrainer.yaml")),
    ("trl.yaml", include_str!("../../assets/trainers/trl.yaml")),
    ("timm.yaml", include_str!("../../assets/trainers/timm.yaml")),
    ("lightning-cli.yaml", include_str!("../../assets/trainers/lightning-cli.yaml")),
    ("torchtune.yaml", include_str!("../../assets/trainers/torchtune.yaml")),
    ("nanogpt.yaml", include_str!("../../assets/trainers/nanogpt.yaml")),
    ("diffusers.yaml", include_str!("../../assets/trainers/diffusers.yaml")),
    ("hugging-face.yaml", include_str!("../../assets/trainers/hugging-face.yaml")),
];

/// A trainer, as far as it is known.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// The ways to recognise its commands; one is enough.
    pub recognise: Vec<Signs>,
    /// Arguments that it accepts, beside those that its source declares: the spelling and the kind.
    #[serde(default)]
    pub arguments: BTreeMap<String, Argument>,
    /// The only arguments and keys that hold a knob, the best first; an empty list for a knob that nothing holds.
    #[serde(default)]
    pub knobs: BTreeMap<Role, Vec<String>>,
    /// Knobs that keep their value while one of these arguments is on.
    #[serde(default)]
    pub fixed_by: BTreeMap<Role, Vec<String>>,
    /// The options that name its settings files; without them, they are found by their usual names.
    #[serde(default)]
    pub settings: Vec<SettingsOption>,
    /// How its output is read where the general reader is not enough.
    #[serde(default)]
    pub metrics: Patterns,
    /// The checkpoints that it writes.
    #[serde(default)]
    pub checkpoints: Option<CheckpointForm>,
    /// How it resumes.
    #[serde(default)]
    pub resume: Option<ResumeForm>,
    /// How it is asked to save.
    #[serde(default)]
    pub save: Option<SaveRequest>,
    /// Its own responses to failures, a sentence each.
    #[serde(default)]
    pub recovers: Vec<String>,
    /// Its ladder; without one, every rung that its arguments make possible.
    #[serde(default)]
    pub ladder: Vec<LadderStep>,
}

/// An argument of a trainer.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Argument {
    /// The kind of its value.
    pub is: Kind,
    /// Its default; absent if it is not known for certain.
    #[serde(default)]
    pub default: Option<Value>,
    /// The only values it accepts.
    #[serde(default)]
    pub choices: Vec<String>,
    /// The scripts of the trainer that have it; empty if all have.
    #[serde(default)]
    pub scripts: Vec<String>,
}

/// The kind of an argument's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A whole number.
    Integer,
    /// Any number.
    Number,
    /// `true` or `false` as a value.
    Boolean,
    /// Anything else.
    Text,
    /// No value: the argument alone turns it on.
    Switch,
}

/// An option that names a settings file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingsOption {
    /// The option; absent for a file that is a word of its own.
    #[serde(default)]
    pub option: Option<String>,
    /// The values of the file count even where the command has an argument of the same meaning.
    #[serde(default)]
    pub wins: bool,
}

/// Patterns for lines of output.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Patterns {
    /// As in a run file.
    #[serde(default)]
    pub patterns: Vec<String>,
}

/// The form of a trainer's checkpoints.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointForm {
    /// The code that writes them, if it is not the trainer's own.
    #[serde(default)]
    pub writer: Option<String>,
    /// The pattern; `<NAME>` is the value of an argument, a key or a knob.
    #[serde(rename = "match")]
    pub pattern: String,
    /// The file written last; none if a checkpoint is one file.
    #[serde(default)]
    pub complete: Option<String>,
    /// Each save replaces the one before.
    #[serde(default)]
    pub overwritten: bool,
    /// A switch without which nothing is saved.
    #[serde(default)]
    pub needs: Option<String>,
}

/// How a trainer resumes.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResumeForm {
    /// The arguments; none of them if its argument for a checkpoint is recognised.
    #[serde(default)]
    pub arguments: Option<Vec<String>>,
    /// Its steps after a resume.
    #[serde(default)]
    pub count: Option<StepCount>,
}

impl Profile {
    /// Reads a profile; `file` is its name for messages.
    ///
    /// # Errors
    /// Returns an error that lists every mistake with its line and column.
    pub fn parse(text: &str, file: &str) -> Result<Self, DocumentError> {
        document::read(file, text, Self::check)
    }

    /// Returns the shipped profiles.
    ///
    /// # Errors
    /// Returns an error when a profile inside the program is damaged.
    pub fn shipped() -> Result<Vec<Self>, DocumentError> {
        SHIPPED.iter().map(|(file, text)| Self::parse(text, file)).collect()
    }
}

#[cfg(test)]
mod tests;
