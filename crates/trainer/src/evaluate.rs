//! A gradient-free pass over the validation set, summed in f64.

use super::loader::{Loader, Request, validation_end_requests, validation_requests};
use super::samples::Samples;
use super::task::{Split, Tally, Task, Train};
use burn::module::AutodiffModule;
use burn::tensor::backend::AutodiffBackend;
use downshift_core::config::knobs::Training;
use downshift_core::protocol::metrics::{Metrics, sanitize_name};
use std::{io, sync::Arc};

/// The means over a validation set.
#[derive(Debug, Clone, PartialEq)]
pub struct Means {
    /// Mean loss.
    pub loss: f64,
    /// The task's other metrics, by name; finite ones only.
    pub metrics: Metrics,
}

/// Evaluates `model` on the whole validation set, or returns `None` if it is empty.
///
/// # Errors
/// Returns an error when no loader thread can be started.
pub fn evaluate_all<T: Train<B>, B: AutodiffBackend>(
    model: &T::Model,
    data: &Arc<T::Data>,
    training: &Training,
    device: &B::Device,
) -> io::Result<Option<Means>> {
    let requests = validation_requests(T::len(data, Split::Validation), training.micro_batch);
    let total = evaluate_requests::<T, B, _>(&model.valid(), data, training, &requests, device)?;
    Ok(to_means::<T>(&total))
}

/// Returns the sums over the whole validation set.
///
/// # Errors
/// Returns an error when no loader thread can be started.
pub fn tally_all<T: Train<B>, B: AutodiffBackend>(
    model: &T::Model,
    data: &Arc<T::Data>,
    training: &Training,
    device: &B::Device,
) -> io::Result<Tally> {
    let requests = validation_requests(T::len(data, Split::Validation), training.micro_batch);
    evaluate_requests::<T, B, _>(&model.valid(), data, training, &requests, device)
}

/// Evaluates `model` on the whole validation set, and returns samples of what the model does.
///
/// # Errors
/// Returns an error when no loader thread can be started.
pub fn evaluate_and_sample<T: Train<B>, B: AutodiffBackend>(
    model: &T::Model,
    data: &Arc<T::Data>,
    training: &Training,
    device: &B::Device,
) -> io::Result<Option<(Means, Samples)>> {
    let requests = validation_requests(T::len(data, Split::Validation), training.micro_batch);
    let model = model.valid();
    let total = evaluate_requests::<T, B, _>(&model, data, training, &requests, device)?;
    Ok(to_means::<T>(&total).map(|means| (means, T::samples(&model, data, &total, device))))
}

/// Evaluates `model` on a few samples that need every kernel of the whole set.
///
/// # Errors
/// Returns an error when no loader thread can be started.
pub fn evaluate_ends<T: Train<B>, B: AutodiffBackend>(
    model: &T::Model,
    data: &Arc<T::Data>,
    training: &Training,
    device: &B::Device,
) -> io::Result<Option<Means>> {
    let requests = validation_end_requests(T::len(data, Split::Validation), training.micro_batch);
    let total = evaluate_requests::<T, B, _>(&model.valid(), data, training, &requests, device)?;
    Ok(to_means::<T>(&total))
}

fn evaluate_requests<T: Train<B>, B: AutodiffBackend, I: Iterator<Item = Request> + Clone + Send + 'static>(
    model: &<T::Model as AutodiffModule<B>>::InnerModule,
    data: &Arc<T::Data>,
    training: &Training,
    requests: &I,
    device: &B::Device,
) -> io::Result<Tally> {
    let mut loader = Loader::<T>::start(data, training.seed, training.loader, requests)?;
    let mut total = Tally::default();
    while let Some(batch) = loader.next() {
        total.add(&T::evaluate(model, batch, device));
    }
    Ok(total)
}

/// Returns the means of a validation set, or `None` if it is empty.
fn to_means<T: Task>(total: &Tally) -> Option<Means> {
    let finite = T::metrics(total).into_iter().filter(|(_, value)| value.is_finite());
    let metrics = finite.filter_map(|(name, value)| Some((sanitize_name(name)?, value))).collect();
    (total.count > 0).then(|| Means { loss: total.mean_loss(), metrics })
}
