//! Device selection by probing: the first use of a missing CUDA device panics, and a panic ends the worker.

use super::worker::WorkerArgs;
use crate::config::knobs::{Precision, Training};
use crate::protocol::device::DeviceChoice;

/// The location of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In host memory.
    Cpu,
    /// On the GPU with this index.
    Cuda(usize),
}

/// A device that is present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// The location of tensors.
    pub place: Place,
    /// The display name: `cpu`, `cuda:0 NVIDIA GeForce RTX 4090`.
    pub name: String,
    /// The identity that compiled kernels depend on: GPU model, driver, compiler; empty on the CPU.
    pub fingerprint: String,
    /// Notes about the choice for the user.
    pub notes: Vec<String>,
}

impl Chosen {
    fn cpu(notes: Vec<String>) -> Self {
        Self { place: Place::Cpu, name: "cpu".to_owned(), fingerprint: String::new(), notes }
    }

    /// Reports whether kernels are compiled while training.
    #[must_use]
    pub fn compiles(&self) -> bool {
        self.place != Place::Cpu
    }

    /// Returns the display name of the backend: `flex f32`, `cuda bf16, fused`.
    #[must_use]
    pub fn backend(&self, training: &Training) -> String {
        let recompute = if training.gradient_checkpointing { ", gradient checkpointing" } else { "" };
        match self.place {
            Place::Cpu => format!("flex {}{recompute}", training.precision),
            Place::Cuda(_) => {
                let fused = if training.fused_kernels { "fused" } else { "plain" };
                format!("cuda {}, {fused}{recompute}", training.precision)
            }
        }
    }
}

/// Finds the requested device.
///
/// # Errors
/// Returns one sentence with the remedy.
pub fn choose(asked: DeviceChoice, precision: Precision) -> Result<Chosen, String> {
    let chosen = match asked {
        DeviceChoice::Cpu => Chosen::cpu(Vec::new()),
        DeviceChoice::Cuda(index) => look(index)?,
        DeviceChoice::Auto => match look(0) {
            Ok(chosen) => chosen,
            Err(why) => {
                let why =
                    why.trim_end_matches(", or train with --device cpu").trim_end_matches("; train with --device cpu");
                Chosen::cpu(vec![format!("training on the CPU: {why}")])
            }
        },
    };
    if chosen.place == Place::Cpu && precision != Precision::F32 {
        let why = chosen
            .notes
            .first()
            .map(|note| format!(" ({})", note.trim_start_matches("training on the CPU: ")))
            .unwrap_or_default();
        return Err(format!("{precision} does not train on the CPU{why}; use f32"));
    }
    Ok(chosen)
}

#[cfg(feature = "cuda")]
fn look(index: usize) -> Result<Chosen, String> {
    let gpu = super::cuda_probe::look(index)?;
    Ok(Chosen {
        place: Place::Cuda(index),
        name: format!("cuda:{index} {}", gpu.name),
        fingerprint: gpu.fingerprint(),
        notes: Vec::new(),
    })
}

#[cfg(not(feature = "cuda"))]
fn look(_index: usize) -> Result<Chosen, String> {
    Err("this build has no CUDA backend; build it with the feature `cuda`".to_owned())
}

/// Configures the kernel caches before the first use of the device.
#[cfg(feature = "cuda")]
pub fn prepare(chosen: &Chosen, args: &WorkerArgs) {
    if chosen.compiles() {
        super::kernels::settle(&args.run_dir, &chosen.fingerprint, args.preset.training.autotune);
    }
}

/// Configures the kernel caches before the first use of the device.
#[cfg(not(feature = "cuda"))]
pub fn prepare(_chosen: &Chosen, _args: &WorkerArgs) {}

#[cfg(test)]
mod tests {
    use super::{Place, choose};
    use crate::config::knobs::Precision;
    use crate::protocol::device::DeviceChoice;

    #[test]
    fn sixteen_bits_on_the_cpu_are_refused_and_f32_is_named() {
        for precision in [Precision::Bf16, Precision::F16] {
            let refusal = choose(DeviceChoice::Cpu, precision).unwrap_err();
            assert!(refusal.contains("use f32") && refusal.contains(&precision.to_string()), "{refusal}");
        }
        assert_eq!(choose(DeviceChoice::Cpu, Precision::F32).unwrap().place, Place::Cpu);
    }

    #[test]
    fn a_gpu_that_is_not_there_is_an_error_and_for_auto_a_note() {
        let Err(refusal) = choose(DeviceChoice::Cuda(99), Precision::F32) else { panic!("99 GPUs") };
        assert!(refusal.contains("; "), "says no way out: {refusal}");
        let chosen = choose(DeviceChoice::Auto, Precision::F32).unwrap();
        assert!(chosen.place != Place::Cpu || chosen.notes[0].starts_with("training on the CPU: "));
    }
}
