//! Every backend that a task is compiled for. This list determines compile time: each line compiles the whole
//! model and training loop again.
//!
//! ```text
//!                        keep activations          recompute them (gradient_checkpointing)
//! CPU (Flex)             Cpu                       CpuRecompute
//! CUDA, fused kernels    CudaFused                 CudaFusedRecompute
//! CUDA, plain            CudaPlain                 CudaPlainRecompute
//! shapes only (no work)  ShapeBackend              ShapeBackendRecompute
//! ```
//! A task that recomputes activations itself (`Task::RECOMPUTES`), as the built-in ones do, is not compiled for
//! the right-hand column.
//!
//! Precision is not a type: Burn's tensors carry their number format, and these backends use the default
//! format from the device's settings.

#[cfg(not(feature = "cuda"))]
use super::device::NoGpu;
use super::device::TensorDevice;
use super::failure;
use super::job::TrainingJob;
use super::session;
use super::shape_backend::{ShapeBackend, ShapeBackendRecompute};
use super::task::Train;
use burn::backend::{
    Autodiff,
    autodiff::checkpoint::strategy::BalancedCheckpointing,
    flex::{Flex, FlexDevice},
};
use downshift_core::protocol::worker::{DoneReason, Failed};

/// The CPU.
pub type Cpu = Autodiff<Flex>;
/// The CPU, with activations recomputed in the backward pass.
pub type CpuRecompute = Autodiff<Flex, BalancedCheckpointing>;

#[cfg(feature = "cuda")]
mod cuda {
    use crate::gpu_runtime::GpuRuntime;
    use burn::backend::{Autodiff, autodiff::checkpoint::strategy::BalancedCheckpointing};
    use burn_cubecl::CubeBackend;
    use burn_fusion::Fusion;

    /// CUDA, one kernel per operation, without a graph.
    pub type Plain = CubeBackend<GpuRuntime, f32, i32, u8>;
    /// CUDA with fused element-wise kernels, without a graph.
    pub type Fused = Fusion<Plain>;

    /// CUDA with fused element-wise kernels.
    pub type CudaFused = Autodiff<Fused>;
    /// Fused kernels, with activations recomputed in the backward pass.
    pub type CudaFusedRecompute = Autodiff<Fused, BalancedCheckpointing>;
    /// CUDA, one kernel per operation.
    pub type CudaPlain = Autodiff<Plain>;
    /// Plain kernels, with activations recomputed in the backward pass.
    pub type CudaPlainRecompute = Autodiff<Plain, BalancedCheckpointing>;
}
#[cfg(feature = "cuda")]
pub use cuda::{CudaFused, CudaFusedRecompute, CudaPlain, CudaPlainRecompute};
#[cfg(feature = "cuda")]
pub(super) use cuda::{Fused, Plain};

/// A task that can be trained on every backend of this build. Implemented automatically for every
/// `impl<B: AutodiffBackend> Train<B> for MyTask`.
#[cfg(not(feature = "cuda"))]
pub trait TrainAll: Train<Cpu> + Train<CpuRecompute> + Train<ShapeBackend> + Train<ShapeBackendRecompute> {}
#[cfg(not(feature = "cuda"))]
impl<T: Train<Cpu> + Train<CpuRecompute> + Train<ShapeBackend> + Train<ShapeBackendRecompute>> TrainAll for T {}

/// A task that can be trained on every backend of this build. Implemented automatically for every
/// `impl<B: AutodiffBackend> Train<B> for MyTask`.
#[cfg(feature = "cuda")]
pub trait TrainAll:
    Train<Cpu>
    + Train<CpuRecompute>
    + Train<ShapeBackend>
    + Train<ShapeBackendRecompute>
    + Train<CudaFused>
    + Train<CudaFusedRecompute>
    + Train<CudaPlain>
    + Train<CudaPlainRecompute>
{
}
#[cfg(feature = "cuda")]
impl<T> TrainAll for T where
    T: Train<Cpu>
        + Train<CpuRecompute>
        + Train<ShapeBackend>
        + Train<ShapeBackendRecompute>
        + Train<CudaFused>
        + Train<CudaFusedRecompute>
        + Train<CudaPlain>
        + Train<CudaPlainRecompute>
{
}

/// Runs one attempt on the backend selected by device and preset.
///
/// # Errors
/// Returns the reason when training cannot continue.
pub fn train_on_backend<T: TrainAll>(job: TrainingJob) -> Result<DoneReason, Failed> {
    match job.device.location {
        TensorDevice::Cpu => train_on_cpu::<T>(job),
        #[cfg(feature = "cuda")]
        TensorDevice::Cuda(index) => train_on_cuda::<T>(job, index),
        #[cfg(not(feature = "cuda"))]
        TensorDevice::Cuda(index) => {
            Err(failure::invalid_config(format!("there is no cuda:{index}: {}", NoGpu::NotBuilt)))
        }
    }
}

// `T::RECOMPUTES` stands alone in its condition: only then does the compiler leave out the branch that a task
// never takes, and with it a whole model and training loop.

fn train_on_cpu<T: TrainAll>(job: TrainingJob) -> Result<DoneReason, Failed> {
    if T::RECOMPUTES {
        session::run_session::<T, Cpu>(job, &FlexDevice)
    } else if job.args.preset.training.gradient_checkpointing {
        session::run_session::<T, CpuRecompute>(job, &FlexDevice)
    } else {
        session::run_session::<T, Cpu>(job, &FlexDevice)
    }
}

#[cfg(feature = "cuda")]
fn train_on_cuda<T: TrainAll>(job: TrainingJob, index: usize) -> Result<DoneReason, Failed> {
    use burn::tensor::{FloatDType, IntDType, set_default_dtypes};
    use cubecl::cuda::CudaDevice;
    use downshift_core::config::knobs::Precision;

    let device = CudaDevice::new(index);
    let training = &job.args.preset.training;
    let float = match training.precision {
        Precision::F32 => FloatDType::F32,
        Precision::Bf16 => FloatDType::BF16,
        Precision::F16 => FloatDType::F16,
    };
    // The settings belong to the device and apply to all four backends.
    set_default_dtypes::<CudaPlain>(&device, float, IntDType::I32)
        .map_err(|error| failure::invalid_config(format!("training.precision: {error}; f32 works on every GPU")))?;
    let fused = training.fused_kernels;
    if T::RECOMPUTES {
        return if fused {
            session::run_session::<T, CudaFused>(job, &device)
        } else {
            session::run_session::<T, CudaPlain>(job, &device)
        };
    }
    match (fused, training.gradient_checkpointing) {
        (true, false) => session::run_session::<T, CudaFused>(job, &device),
        (true, true) => session::run_session::<T, CudaFusedRecompute>(job, &device),
        (false, false) => session::run_session::<T, CudaPlain>(job, &device),
        (false, true) => session::run_session::<T, CudaPlainRecompute>(job, &device),
    }
}
