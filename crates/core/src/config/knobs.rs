//! The knobs of a preset, as written in a run file.

use super::command::environment;
use super::groups::{Groups, Trained};
use super::plateau::Plateau;
use super::units::Every;
use crate::recipe::schedule::Schedule;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;

pub use super::architecture::ArchitectureOptimizer;
pub use super::best::Best;
pub use super::moments::MomentBits;
pub use super::watch::Watch;

/// A section owned by the task, which parses it with its own config types.
pub type Section = Map<String, Value>;

/// A full set of training knobs: one rung.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// The location of the data; read by the task.
    #[serde(default)]
    pub data: Section,
    /// The model's shape; read by the task.
    #[serde(default)]
    pub model: Section,
    /// Batch sizes, length, precision and other settings of the training loop.
    pub training: Training,
    /// Optimizer settings.
    pub optimizer: Optimizer,
    /// The evaluation schedule.
    #[serde(default)]
    pub evaluation: Evaluation,
    /// The checkpoint schedule and retention.
    #[serde(default)]
    pub checkpoint: Checkpoint,
    /// Variables that a command gets, with placeholders.
    #[serde(default, deserialize_with = "environment::read", skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
    /// The ranks that a command is started in, under torchrun; as it is, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u32>,
    /// Knobs of a command, by any name.
    #[serde(default, skip_serializing_if = "Section::is_empty")]
    pub knobs: Section,
    /// For a command: the knobs that its run file writes. Only they count; the sections above hold defaults
    /// for the rest, which no script knows. `None` for a built-in trainer.
    #[serde(skip)]
    pub written: Option<Section>,
}

impl Preset {
    /// Returns the knobs in force as a tree: all of a built-in trainer, or those that a command's file writes.
    #[must_use]
    pub fn tree(&self) -> Value {
        match &self.written {
            Some(written) => Value::Object(written.clone()),
            None => serde_json::to_value(self).unwrap_or_default(),
        }
    }
}

/// The path of the knob for the samples of a pass.
pub const MICRO_BATCH: &str = "training.micro_batch";
/// Variables that turn off the compiled kernels of PyTorch.
const TURN_OFF_COMPILED: [&str; 2] = ["TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"];

impl Preset {
    /// Returns the knob that turns fused or compiled kernels off, as written, if one does.
    #[must_use]
    pub fn without_fused_kernels(&self) -> Option<String> {
        if self.written.is_none() {
            return (!self.training.fused_kernels).then(|| "training.fused_kernels: false".to_owned());
        }
        let is_on = |value: &str| matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on");
        let set = |name: &&&str| self.environment.get(**name).is_some_and(|value| is_on(value));
        TURN_OFF_COMPILED.iter().find(set).map(|name| format!("{name}={}", self.environment[*name]))
    }
}

/// Settings of the training loop.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Training {
    /// Epochs over the training data; alternative to `steps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u64>,
    /// Total optimizer steps; alternative to `epochs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Samples per forward and backward pass.
    pub micro_batch: u64,
    /// Micro-batches per optimizer step (gradient accumulation).
    #[serde(default = "default_accumulation")]
    pub accumulation: u64,
    /// Number format for computation.
    #[serde(default)]
    pub precision: Precision,
    /// Seed of all randomness.
    #[serde(default)]
    pub seed: u64,
    /// Recompute activations in the backward pass instead of keeping them.
    #[serde(default)]
    pub gradient_checkpointing: bool,
    /// Fuse element-wise kernels on a GPU; use native operations on GPU and CPU. Otherwise Burn's plain ones.
    #[serde(default = "default_true")]
    pub fused_kernels: bool,
    /// Autotuning effort for kernels (CUDA only).
    #[serde(default)]
    pub autotune: Autotune,
    /// Optimizer steps between releases of unused device memory; 0 = never.
    #[serde(default)]
    pub memory_cleanup_every: u64,
    /// The trained parameters; if absent, the adapters alone where there are any, else everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trained: Option<Trained>,
    /// Data loader settings.
    #[serde(default)]
    pub loader: Loader,
}

/// Number format for computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 32-bit floats.
    #[default]
    F32,
    /// bfloat16: the range of f32 with 8 bits of precision.
    Bf16,
    /// IEEE half precision.
    F16,
}

impl fmt::Display for Precision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        })
    }
}

/// Autotuning effort for kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Autotune {
    /// A few candidates.
    Minimal,
    /// The compiler's default.
    #[default]
    Balanced,
    /// More candidates.
    Extensive,
    /// All candidates.
    Full,
    /// No tuning at first: a start takes the first candidate that runs. Tuned kernels are taken over at a save, once
    /// `downshift prepare` has tuned them.
    Later,
}

