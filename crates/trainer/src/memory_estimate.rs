//! Memory estimate of a rung: trains it on a backend that tracks shapes only ([`super::shape_backend`]).

mod dry_run;
mod error;
mod largest_batch;

pub use error::EstimateError;

use super::memory;
use super::sections::parse_sections;
use super::shape_backend::{BackendModel, LeasedDevice, Pages, ShapeBackend, ShapeBackendRecompute};
use super::task::{Split, Task, Train, load_data};
use burn::tensor::FloatDType;
use downshift_core::config::knobs::{MomentBits, Precision, Preset};
use downshift_core::protocol::plan::{MemoryEstimate, Phases, Site};
use dry_run::{TaskInput, estimate_phases};
use largest_batch::largest_micro_batch;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The largest host batch in bytes that is built for the estimate. Larger ones are not allocated just to
/// probe the limit.
const MAX_BATCH_BYTES: u64 = 1 << 30;
/// Bytes of a CUDA context with Burn's kernels loaded: a first guess, corrected by measurements on the GPU.
const CUDA_OVERHEAD: u64 = 600 << 20;
/// Bytes that training adds on the CPU: code first run by training, stacks, and buffers of matrix products.
const CPU_OVERHEAD: u64 = 10 << 20;
/// Bytes of host memory for the driver and the kernel compiler; an equally rough guess.
const CUDA_HOST: u64 = 900 << 20;

/// Estimates the memory of each of these rungs.
pub fn estimate_memory<T: Task + Train<ShapeBackend> + Train<ShapeBackendRecompute>>(
    presets: &[&Preset],
    site: Site,
) -> Vec<Result<MemoryEstimate, EstimateError>> {
    let mut loaded: Option<(&Preset, LoadedTask<T>)> = None;
    // Measured first: memory still resident from counting one rung would look like part of the program to the next.
    let program = memory::resident_bytes().unwrap_or(0);
    let mut estimates = Vec::new();
    for preset in presets {
        let same = |(earlier, _): &(&Preset, LoadedTask<T>)| {
            earlier.data == preset.data
                && earlier.model == preset.model
                && earlier.training.seed == preset.training.seed
        };
        if !loaded.as_ref().is_some_and(same) {
            // Free the old data set before loading the new one.
            drop(loaded.take());
            match LoadedTask::new(preset, program) {
                Ok(found) => loaded = Some((preset, found)),
                Err(why) => {
                    estimates.push(Err(why));
                    continue;
                }
            }
        }
        let Some((_, loaded)) = &loaded else { continue };
        let counted = catch_unwind(AssertUnwindSafe(|| estimate_rung(loaded, preset, site)));
        estimates.push(counted.unwrap_or(Err(EstimateError::Unsupported)));
    }
    estimates
}

/// A task's data, and the host memory of program and data.
struct LoadedTask<T: Task> {
    input: TaskInput<T>,
    program: u64,
    bytes: u64,
}

impl<T: Task> LoadedTask<T> {
    fn new(preset: &Preset, program: u64) -> Result<Self, EstimateError> {
        let (data, model) = parse_sections::<T>(preset).map_err(EstimateError::Section)?;
        let before = memory::allocated_bytes();
        let data = load_data::<T>(&data, &model, preset.training.seed)?;
        let bytes = memory::allocated_bytes().saturating_sub(before);
        Ok(Self { input: TaskInput { model, data: Arc::new(data) }, program, bytes })
    }
}

fn estimate_rung<T: Task + Train<ShapeBackend> + Train<ShapeBackendRecompute>>(
    loaded: &LoadedTask<T>,
    preset: &Preset,
    site: Site,
) -> Result<MemoryEstimate, EstimateError> {
    let micro = preset.training.micro_batch;
    let (mut estimate, batch) = estimate_batch(loaded, preset, site, micro)?;
    let lanes = preset.training.loader.threads.max(1);
    estimate.loader = batch * lanes * (preset.training.loader.prefetch.div_ceil(lanes) + 1);
    estimate.data = loaded.bytes;
    // State resting in host memory is not on the device; on the CPU both are the same memory.
    let resting = resting_on_host(preset, estimate.trained).saturating_sub(estimate.optimizer);
    if !site.gpu {
        estimate.optimizer += resting;
        // Tensors and micro-batches share the host's memory.
        estimate.overhead = CPU_OVERHEAD;
        for bytes in [&mut estimate.training, &mut estimate.evaluation, &mut estimate.saving, &mut estimate.loading] {
            *bytes += CPU_OVERHEAD + resting;
        }
        estimate.training += estimate.loader;
        estimate.evaluation += 2 * estimate.loader;
        estimate.saving += estimate.loader;
    }
    estimate.ram = host_memory(&estimate, loaded, site, preset.training.precision);
    if site.gpu {
        for bytes in [&mut estimate.ram.training, &mut estimate.ram.evaluation, &mut estimate.ram.saving] {
            *bytes += resting;
        }
    }
    if let Some(room) = site.room {
        let room = if site.gpu { room } else { room.saturating_sub(loaded.program + loaded.bytes) };
        let beside =
            |other: u64| if site.gpu { 0 } else { CPU_OVERHEAD + resting + estimate.loader / micro.max(1) * other };
        let samples = T::len(&loaded.input.data, Split::Training) as u64;
        estimate.largest_micro_batch = largest_micro_batch(room, (micro, estimate.peak()), samples, |other| {
            let small = batch / micro.max(1) * other < MAX_BATCH_BYTES;
            small
                .then(|| {
                    estimate_batch(loaded, preset, site, other).ok().map(|(found, _)| found.peak() + beside(other))
                })
                .flatten()
        });
    }
    Ok(estimate)
}

