//! The memory plan of a run: the estimate for each rung, the measurements, and the verdict.
//! `plan.json` in a run directory holds one; `downshift plan --format json` prints one.

use serde::{Deserialize, Serialize};

/// File name of the plan in a run directory.
pub const PLAN_FILE: &str = "plan.json";

/// Ways to reduce a rung's memory, in the order to try.
pub const LESS_MEMORY: &str = "make the micro-batch smaller; then take a smaller model; then train in mixed precision \
                               (training.precision: bf16); then accumulate more passes, which keeps the effective batch";

/// Ways to reduce the memory of a rung that does not fit even with a micro-batch of one sample.
pub const LESS_THAN_ONE_SAMPLE: &str =
    "not even one sample at a time; take a smaller model, or train in mixed precision (training.precision: bf16)";

/// Place of training and its available memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// Whether it is a GPU.
    pub gpu: bool,
    /// Bytes available to the worker, if known.
    pub room: Option<u64>,
    /// All bytes of the device's memory, if known.
    pub memory: Option<u64>,
}

/// Memory needs of all rungs, and the available memory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Version of this format: 1.
    pub version: u32,
    /// The run's name.
    pub run: String,
    /// Task name in the run file (`task:`).
    pub task: String,
    /// Device to train on, for display.
    pub device: String,
    /// Whether tensors are on a GPU, and not in host memory.
    pub gpu: bool,
    /// Memory available to tensors, if known.
    pub card: Option<Card>,
    /// One entry per rung.
    pub rungs: Vec<RungPlan>,
}

/// The memory of a GPU, or of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// Its name.
    pub name: String,
    /// Total bytes.
    pub total_bytes: u64,
    /// Bytes free now, if known.
    pub free_bytes: Option<u64>,
}

impl Card {
    /// Returns the bytes a worker may count on.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.free_bytes.unwrap_or(self.total_bytes)
    }
}

/// Memory needs of one rung.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RungPlan {
    /// Its name.
    pub name: String,
    /// Its `training.micro_batch`.
    pub micro_batch: u64,
    /// Estimate from shapes and knobs; none when the task's model cannot be estimated.
    #[serde(rename = "foreseen")]
    pub estimate: Option<MemoryEstimate>,
    /// Reason for a missing estimate, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
    /// Best estimate of peak device memory: computed from shapes, scaled by the measurements of rungs that ran.
    pub total_bytes: Option<u64>,
    /// Whether it fits.
    pub verdict: Fit,
    /// Measured needs of a worker on this rung.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
    /// Reason why a worker on this rung could not be measured, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// Memory estimate from shapes and knobs, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryEstimate {
    /// Number of parameters.
    pub parameters: u64,
    /// Number of trained parameters.
    pub trained: u64,
    /// Weights as used in computation, and the model's constants.
    pub weights: u64,
    /// Gradients of the trained parameters.
    pub gradients: u64,
    /// Moments, and f32 master copies of 16-bit weights.
    pub optimizer: u64,
    /// Peak of activations kept for the backward pass, workspace included.
    pub activations: u64,
    /// Peak of the logits and everything computed from them.
    pub logits: u64,
    /// Workspace of the optimizer while it updates a parameter.
    #[serde(default)]
    pub update: u64,
    /// Kernels and the driver's context; on the CPU, code that only training runs, and stacks.
    pub overhead: u64,
    /// Room left in the pages that training takes; 0 on the CPU.
    #[serde(default)]
    pub pages: u64,
    /// Peak during training on the device. Not all parts exist at the same time.
    pub training: u64,
    /// Peak while weights are initialized or read.
    pub loading: u64,
    /// Peak during an evaluation.
    pub evaluation: u64,
    /// Peak while a checkpoint is made; on the CPU, training continues meanwhile.
    pub saving: u64,
    /// Micro-batches prefetched by the loader.
    pub loader: u64,
    /// The data set in host memory.
    pub data: u64,
    /// Host memory per phase.
    pub ram: Phases,
    /// Largest micro-batch that fits; none when the available memory is unknown, or not even one sample fits.
    pub largest_micro_batch: Option<u64>,
}

/// Bytes per phase of the worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases {
    /// Reading data, weights and checkpoints.
    pub loading: u64,
    /// Taking steps.
    pub training: u64,
    /// Evaluating on the validation set.
    pub evaluation: u64,
    /// Writing a checkpoint while training continues.
    pub saving: u64,
}

