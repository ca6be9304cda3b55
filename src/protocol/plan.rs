//! The plan of a run's memory: what is foreseen for each rung, what was measured, and the verdict.
//! `plan.json` of a run directory holds one; `downshift plan --format json` prints one.

use serde::{Deserialize, Serialize};

/// The plan of a run directory.
pub const PLAN_FILE: &str = "plan.json";

/// How a rung gets by with less memory, in the order to try.
pub const LESS_MEMORY: &str = "make the micro-batch smaller; then take a smaller model; then train in mixed precision \
                               (training.precision: bf16); then accumulate more passes, which keeps the effective batch";

/// Where it is to be trained, and in how much room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// On a GPU.
    pub gpu: bool,
    /// Bytes there for the worker, where it is known.
    pub room: Option<u64>,
}

/// What all rungs need, beside what there is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The version of this format: 1.
    pub version: u32,
    /// The run's name.
    pub run: String,
    /// The word after `task:`.
    pub task: String,
    /// Where it is to be trained, for people.
    pub device: String,
    /// Whether tensors lie on a GPU; else in host memory.
    pub gpu: bool,
    /// The memory that tensors have, where it is known.
    pub card: Option<Card>,
    /// One entry a rung.
    pub rungs: Vec<RungPlan>,
}

/// The memory of a card, or of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    /// What it is called.
    pub name: String,
    /// All of it, bytes.
    pub total_bytes: u64,
    /// What is free now, bytes, where it is known.
    pub free_bytes: Option<u64>,
}

impl Card {
    /// What a worker may count on.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.free_bytes.unwrap_or(self.total_bytes)
    }
}

/// What one rung needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RungPlan {
    /// Its name.
    pub name: String,
    /// Its knob `training.micro_batch`.
    pub micro_batch: u64,
    /// What follows from shapes and knobs; none where the task's model cannot be counted.
    pub foreseen: Option<Foreseen>,
    /// Why it cannot, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<String>,
    /// The most memory of the device by the best knowledge there is: foreseen, scaled by what was
    /// measured on the rungs that ran.
    pub total_bytes: Option<u64>,
    /// Whether it fits.
    pub verdict: Verdict,
    /// What a worker of this rung was seen to need.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
    /// Why a worker of this rung could not be measured, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// What follows from shapes and knobs, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreseen {
    /// Parameters.
    pub parameters: u64,
    /// Parameters that are trained.
    pub trained: u64,
    /// Weights as the model computes with them, and its constants.
    pub weights: u64,
    /// Gradients of what is trained.
    pub gradients: u64,
    /// Moments, and f32 masters of 16-bit weights.
    pub optimizer: u64,
    /// What the forward pass leaves for the backward pass, at its highest, with room on the side.
    pub activations: u64,
    /// Scores of the possible answers and what is computed from them, at their highest.
    pub logits: u64,
    /// What the optimizer needs on the side while it moves a parameter.
    #[serde(default)]
    pub update: u64,
    /// Kernels and the context of the driver; 0 on the CPU.
    pub overhead: u64,
    /// The highest moment of training on the device. Not all parts are there at once.
    pub training: u64,
    /// The highest moment while weights are drawn or read.
    pub loading: u64,
    /// The highest moment of an evaluation.
    pub evaluation: u64,
    /// The highest moment while a checkpoint is made; on the CPU, training goes on meanwhile.
    pub saving: u64,
    /// Micro-batches that the loader holds ready.
    pub loader: u64,
    /// The data set, as it lies in host memory.
    pub data: u64,
    /// Host memory by phase.
    pub ram: Phases,
    /// The largest micro-batch that fits; none where there is no room to compare with, or not even
    /// one sample fits.
    pub largest_micro_batch: Option<u64>,
}

/// Bytes by what the worker does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases {
    /// Reading data, weights and checkpoints.
    pub loading: u64,
    /// Taking steps.
    pub training: u64,
    /// Measuring on the validation set.
    pub evaluation: u64,
    /// Writing a checkpoint while training goes on.
    pub saving: u64,
}

/// What a worker was seen to need.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The most memory of the device over what was there before the model: VRAM, or on the CPU
    /// resident memory.
    pub peak_bytes: Option<u64>,
    /// Whether that is of all a run does, not of training steps alone.
    #[serde(default)]
    pub all_phases: bool,
    /// Resident memory once the data were loaded, before the model.
    pub baseline_bytes: Option<u64>,
    /// The highest resident memory by phase.
    pub ram: Phases,
    /// Optimizer steps per second, from the median step.
    pub steps_per_s: Option<f64>,
    /// The median time of a step.
    pub step_ms: Option<f64>,
    /// Units of the run's clock per second.
    pub units_per_s: Option<f64>,
    /// Steps taken.
    pub steps: u64,
    /// Loss of the last step.
    pub loss: Option<f64>,
    /// Seconds from the start of the worker to its first step.
    pub first_step_s: Option<f64>,
}

/// Whether a rung fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// With room to spare.
    Fits,
    /// Within a tenth of what there is.
    Tight,
    /// It needs more than there is.
    DoesNotFit,
    /// Need or room are not known.
    Unknown,
}

impl Verdict {
    /// Of so many bytes in so much room.
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

impl std::fmt::Display for Verdict {
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
    /// Why no rung can be planned, where it is the same for all.
    #[must_use]
    pub fn unknown_for_all(&self) -> Option<String> {
        let first = self.rungs.first()?.unknown.clone()?;
        self.rungs.iter().all(|rung| rung.unknown.as_ref() == Some(&first)).then_some(first)
    }

