//! One optimizer step up to the guard's verdict: micro-batches forward and backward, gradients summed with
//! the weight of their samples, then **one** read-back of all losses and the gradient norm. The result is a
//! finite gradient, or the reason to drop the whole step.

use super::groups::Plan;
use super::loader::Loader;
use super::params::{self, Reading, Tensors};
use super::task::{Pass, Train};
use crate::protocol::worker::Failed;
use crate::recipe::{
    batch::StepPlan,
    seed::{Purpose, derive},
};
use crate::train::worker::failure;
use burn::tensor::{
    FloatDType, Tensor, TensorData,
    backend::{AutodiffBackend, Backend, ExecutionError},
};
use std::time::{Duration, Instant};

/// The gradient of a whole optimizer step.
pub struct Gradient<B: Backend> {
    /// By parameter path, f32, weighted by real sample counts.
    pub tensors: Tensors<B>,
    /// Mean loss over the step's samples.
    pub loss: f64,
    /// Norm of all gradients together, before clipping.
    pub norm: f64,
    /// Norms of the separately clipped parts, in the order of [`Plan::max_norms`].
    pub norms: Vec<f64>,
}

/// The value of [`Dropped::what`] when every loss is finite but the gradient is not.
pub const GRADIENT: &str = "gradient";

/// A step that the guard keeps out of the weights.
pub struct Dropped {
    /// The non-finite quantity: `loss` or `gradient`.
    pub what: &'static str,
    /// The micro-batch or parameter it occurred in.
    pub place: String,
}

/// Time spent in a step.
#[derive(Debug, Clone, Copy, Default)]
pub struct Timing {
    /// Waiting for data.
    pub data_wait: Duration,
    /// From the first forward pass to the loss on the host, excluding the wait for data.
    pub compute: Duration,
}

/// The step's identity, for everything random on the device.
pub struct Moment {
    /// The run's seed.
    pub seed: u64,
    /// The step number.
    pub step: u64,
    /// Whether to make the loss NaN, as an injected fault.
    pub poisoned: bool,
    /// The `gradient_checkpointing` knob.
    pub gradient_checkpointing: bool,
    /// The factor the loss is multiplied by before the backward pass; returned gradients are unscaled.
    pub loss_scale: Option<f64>,
}

/// The verdict on a step: a gradient to use, or the reason to drop the step.
pub type Verdict<B> = Result<Gradient<B>, Dropped>;

/// Runs every micro-batch of `plan` through `model`.
///
/// # Errors
/// Returns an error when the device reports a failure or the data run out.
pub fn take<T: Train<B>, B: AutodiffBackend>(
    model: &T::Model,
    plan: &StepPlan,
    loader: &mut Loader<T>,
    groups: &Plan,
    moment: &Moment,
    device: &B::Device,
) -> Result<(Verdict<B::InnerBackend>, Timing), Failed> {
    let (begun, mut data_wait) = (Instant::now(), Duration::ZERO);
    let (mut losses, mut tensors) = (Vec::new(), Tensors::<B::InnerBackend>::new());
    let total = plan.samples() as f64;
    for (micro, range) in plan.micro_batches.iter().enumerate() {
        let asked = Instant::now();
        let batch = loader.next().ok_or_else(|| failure::data_ran_out(moment.step))?;
        data_wait += asked.elapsed();
        let seed = derive(moment.seed, Purpose::Device, [moment.step, micro as u64, 0]);
        B::seed(device, seed);
        let (gradient_checkpointing, loss_scale) = (moment.gradient_checkpointing, moment.loss_scale.unwrap_or(1.0));
        let mut loss = T::loss(model, batch, &Pass { device, seed, gradient_checkpointing, loss_scale });
        if moment.poisoned && micro == 0 {
            loss = loss.mul_scalar(f32::NAN);
        }
        let weight = range.len() as f64 / total;
        let (mut gradients, weight) = match moment.loss_scale {
            Some(scale) => (loss.clone().cast(FloatDType::F32).mul_scalar(scale).backward(), weight / scale),
            None => (loss.backward(), weight),
        };
        params::add_gradients::<B, _>(model, &mut gradients, weight, &mut tensors);
        losses.push(loss.inner().cast(FloatDType::F32));
    }
    let verdict = judge(losses, plan, groups, tensors, device).map_err(|error| failure::device(&error.to_string()))?;
    Ok((verdict, Timing { data_wait, compute: begun.elapsed().saturating_sub(data_wait) }))
}

/// Reads back losses and norm, and decides.
fn judge<B: Backend>(
    losses: Vec<Tensor<B, 1>>,
    plan: &StepPlan,
    groups: &Plan,
    tensors: Tensors<B>,
    device: &B::Device,
) -> Result<Verdict<B>, ExecutionError> {
    let squares = squares(&tensors, groups, device);
    let count = losses.len();
    let read = Tensor::cat(losses.into_iter().chain(squares).collect(), 0).try_into_data()?;
    let mut values: Vec<f64> = read.iter::<f64>().collect();
    let squares = values.split_off(count);
    let square: f64 = squares.iter().sum();
    if let Some(micro) = values.iter().position(|loss| !loss.is_finite()) {
        let place = format!("micro-batch {} of {}", micro + 1, values.len());
        return Ok(Err(Dropped { what: "loss", place }));
    }
    if !square.is_finite() {
        return Ok(Err(Dropped { what: GRADIENT, place: worst_parameter::<B>(tensors)? }));
    }
    let total = plan.samples() as f64;
    let loss = values.iter().zip(&plan.micro_batches).map(|(loss, range)| loss * range.len() as f64 / total).sum();
    Ok(Ok(Gradient { tensors, loss, norm: square.sqrt(), norms: squares.into_iter().map(f64::sqrt).collect() }))
}

/// Returns the squared norm of each separately clipped part of the gradient, shape `[1]`.
fn squares<B: Backend>(tensors: &Tensors<B>, groups: &Plan, device: &B::Device) -> Vec<Tensor<B, 1>> {
    let clip_of = |path: &str| groups.rules.get(path).map_or(0, |rule| rule.clip);
    let part = |clip: usize| {
        let mine = tensors.iter().filter(|(path, _)| clip_of(path) == clip);
        let squares = mine.map(|(_, tensor)| B::float_sum(B::float_mul(tensor.clone(), tensor.clone())));
        let none = || Tensor::<B, 1>::zeros([1], device).cast(FloatDType::F32);
        squares.reduce(B::float_add).map_or_else(none, params::ranked::<B, 1>)
    };
    (0..groups.max_norms.len()).map(part).collect()
}

/// Returns the first parameter whose gradient is not finite. Needs one more read-back, so it runs only for
/// dropped steps.
fn worst_parameter<B: Backend>(tensors: Tensors<B>) -> Result<String, ExecutionError> {
    let mut reading = Reading::<B>::default();
    for (path, tensor) in tensors {
        reading.add(path, B::float_sum(B::float_abs(tensor)));
    }
    let finite = |data: &TensorData| data.iter::<f32>().all(f32::is_finite);
    let worst = reading.finish()?.into_iter().find(|(_, sum)| !finite(sum));
    Ok(worst.map_or_else(|| "the norm over all parameters overflows".to_owned(), |(path, _)| path))
}