/// Measured needs of a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Peak device memory above the level before the model was loaded: VRAM, or on the CPU resident memory.
    pub peak_bytes: Option<u64>,
    /// Whether the peak covers all phases of a run, and not only training steps.
    #[serde(default)]
    pub all_phases: bool,
    /// Whether the driver reports no memory per process, so the peak is that of the whole card above its level before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_card: bool,
    /// Resident memory after loading the data, before the model.
    pub baseline_bytes: Option<u64>,
    /// Peak resident memory per phase.
    pub ram: Phases,
    /// Optimizer steps per second, from the median step time.
    pub steps_per_s: Option<f64>,
    /// Median step time, in milliseconds.
    pub step_ms: Option<f64>,
    /// Units of the run's clock per second.
    pub units_per_s: Option<f64>,
    /// Number of steps taken.
    pub steps: u64,
    /// Loss of the last step.
    pub loss: Option<f64>,
    /// Seconds from the start of the worker to its first step.
    pub first_step_s: Option<f64>,
}

/// Whether a rung fits into the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fit {
    /// With room to spare.
    Fits,
    /// Uses more than 90 % of the available memory.
    Tight,
    /// Needs more than the available memory.
    DoesNotFit,
    /// Needs or available memory are unknown.
    Unknown,
}

impl Fit {
    /// Judges `needed` bytes against the available `room`.
    #[must_use]
    pub fn of(needed: Option<u64>, room: Option<u64>) -> Self {
        let (Some(needed), Some(room)) = (needed, room) else { return Self::Unknown };
        if needed > room {
            Self::DoesNotFit
        } else if needed > room - room / 10 {
            Self::Tight
        } else {
            Self::Fits
        }
    }
}

impl std::fmt::Display for Fit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Fits => "fits",
            Self::Tight => "tight",
            Self::DoesNotFit => "does not fit",
            Self::Unknown => "unknown",
        })
    }
}

impl Plan {
    /// Returns why no rung can be planned, if the reason is the same for all.
    #[must_use]
    pub fn unknown_for_all(&self) -> Option<String> {
        let first = self.rungs.first()?.unknown.clone()?;
        self.rungs.iter().all(|rung| rung.unknown.as_ref() == Some(&first)).then_some(first)
    }

    /// Updates totals and verdicts with all measurements. A rung that ran needs the memory it was measured
    /// to need. For the other rungs, the state (weights and moments) is exact; the rest is scaled by the
    /// mean ratio of measured to estimated over the rungs that ran. On the CPU the program and its data
    /// share the available memory.
    pub fn settle(&mut self) {
        let beyond = |peak: u64, estimate: &MemoryEstimate| peak.saturating_sub(estimate.state());
        let ratio = |rung: &RungPlan| {
            let (estimate, measured) = (rung.estimate.as_ref()?, rung.measured.as_ref()?);
            let thought = beyond(measured.matching_estimate(estimate), estimate);
            let seen = measured.peak_bytes?.saturating_sub(estimate.state());
            (thought > 0 && seen > 0).then(|| seen as f64 / thought as f64)
        };
        let ratios: Vec<f64> = self.rungs.iter().filter_map(ratio).collect();
        let scale = if ratios.is_empty() { 1.0 } else { ratios.iter().sum::<f64>() / ratios.len() as f64 };
        let room = self.card.as_ref().map(Card::room);
        for rung in &mut self.rungs {
            let scaled = |estimate: &MemoryEstimate| {
                let state = estimate.state().min(estimate.peak());
                state + (beyond(estimate.peak(), estimate) as f64 * scale) as u64
            };
            let measured = rung.measured.and_then(|measured| {
                // Measured need of training steps, and the extra need of other phases.
                let more = rung.estimate.as_ref().map_or(0, |all| all.peak() - measured.matching_estimate(all));
                Some(measured.peak_bytes? + more)
            });
            rung.total_bytes = measured.or_else(|| rung.estimate.as_ref().map(scaled));
            let beside = rung.estimate.as_ref().filter(|_| !self.gpu).map_or(0, MemoryEstimate::baseline);
            rung.verdict = Fit::of(rung.total_bytes.map(|bytes| bytes + beside), room);
        }
    }
}

