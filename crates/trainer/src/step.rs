//! One optimizer step up to the guard's verdict: micro-batches forward and backward, gradients summed with
//! the weight of their samples, then **one** read-back of all losses and the gradient norm. The result is a
//! finite gradient, or the reason to drop the whole step.

use super::failure::{self, NonFinite};
use super::loader::Loader;
use super::native::{self, ops};
use super::param_rules::ParamRules;
use super::params::{self, TensorReader, Tensors};
use super::task::{Pass, Train};
use burn::tensor::{
    FloatDType, Shape, Tensor, TensorData, TensorMetadata,
    backend::{AutodiffBackend, Backend, ExecutionError},
    ops::FloatTensor,
};
use downshift_core::protocol::worker::Failed;
use downshift_core::recipe::{
    batch::StepPlan,
    seed::{Purpose, derive_seed},
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
    /// Norms of the separately clipped parts, in the order of [`ParamRules::max_norms`].
    pub norms: Vec<f64>,
}

/// A step that the guard keeps out of the weights.
pub struct Dropped {
    /// The non-finite quantity.
    pub what: NonFinite,
    /// The micro-batch or parameter it occurred in.
    pub place: String,
    /// The parameter, if there is one.
    pub parameter: Option<String>,
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
pub struct StepSettings {
    /// The run's seed.
    pub seed: u64,
    /// The step number.
    pub step: u64,
    /// Whether to make the loss NaN, as an injected fault.
    pub nan_loss: bool,
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
pub fn run_step<T: Train<B>, B: AutodiffBackend>(
    model: &T::Model,
    plan: &StepPlan,
    loader: &mut Loader<T>,
    rules: &ParamRules,
    settings: &StepSettings,
    device: &B::Device,
) -> Result<(Verdict<B::InnerBackend>, Timing), Failed> {
    let (begun, mut data_wait) = (Instant::now(), Duration::ZERO);
    let (mut losses, mut tensors) = (Vec::new(), Tensors::<B::InnerBackend>::new());
    let total = plan.samples() as f64;
    for (micro, range) in plan.micro_batches.iter().enumerate() {
        let asked = Instant::now();
        let batch = loader.next().ok_or_else(|| failure::data_ran_out(settings.step))?;
        data_wait += asked.elapsed();
        let seed = derive_seed(settings.seed, Purpose::Device, [settings.step, micro as u64, 0]);
        B::seed(device, seed);
        let (gradient_checkpointing, loss_scale) =
            (settings.gradient_checkpointing, settings.loss_scale.unwrap_or(1.0));
        let mut loss = T::loss(model, batch, &Pass { device, seed, gradient_checkpointing, loss_scale });
        if settings.nan_loss && micro == 0 {
            loss = loss.mul_scalar(f32::NAN);
        }
        let weight = range.len() as f64 / total;
        let (mut gradients, weight) = match settings.loss_scale {
            Some(scale) => (loss.clone().cast(FloatDType::F32).mul_scalar(scale).backward(), weight / scale),
            None => (loss.backward(), weight),
        };
        // The only ones need no sum, which is in f32.
        let are_summed = plan.micro_batches.len() > 1;
        params::add_gradients::<B, _>(model, &mut gradients, weight, are_summed, &mut tensors);
        losses.push(loss.inner().cast(FloatDType::F32));
    }
    let verdict = judge_step(losses, plan, rules, tensors, device).map_err(failure::device_error)?;
    Ok((verdict, Timing { data_wait, compute: begun.elapsed().saturating_sub(data_wait) }))
}

/// Reads back losses and norm, and decides.
fn judge_step<B: Backend>(
    losses: Vec<Tensor<B, 1>>,
    plan: &StepPlan,
    rules: &ParamRules,
    tensors: Tensors<B>,
    device: &B::Device,
) -> Result<Verdict<B>, ExecutionError> {
    let squares = squared_norms(&tensors, rules, device);
    let count = losses.len();
    let read = Tensor::cat(losses.into_iter().chain(squares).collect(), 0).try_into_data()?;
    let mut values: Vec<f64> = read.iter::<f64>().collect();
    let squares = values.split_off(count);
    let square: f64 = squares.iter().sum();
    if let Some(micro) = values.iter().position(|loss| !loss.is_finite()) {
        let place = format!("micro-batch {} of {}", micro + 1, values.len());
        return Ok(Err(Dropped { what: NonFinite::Loss, place, parameter: None }));
    }
    if !square.is_finite() {
        let parameter = first_non_finite::<B>(tensors)?;
        let place = parameter.clone().unwrap_or_else(|| "the norm over all parameters overflows".to_owned());
        return Ok(Err(Dropped { what: NonFinite::Gradient, place, parameter }));
    }
    let total = plan.samples() as f64;
    let loss = values.iter().zip(&plan.micro_batches).map(|(loss, range)| loss * range.len() as f64 / total).sum();
    Ok(Ok(Gradient { tensors, loss, norm: square.sqrt(), norms: squares.into_iter().map(f64::sqrt).collect() }))
}

/// Returns the squared norm of each separately clipped part of the gradient, shape `[1]`.
fn squared_norms<B: Backend>(tensors: &Tensors<B>, rules: &ParamRules, device: &B::Device) -> Vec<Tensor<B, 1>> {
    let clip_of = |path: &str| rules.rules.get(path).map_or(0, |rule| rule.clip);
    let part = |clip: usize| {
        let mine = tensors.iter().filter(|(path, _)| clip_of(path) == clip);
        let mine: Vec<&FloatTensor<B>> = mine.map(|(_, tensor)| tensor).collect();
        let each = || mine.iter().map(|tensor| sum_of_squares::<B>(tensor)).reduce(B::float_add);
        let none = || Tensor::<B, 1>::zeros([1], device).cast(FloatDType::F32);
        ops::sum_of_squares_on_gpu::<B>(&mine).or_else(each).map_or_else(none, params::with_rank::<B, 1>)
    };
    (0..rules.max_norms.len()).map(part).collect()
}

fn sum_of_squares<B: Backend>(tensor: &FloatTensor<B>) -> FloatTensor<B> {
    // Burn's own sum on the CPU depends on which thread is idle, so the knob does not apply here.
    let _native = native::Scope::new(true);
    let composed = || {
        let exact = B::float_cast(tensor.clone(), FloatDType::F32);
        let numbers = exact.shape().num_elements();
        // Burn's sum of everything adds with atomics on a GPU, in an order that changes.
        B::float_sum_dim(B::float_reshape(B::float_mul(exact.clone(), exact), Shape::new([numbers])), 0)
    };
    ops::sum_of_squares::<B>(tensor).unwrap_or_else(composed)
}

/// Returns the first parameter, by path, whose gradient is not finite. Needs one more read-back, so it runs only for dropped
/// steps.
fn first_non_finite<B: Backend>(tensors: Tensors<B>) -> Result<Option<String>, ExecutionError> {
    let mut reader = TensorReader::<B>::default();
    for (path, tensor) in tensors {
        reader.add(path, B::float_sum(B::float_abs(B::float_cast(tensor, FloatDType::F32))));
    }
    let finite = |data: &TensorData| data.iter::<f32>().all(f32::is_finite);
    let worst = reader.read_all()?.into_iter().find(|(_, sum)| !finite(sum));
    Ok(worst.map(|(path, _)| path))
}