/// Returns the bytes of moments and masters that `optimizer.offload` keeps in host memory.
fn resting_on_host(preset: &Preset, trained: u64) -> u64 {
    if !preset.optimizer.offload {
        return 0;
    }
    let moments = match preset.optimizer.moments {
        MomentBits::F32 => 8 * trained,
        // One code per value, and one scale per 256 values.
        MomentBits::Eight => 2 * trained + trained / 32,
    };
    let masters = if preset.training.precision == Precision::F32 { 0 } else { 4 * trained };
    moments + masters
}

/// Returns the host memory by phase.
fn host_memory<T: Task>(estimate: &MemoryEstimate, loaded: &LoadedTask<T>, site: Site, precision: Precision) -> Phases {
    let base = loaded.program + loaded.bytes;
    if site.gpu {
        // Frozen weights computed in 16 bits are kept in host memory in f32, for checkpoints.
        let frozen = if precision == Precision::F32 { 0 } else { 4 * (estimate.parameters - estimate.trained) };
        let base = base + CUDA_HOST + frozen;
        // A checkpoint copies the other weights and both moments to the host, in f32.
        let copies = 4 * (estimate.parameters + 2 * estimate.trained) - frozen;
        return Phases {
            loading: base + 4 * estimate.parameters,
            training: base + estimate.loader,
            evaluation: base + estimate.loader,
            saving: base + estimate.loader + copies,
        };
    }
    Phases {
        loading: base + estimate.loading,
        training: base + estimate.training,
        evaluation: base + estimate.evaluation,
        saving: base + estimate.saving,
    }
}

/// Returns the pages of a GPU whose memory is known.
#[cfg(feature = "cuda")]
fn gpu_pages(site: Site, preset: &Preset) -> Option<Box<dyn Pages>> {
    let bytes = site.memory.filter(|_| site.gpu)?;
    Some(Box::new(super::gpu_pages::GpuPages::new(bytes, preset.training.fused_kernels)))
}

/// Without CUDA there is no GPU.
#[cfg(not(feature = "cuda"))]
fn gpu_pages(_site: Site, _preset: &Preset) -> Option<Box<dyn Pages>> {
    None
}

/// Estimates one rung with this micro-batch; also returns the host memory of a micro-batch.
fn estimate_batch<T: Task + Train<ShapeBackend> + Train<ShapeBackendRecompute>>(
    loaded: &LoadedTask<T>,
    preset: &Preset,
    site: Site,
    micro: u64,
) -> Result<(MemoryEstimate, u64), EstimateError> {
    let backend = match (site.gpu, preset.training.precision) {
        (false, _) => BackendModel::Flex,
        (true, Precision::F32) => BackendModel::Cube(FloatDType::F32),
        (true, Precision::Bf16) => BackendModel::Cube(FloatDType::BF16),
        (true, Precision::F16) => BackendModel::Cube(FloatDType::F16),
    };
    let leased = LeasedDevice::new(backend, gpu_pages(site, preset));
    // As in `backends`, `T::RECOMPUTES` stands alone.
    let counted = if T::RECOMPUTES {
        estimate_phases::<T, ShapeBackend>(&loaded.input, preset, (backend, &leased), micro)
    } else if preset.training.gradient_checkpointing {
        estimate_phases::<T, ShapeBackendRecompute>(&loaded.input, preset, (backend, &leased), micro)
    } else {
        estimate_phases::<T, ShapeBackend>(&loaded.input, preset, (backend, &leased), micro)
    };
    let (mut estimate, batch) = counted?;
    if site.gpu {
        estimate.overhead = CUDA_OVERHEAD;
        for bytes in [&mut estimate.training, &mut estimate.evaluation, &mut estimate.saving, &mut estimate.loading] {
            *bytes += CUDA_OVERHEAD;
        }
    }
    Ok((estimate, batch))
}