impl Measured {
    /// Creates the measurement of a worker in a run from the probe's peak; on the CPU, minus the
    /// planned level before the model exists.
    #[must_use]
    pub fn in_a_run(estimate: Option<&MemoryEstimate>, vram: Option<u64>, ram: Option<u64>, gpu: bool) -> Option<Self> {
        if gpu {
            return vram.map(|bytes| Self { peak_bytes: Some(bytes), all_phases: true, ..Self::default() });
        }
        let (baseline, ram) = (estimate?.baseline(), ram?);
        let peak = ram.saturating_sub(baseline);
        Some(Self { peak_bytes: Some(peak), all_phases: true, baseline_bytes: Some(baseline), ..Self::default() })
    }

    /// Returns the part of the estimate that corresponds to this measurement.
    #[must_use]
    pub fn matching_estimate(&self, estimate: &MemoryEstimate) -> u64 {
        if self.all_phases { estimate.peak() } else { estimate.training }
    }
}

impl MemoryEstimate {
    /// Returns the peak on the device over all phases.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.training.max(self.loading).max(self.evaluation).max(self.saving)
    }

    /// Returns the host memory in use before the model exists: the program and the data.
    #[must_use]
    pub fn baseline(&self) -> u64 {
        self.ram.training.saturating_sub(self.training)
    }

    /// Returns the memory that persists between steps: weights and moments.
    #[must_use]
    pub fn state(&self) -> u64 {
        self.weights + self.optimizer
    }
}

/// Progress of a run through its climb plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanStatus {
    /// Number of stages in the plan.
    pub stages: usize,
    /// Stage number, from 1; none once the user chose a rung outside the plan.
    pub stage: Option<usize>,
    /// Rung of that stage; after a fault the run may be on another for a while.
    pub rung: Option<String>,
    /// Rung of the next stage.
    pub next: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::{Card, Fit, Measured, MemoryEstimate, Plan, RungPlan};

    fn rung(name: &str, state: u64, training: u64, measured: Option<u64>) -> RungPlan {
        let estimate = MemoryEstimate { weights: state, training, ..MemoryEstimate::default() };
        let measured = measured.map(|bytes| Measured { peak_bytes: Some(bytes), ..Measured::default() });
        RungPlan {
            name: name.to_owned(),
            micro_batch: 1,
            estimate: Some(estimate),
            unknown: None,
            total_bytes: None,
            verdict: Fit::Unknown,
            measured,
            failed: None,
        }
    }

    #[test]
    fn measurements_correct_the_rungs_that_never_ran() {
        let card = Card { name: "a card".to_owned(), total_bytes: 1000, free_bytes: None };
        // State is 100, the rest is estimated at 400 and measured at 500: a quarter more.
        let rungs = vec![rung("ran", 100, 500, Some(600)), rung("never", 200, 600, None), rung("big", 200, 1000, None)];
        let (run, task, device) = ("a".to_owned(), "lm".to_owned(), "cpu".to_owned());
        let mut plan = Plan { version: 1, run, task, device, gpu: false, card: Some(card), rungs };
        plan.settle();
        let totals: Vec<_> = plan.rungs.iter().map(|rung| (rung.total_bytes, rung.verdict)).collect();
        assert_eq!(totals, [(Some(600), Fit::Fits), (Some(200 + 500), Fit::Fits), (Some(200 + 1000), Fit::DoesNotFit)]);
        plan.rungs[0].measured = None;
        plan.settle();
        assert_eq!(plan.rungs[1].total_bytes, Some(600), "nothing measured, nothing corrected");
        assert_eq!(plan.rungs[2].verdict, Fit::Tight);
    }

    #[test]
    fn a_tenth_is_kept_free_before_it_is_called_tight() {
        for (needed, verdict) in
            [(0, Fit::Fits), (900, Fit::Fits), (901, Fit::Tight), (1000, Fit::Tight), (1001, Fit::DoesNotFit)]
        {
            assert_eq!(Fit::of(Some(needed), Some(1000)), verdict, "{needed}");
        }
        assert_eq!(Fit::of(Some(1), None), Fit::Unknown);
        assert_eq!(Fit::of(None, Some(1)), Fit::Unknown);
    }
}
