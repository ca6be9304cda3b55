//! Low-rank adaptation (Hu et al., "LoRA", 2021): a frozen matrix W plus a trained low-rank update.
//!
//! ```text
//! y = x·W + b + s · (dropout(x)·A)·B      A [from, rank], B [rank, to], s = alpha / rank
//! ```
//! A starts random and B at zero, so a fresh adapter changes nothing. [`projection`] is the layer, for
//! built-in and user-defined tasks; [`rank_change`] converts an update to another rank.

pub mod projection;
pub mod rank_change;
pub mod svd;

use downshift_core::config::problem::Problem;
use serde::{Deserialize, Serialize};

/// The last part of the path of A.
pub const A: &str = "lora_a";
/// The last part of the path of B.
pub const B: &str = "lora_b";
/// The last part of the path of s. It is stored with the weights, so that a checkpoint is self-contained.
pub const SCALE: &str = "lora_scale";

/// The highest rank allowed. At higher ranks an update is larger than the matrix it updates.
const MOST_RANK: usize = 65_536;

/// The most targets allowed; no model has more kinds of layers.
const MOST_TARGETS: usize = 64;

/// The section `lora:` of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lora {
    /// The rank of the updates.
    pub rank: usize,
    /// The numerator of the update's scale alpha / rank; twice the rank by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
    /// Share of an update's inputs that a training step drops.
    #[serde(default)]
    pub dropout: f64,
    /// The layers that get an update, by the last part of their path.
    #[serde(default = "query_and_value")]
    pub targets: Vec<String>,
    /// A saved adapter to start from: the folder of an adapter_config.json.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_from: Option<String>,
}

impl Lora {
    /// Returns the factor of an update.
    #[must_use]
    pub fn scale(&self) -> f64 {
        self.alpha() / self.rank.max(1) as f64
    }

    /// Returns alpha, explicit or default.
    #[must_use]
    pub fn alpha(&self) -> f64 {
        self.alpha.unwrap_or(2.0 * self.rank as f64)
    }

    /// Returns the problems of values that parse but cannot work, with `path` prepended.
    #[must_use]
    pub fn check(&self, path: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut need = |holds: bool, knob: &str, wrong: String, fix: &str| {
            if !holds {
                problems.push(Problem::at(format!("{path}.{knob}"), wrong, fix));
            }
        };
        need(self.rank > 0, "rank", "a rank of 0 learns nothing".into(), "8 or 16 are usual");
        let rank = self.rank <= MOST_RANK;
        need(rank, "rank", format!("{} exceeds the limit of {MOST_RANK}", self.rank), "8 or 16 are usual");
        let few = self.targets.len() <= MOST_TARGETS;
        need(
            few,
            "targets",
            format!("the list has {} entries", self.targets.len()),
            "name each layer once, or use all",
        );
        let alpha = self.alpha();
        need(alpha > 0.0 || self.rank == 0, "alpha", format!("{alpha} is not positive"), "twice the rank is usual");
        let dropout = self.dropout;
        need(
            (0.0..1.0).contains(&dropout),
            "dropout",
            format!("{dropout} is not in 0 ≤ x < 1"),
            "0.0 disables dropout, 0.05 is usual",
        );
        need(
            !self.targets.is_empty(),
            "targets",
            "the list is empty, so there would be nothing to train".into(),
            "[query, value] is usual",
        );
        problems
    }
}

fn query_and_value() -> Vec<String> {
    vec!["query".to_owned(), "value".to_owned()]
}
