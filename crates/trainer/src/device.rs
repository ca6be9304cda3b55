//! Device selection by probing: the first use of a missing CUDA device panics, and a panic ends the worker.

#[cfg(feature = "cuda")]
use super::cuda_probe::GpuError;
use super::kernel_start::KernelStart;
use downshift_core::config::knobs::{Precision, Preset, Training};
use downshift_core::protocol::device::{DeviceChoice, NotOneIndex};
use std::fmt;
use std::path::Path;

/// The location of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorDevice {
    /// In host memory.
    Cpu,
    /// On the GPU with this index.
    Cuda(usize),
}

/// A device that is present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChosenDevice {
    /// The location of tensors.
    pub location: TensorDevice,
    /// The display name: `cpu`, `cuda:0 NVIDIA GeForce RTX 4090`.
    pub name: String,
    /// Its memory in bytes, as the driver reports it; none on the CPU.
    pub memory_bytes: Option<u64>,
    /// The identity that compiled kernels depend on: GPU model, driver, compiler; empty on the CPU.
    pub fingerprint: String,
    /// The reason for training on the CPU where a GPU would have been used.
    pub fallback: Option<NoGpu>,
}

/// The reason why no GPU can be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoGpu {
    /// The CUDA backend is not compiled in.
    #[error("this build has no CUDA backend; build it with the feature `cuda`")]
    NotBuilt,
    /// The driver, its library or the toolkit is missing or broken.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Probe(#[from] GpuError),
}

/// The reason why a requested device cannot train.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The requested GPU cannot be used.
    #[error("{0}; --device cpu trains without a GPU")]
    NoGpu(#[from] NoGpu),
    /// Several GPUs were requested, or one by its UUID.
    #[error(transparent)]
    NotOneIndex(#[from] NotOneIndex),
    /// The CPU trains in f32 only.
    #[error("{0}; use f32")]
    PrecisionNeedsGpu(PrecisionNeedsGpu),
}

/// A 16-bit precision on the CPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrecisionNeedsGpu {
    /// The precision.
    pub precision: Precision,
    /// The reason why there is no GPU, if one was looked for.
    pub fallback: Option<NoGpu>,
}

impl fmt::Display for PrecisionNeedsGpu {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} does not train on the CPU", self.precision)?;
        self.fallback.as_ref().map_or(Ok(()), |reason| write!(formatter, " ({reason})"))
    }
}

impl ChosenDevice {
    fn cpu(fallback: Option<NoGpu>) -> Self {
        let name = "cpu".to_owned();
        Self { location: TensorDevice::Cpu, name, memory_bytes: None, fingerprint: String::new(), fallback }
    }

    /// Returns a note for the user if training falls back to the CPU.
    #[must_use]
    pub fn note(&self) -> Option<String> {
        self.fallback.as_ref().map(|reason| format!("training on the CPU: {reason}"))
    }

    /// Reports whether kernels are compiled while training.
    #[must_use]
    pub fn compiles_kernels(&self) -> bool {
        self.location != TensorDevice::Cpu
    }

    /// Returns the display name of the backend: `f32`, `cuda bf16, fused`.
    #[must_use]
    pub fn backend_name(&self, training: &Training) -> String {
        let recompute = if training.gradient_checkpointing { ", gradient checkpointing" } else { "" };
        match self.location {
            TensorDevice::Cpu => format!("{}{recompute}", training.precision),
            TensorDevice::Cuda(_) => {
                let fused = if training.fused_kernels { "fused" } else { "plain" };
                format!("cuda {}, {fused}{recompute}", training.precision)
            }
        }
    }
}

/// Finds the requested device.
///
/// # Errors
/// Returns an error when the device is missing or cannot train in this precision.
pub fn choose_device(requested: &DeviceChoice, precision: Precision) -> Result<ChosenDevice, DeviceError> {
    let chosen = match requested {
        DeviceChoice::Cpu => ChosenDevice::cpu(None),
        DeviceChoice::Cuda(cards) => probe_gpu(cards.only_index()?)?,
        DeviceChoice::Auto => probe_gpu(0).unwrap_or_else(|reason| ChosenDevice::cpu(Some(reason))),
    };
    if chosen.location == TensorDevice::Cpu && precision != Precision::F32 {
        return Err(DeviceError::PrecisionNeedsGpu(PrecisionNeedsGpu { precision, fallback: chosen.fallback }));
    }
    Ok(chosen)
}

#[cfg(feature = "cuda")]
fn probe_gpu(index: usize) -> Result<ChosenDevice, NoGpu> {
    let gpu = super::cuda_probe::probe_gpu(index)?;
    Ok(ChosenDevice {
        location: TensorDevice::Cuda(index),
        name: format!("cuda:{index} {}", gpu.name),
        memory_bytes: Some(gpu.memory_bytes),
        fingerprint: format!("{}-{}", gpu.fingerprint(), super::own_kernels::own_kernels_version()),
        fallback: None,
    })
}

#[cfg(not(feature = "cuda"))]
fn probe_gpu(_index: usize) -> Result<ChosenDevice, NoGpu> {
    Err(NoGpu::NotBuilt)
}

/// Configures the kernel caches before the first use of a device that compiles kernels.
#[cfg(feature = "cuda")]
pub fn configure_kernel_caches(chosen: &ChosenDevice, run_dir: &Path, preset: &Preset) -> Option<KernelStart> {
    chosen.compiles_kernels().then(|| super::kernel_cache::configure_caches(run_dir, &chosen.fingerprint, preset))
}

/// Configures the kernel caches before the first use of a device that compiles kernels.
#[cfg(not(feature = "cuda"))]
pub fn configure_kernel_caches(_chosen: &ChosenDevice, _run_dir: &Path, _preset: &Preset) -> Option<KernelStart> {
    None
}

#[cfg(test)]
mod tests {
    use super::{DeviceError, TensorDevice, choose_device};
    use downshift_core::config::knobs::Precision;
    use downshift_core::protocol::device::DeviceChoice;

    #[test]
    fn sixteen_bits_on_the_cpu_are_refused_and_f32_is_named() {
        for precision in [Precision::Bf16, Precision::F16] {
            let refusal = choose_device(&DeviceChoice::Cpu, precision).unwrap_err();
            let DeviceError::PrecisionNeedsGpu(needs) = &refusal else { panic!("{refusal}") };
            assert_eq!((needs.precision, &needs.fallback), (precision, &None));
            let text = refusal.to_string();
            assert!(text.contains("use f32") && text.contains(&precision.to_string()), "{text}");
        }
        assert_eq!(choose_device(&DeviceChoice::Cpu, Precision::F32).unwrap().location, TensorDevice::Cpu);
    }

    #[test]
    fn a_missing_gpu_is_an_error_and_for_auto_a_note() {
        let refusal = choose_device(&DeviceChoice::gpu(99), Precision::F32).unwrap_err();
        assert!(matches!(refusal, DeviceError::NoGpu(_)), "{refusal}");
        assert!(refusal.to_string().contains("--device cpu"), "does not say what to do: {refusal}");
        let chosen = choose_device(&DeviceChoice::Auto, Precision::F32).unwrap();
        let note = chosen.note();
        assert_eq!(chosen.location == TensorDevice::Cpu, note.is_some(), "{note:?}");
        if let (Some(reason), Some(note)) = (&chosen.fallback, &note) {
            assert_eq!(*note, format!("training on the CPU: {reason}"));
            let refusal = choose_device(&DeviceChoice::Auto, Precision::Bf16).unwrap_err();
            assert!(refusal.to_string().contains(&reason.to_string()), "{refusal}");
        }
    }
}
