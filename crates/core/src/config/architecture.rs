//! The optimizer of an architecture search's second phase: `optimizer.architecture`.

use serde::{Deserialize, Serialize};

/// Settings of `AdamW` for the architecture. Clipping, epsilon and the storage of moments are those of the weights.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ArchitectureOptimizer {
    /// The learning rate, constant over the run.
    pub lr: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Decay rates (betas) of the two moments.
    pub betas: [f64; 2],
}

/// The settings of DARTS (Liu, Simonyan, Yang, 2019), with a rate for the shorter searches of this program.
impl Default for ArchitectureOptimizer {
    fn default() -> Self {
        Self { lr: 3e-3, weight_decay: 1e-3, betas: [0.5, 0.999] }
    }
}
