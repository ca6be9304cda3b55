//! The ladder of a profile: rungs that follow from its knobs, and rungs of its own.

use crate::config::knobs::Relief;
use serde::Deserialize as DeriveDeserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, IntoDeserializer, MapAccess, Visitor};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;

/// One step of a profile's ladder.
#[derive(Debug, Clone)]
pub enum LadderStep {
    /// The rung that follows from the knobs.
    BuiltIn(BuiltIn),
    /// A rung of the trainer's own.
    Own(OwnRung),
}

/// Rungs that follow from the knobs of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, DeriveDeserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BuiltIn {
    /// Less fragmentation of GPU memory.
    Segments,
    /// A smaller micro-batch with more accumulation.
    Accumulate,
    /// Activations recomputed in the backward pass.
    Checkpointing,
    /// Plain kernels.
    Eager,
    /// Number formats with more range: the rungs `bf16` and `f32`.
    Formats,
    /// A lower learning rate.
    LowerRate,
    /// All of them at once.
    Safe,
}

impl BuiltIn {
    /// Every rung, in the order of a ladder without a profile.
    pub const ALL: [Self; 7] = [
        Self::Segments,
        Self::Accumulate,
        Self::Checkpointing,
        Self::Eager,
        Self::Formats,
        Self::LowerRate,
        Self::Safe,
    ];
}

/// A rung of the trainer's own. It is proposed where the command has each argument or key that it sets.
#[derive(Debug, Clone, DeriveDeserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnRung {
    /// Its name.
    pub name: String,
    /// Why it helps.
    pub why: String,
    /// The kinds of failure it helps against.
    pub relieves: Vec<Relief>,
    /// Values that arguments or keys must have for it: one of each list.
    #[serde(default)]
    pub when: BTreeMap<String, Vec<Value>>,
    /// An argument or a key → its value, `{ times: 0.5 }` for a multiple of the present one; or a variable of the environment.
    pub set: Map<String, Value>,
}

impl<'de> Deserialize<'de> for LadderStep {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = LadderStep;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("the name of a rung, or a section of keys")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<LadderStep, E> {
                BuiltIn::deserialize(text.into_deserializer()).map(LadderStep::BuiltIn)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<LadderStep, A::Error> {
                OwnRung::deserialize(MapAccessDeserializer::new(map)).map(LadderStep::Own)
            }
        }
        deserializer.deserialize_any(Either)
    }
}