/// Data loader settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loader {
    /// Threads that prepare micro-batches; defaults to half the cores, which leaves the rest to the worker.
    #[serde(default = "default_threads")]
    pub threads: u64,
    /// Micro-batches to prefetch.
    #[serde(default = "default_prefetch")]
    pub prefetch: u64,
}

impl Default for Loader {
    fn default() -> Self {
        Self { threads: default_threads(), prefetch: default_prefetch() }
    }
}

/// Optimizer settings: `AdamW` (Loshchilov and Hutter, 2017).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    /// Peak learning rate.
    pub lr: f64,
    /// Decoupled weight decay; not applied to biases and norms.
    #[serde(default)]
    pub weight_decay: f64,
    /// Maximum gradient norm for clipping; `None` = no clipping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_norm: Option<f64>,
    /// Decay rates (betas) of the two moments.
    #[serde(default = "default_betas")]
    pub betas: [f64; 2],
    /// Epsilon added to the denominator.
    #[serde(default = "default_epsilon")]
    pub epsilon: f64,
    /// Storage precision of the two moments.
    #[serde(default)]
    pub moments: MomentBits,
    /// Keep moments and f32 master weights in host memory and move them to the device one at a time.
    #[serde(default)]
    pub offload: bool,
    /// The learning-rate schedule.
    #[serde(default)]
    pub schedule: Schedule,
    /// Lowers the learning rate when evaluations stop improving; `None` = never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plateau: Option<Plateau>,
    /// The optimizer of an architecture search's second phase; a task that searches has a default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<ArchitectureOptimizer>,
    /// Parameter groups with rules of their own.
    #[serde(default, skip_serializing_if = "Groups::is_empty")]
    pub groups: Groups,
}

/// The evaluation schedule.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evaluation {
    /// The interval; the end of the run is always evaluated.
    pub every: Every,
}

impl Default for Evaluation {
    fn default() -> Self {
        Self { every: Every::Epochs(1) }
    }
}

/// The checkpoint schedule and retention.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// The interval; the end of the run is always saved.
    #[serde(default = "default_save_interval")]
    pub every: Every,
    /// Number of newest checkpoints to keep.
    #[serde(default = "default_keep_last")]
    pub keep_last: u64,
    /// Save every new best evaluation, and keep that checkpoint too.
    #[serde(default = "default_true")]
    pub keep_best: bool,
    /// The criterion for the best evaluation.
    #[serde(default)]
    pub best: Best,
    /// Clean steps after a checkpoint that make it proven; the newest proven one is kept.
    #[serde(default = "default_proven_after")]
    pub proven_after: u64,
}

impl Default for Checkpoint {
    fn default() -> Self {
        let (every, best) = (default_save_interval(), Best::default());
        Self { every, keep_last: default_keep_last(), keep_best: true, best, proven_after: default_proven_after() }
    }
}

impl Checkpoint {
    /// Returns the largest number of checkpoints on disk at once: the newest ones, the newest proven one,
    /// the next one to be proven, the best, and one being written.
    #[must_use]
    pub fn max_on_disk(&self) -> u64 {
        self.keep_last.max(1).saturating_add(3 + u64::from(self.keep_best))
    }
}

/// The kind of failure a rung helps against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Relief {
    /// Device memory.
    Memory,
    /// Faults in kernels.
    Kernels,
    /// Non-finite values and divergence.
    Numerics,
    /// Temperature.
    Heat,
}

impl Relief {
    /// Returns the trouble in plain words: "helps against NaN losses".
    #[must_use]
    pub fn trouble(self) -> &'static str {
        match self {
            Self::Memory => "lack of memory",
            Self::Kernels => "kernel faults",
            Self::Numerics => "NaN losses",
            Self::Heat => "heat",
        }
    }
}

/// Joins the troubles that a rung helps against: `lack of memory, heat`.
#[must_use]
pub fn list_troubles(reliefs: &[Relief]) -> String {
    reliefs.iter().map(|relief| relief.trouble()).collect::<Vec<_>>().join(", ")
}

impl fmt::Display for Relief {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Memory => "memory",
            Self::Kernels => "kernels",
            Self::Numerics => "numerics",
            Self::Heat => "heat",
        })
    }
}

fn default_accumulation() -> u64 {
    1
}

fn default_threads() -> u64 {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    (cores / 2).clamp(1, 64)
}

fn default_prefetch() -> u64 {
    2
}

fn default_keep_last() -> u64 {
    3
}

fn default_proven_after() -> u64 {
    200
}

fn default_true() -> bool {
    true
}

fn default_betas() -> [f64; 2] {
    [0.9, 0.999]
}

fn default_epsilon() -> f64 {
    1e-8
}

fn default_save_interval() -> Every {
    Every::Seconds(30.0)
}