    /// Settles totals and verdicts by all that was measured. A rung that ran needs what it was seen
    /// to need. Of the others, state (weights and moments) is exact; what goes beyond it is scaled by
    /// the mean of measured to foreseen over the rungs that ran. On the CPU the program and its data
    /// share the room.
    pub fn settle(&mut self) {
        let beyond = |peak: u64, foreseen: &Foreseen| peak.saturating_sub(foreseen.state());
        let ratio = |rung: &RungPlan| {
            let (foreseen, measured) = (rung.foreseen.as_ref()?, rung.measured.as_ref()?);
            let thought = beyond(measured.foreseen(foreseen), foreseen);
            let seen = measured.peak_bytes?.saturating_sub(foreseen.state());
            (thought > 0 && seen > 0).then(|| seen as f64 / thought as f64)
        };
        let ratios: Vec<f64> = self.rungs.iter().filter_map(ratio).collect();
        let scale = if ratios.is_empty() { 1.0 } else { ratios.iter().sum::<f64>() / ratios.len() as f64 };
        let room = self.card.as_ref().map(Card::room);
        for rung in &mut self.rungs {
            let scaled = |foreseen: &Foreseen| {
                let state = foreseen.state().min(foreseen.peak());
                state + (beyond(foreseen.peak(), foreseen) as f64 * scale) as u64
            };
            let measured = rung.measured.and_then(|measured| {
                // What training steps were seen to need, and what other phases need beyond them.
                let more = rung.foreseen.as_ref().map_or(0, |all| all.peak() - measured.foreseen(all));
                Some(measured.peak_bytes? + more)
            });
            rung.total_bytes = measured.or_else(|| rung.foreseen.as_ref().map(scaled));
            let beside = rung.foreseen.as_ref().filter(|_| !self.gpu).map_or(0, Foreseen::baseline);
            rung.verdict = Verdict::of(rung.total_bytes.map(|bytes| bytes + beside), room);
        }
    }
}

impl Measured {
    /// What a worker of a run took, from the most that the probe saw of it; on the CPU over what the
    /// plan says was there before.
    #[must_use]
    pub fn in_a_run(foreseen: Option<&Foreseen>, vram: Option<u64>, ram: Option<u64>, gpu: bool) -> Option<Self> {
        if gpu {
            return vram.map(|bytes| Self { peak_bytes: Some(bytes), all_phases: true, ..Self::default() });
        }
        let (baseline, ram) = (foreseen?.baseline(), ram?);
        let peak = ram.saturating_sub(baseline);
        Some(Self { peak_bytes: Some(peak), all_phases: true, baseline_bytes: Some(baseline), ..Self::default() })
    }

    /// What was foreseen of that which was measured.
    #[must_use]
    pub fn foreseen(&self, foreseen: &Foreseen) -> u64 {
        if self.all_phases { foreseen.peak() } else { foreseen.training }
    }
}

impl Foreseen {
    /// The highest moment on the device, whatever the worker does.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.training.max(self.loading).max(self.evaluation).max(self.saving)
    }

    /// Host memory before there is a model: the program and the data.
    #[must_use]
    pub fn baseline(&self) -> u64 {
        self.ram.training.saturating_sub(self.training)
    }

    /// What is there from step to step: weights and moments.
    #[must_use]
    pub fn state(&self) -> u64 {
        self.weights + self.optimizer
    }
}

#[cfg(test)]
mod tests {
    use super::{Card, Foreseen, Measured, Plan, RungPlan, Verdict};

    fn rung(name: &str, state: u64, training: u64, measured: Option<u64>) -> RungPlan {
        let foreseen = Foreseen { weights: state, training, ..Foreseen::default() };
        let measured = measured.map(|bytes| Measured { peak_bytes: Some(bytes), ..Measured::default() });
        RungPlan {
            name: name.to_owned(),
            micro_batch: 1,
            foreseen: Some(foreseen),
            unknown: None,
            total_bytes: None,
            verdict: Verdict::Unknown,
            measured,
            failed: None,
        }
    }

    #[test]
    fn what_was_measured_corrects_the_rungs_that_never_ran() {
        let card = Card { name: "a card".to_owned(), total_bytes: 1000, free_bytes: None };
        // 100 of state and 400 foreseen beyond it, of which 500 were seen: a quarter more.
        let rungs = vec![rung("ran", 100, 500, Some(600)), rung("never", 200, 600, None), rung("big", 200, 1000, None)];
        let (run, task, device) = ("a".to_owned(), "lm".to_owned(), "cpu".to_owned());
        let mut plan = Plan { version: 1, run, task, device, gpu: false, card: Some(card), rungs };
        plan.settle();
        let totals: Vec<_> = plan.rungs.iter().map(|rung| (rung.total_bytes, rung.verdict)).collect();
        assert_eq!(
            totals,
            [(Some(600), Verdict::Fits), (Some(200 + 500), Verdict::Fits), (Some(200 + 1000), Verdict::DoesNotFit)]
        );
        plan.rungs[0].measured = None;
        plan.settle();
        assert_eq!(plan.rungs[1].total_bytes, Some(600), "nothing measured, nothing corrected");
        assert_eq!(plan.rungs[2].verdict, Verdict::Tight);
    }

    #[test]
    fn a_tenth_is_kept_free_before_it_is_called_tight() {
        for (needed, verdict) in [
            (0, Verdict::Fits),
            (900, Verdict::Fits),
            (901, Verdict::Tight),
            (1000, Verdict::Tight),
            (1001, Verdict::DoesNotFit),
        ] {
            assert_eq!(Verdict::of(Some(needed), Some(1000)), verdict, "{needed}");
        }
        assert_eq!(Verdict::of(Some(1), None), Verdict::Unknown);
        assert_eq!(Verdict::of(None, Some(1)), Verdict::Unknown);
    }
}
