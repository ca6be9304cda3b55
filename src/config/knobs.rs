//! The knobs of a preset, as they stand in a run file.

use super::groups::{Groups, Trained};
use super::units::Every;
use crate::recipe::schedule::Schedule;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;

pub use super::best::Best;
pub use super::moments::MomentBits;
pub use super::watch::Watch;

/// A section that belongs to the task: its own config types read it.
pub type Section = Map<String, Value>;

/// A full set of training knobs: one rung.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// Where the data are; read by the task.
    #[serde(default)]
    pub data: Section,
    /// The shape of the model; read by the task.
    #[serde(default)]
    pub model: Section,
    /// How steps are taken.
    pub training: Training,
    /// How weights move.
    pub optimizer: Optimizer,
    /// When to measure on the validation set.
    #[serde(default)]
    pub evaluation: Evaluation,
    /// When to save and what to keep.
    #[serde(default)]
    pub checkpoint: Checkpoint,
}

/// How steps are taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Training {
    /// Passes over the training data; or `steps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u64>,
    /// Optimizer steps in all; or `epochs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Samples per forward and backward pass.
    pub micro_batch: u64,
    /// Passes per optimizer step.
    #[serde(default = "one")]
    pub accumulation: u64,
    /// Number format of the computation.
    #[serde(default)]
    pub precision: Precision,
    /// Everything random follows from it.
    #[serde(default)]
    pub seed: u64,
    /// Recompute activations in the backward pass instead of keeping them.
    #[serde(default)]
    pub gradient_checkpointing: bool,
    /// Fuse element-wise kernels (CUDA only).
    #[serde(default = "yes")]
    pub fused_kernels: bool,
    /// How hard to search for fast kernels (CUDA only).
    #[serde(default)]
    pub autotune: Autotune,
    /// Give unused device memory back every so many optimizer steps; 0 = never.
    #[serde(default)]
    pub memory_cleanup_every: u64,
    /// What is trained: all where it is left out, or the adapters alone where there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trained: Option<Trained>,
    /// How data are loaded.
    #[serde(default)]
    pub loader: Loader,
}

/// Number format of the computation.
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

/// How hard to search for fast kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Autotune {
    /// A few candidates.
    Minimal,
    /// The default of the compiler.
    #[default]
    Balanced,
    /// More candidates.
    Extensive,
    /// All of them.
    Full,
}

/// How data are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loader {
    /// Threads that prepare micro-batches: half the cores, so that the worker keeps the others.
    #[serde(default = "half_the_cores")]
    pub threads: u64,
    /// Micro-batches kept ready.
    #[serde(default = "two")]
    pub prefetch: u64,
}

impl Default for Loader {
    fn default() -> Self {
        Self { threads: half_the_cores(), prefetch: two() }
    }
}

/// How weights move: `AdamW` (Loshchilov and Hutter, 2017).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Optimizer {
    /// Peak learning rate.
    pub lr: f64,
    /// Decoupled weight decay; biases and norms are left out.
    #[serde(default)]
    pub weight_decay: f64,
    /// The gradient is scaled down to this norm; none = never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_norm: Option<f64>,
    /// Decay rates of the two moments.
    #[serde(default = "betas")]
    pub betas: [f64; 2],
    /// Added to the denominator.
    #[serde(default = "epsilon")]
    pub epsilon: f64,
    /// How many bits the two moments take.
    #[serde(default)]
    pub moments: MomentBits,
    /// Keep moments and f32 master weights in host memory; they visit the device one by one.
    #[serde(default)]
    pub offload: bool,
    /// The learning rate over the run.
    #[serde(default)]
    pub schedule: Schedule,
    /// Parameters with rules of their own.
    #[serde(default, skip_serializing_if = "Groups::is_empty")]
    pub groups: Groups,
}

/// When to measure on the validation set.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evaluation {
    /// The rhythm; the end of the run is always measured.
    pub every: Every,
}

impl Default for Evaluation {
    fn default() -> Self {
        Self { every: Every::Epochs(1) }
    }
}

/// When to save and what to keep.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Checkpoint {
    /// The rhythm; the end of the run is always saved.
    #[serde(default = "half_a_minute")]
    pub every: Every,
    /// How many of the newest to keep.
    #[serde(default = "three")]
    pub keep_last: u64,
    /// Save every new best evaluation, and keep that checkpoint too.
    #[serde(default = "yes")]
    pub keep_best: bool,
    /// Which evaluation is the best.
    #[serde(default)]
    pub best: Best,
    /// A checkpoint is proven after so many clean steps beyond it; the newest proven one stays.
    #[serde(default = "two_hundred")]
    pub proven_after: u64,
}

impl Default for Checkpoint {
    fn default() -> Self {
        let (every, best) = (half_a_minute(), Best::default());
        Self { every, keep_last: 3, keep_best: true, best, proven_after: two_hundred() }
    }
}

impl Checkpoint {
    /// How many checkpoints lie on the disk at the worst moment: the newest ones, the newest proven
    /// one, the one to be proven next, the best, and one that is being written.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.keep_last.max(1).saturating_add(3 + u64::from(self.keep_best))
    }
}

/// What a rung helps against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Relief {
    /// Device memory.
    Memory,
    /// Faults in kernels.
    Kernels,
    /// Non-finite numbers and divergence.
    Numerics,
    /// Temperature.
    Heat,
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

fn one() -> u64 {
    1
}

fn half_the_cores() -> u64 {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    (cores / 2).clamp(1, 64)
}

fn two() -> u64 {
    2
}

fn three() -> u64 {
    3
}

fn two_hundred() -> u64 {
    200
}

fn yes() -> bool {
    true
}

fn betas() -> [f64; 2] {
    [0.9, 0.999]
}

fn epsilon() -> f64 {
    1e-8
}

fn half_a_minute() -> Every {
    Every::Seconds(30.0)
}
