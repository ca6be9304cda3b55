//! A gradient-free pass over the validation set, summed in f64.

use super::loader::{Loader, Request, validation_end_requests, validation_requests};
use super::task::{Split, Tally, Train};
use crate::config::knobs::Training;
use crate::protocol::metrics::{Metrics, sanitize_name};
use burn::module::AutodiffModule;
use burn::tensor::backend::AutodiffBackend;
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
    evaluate_requests::<T, B, _>(model, data, training, &requests, device)
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
    evaluate_requests::<T, B, _>(model, data, training, &requests, device)
}

fn evaluate_requests<T: Train<B>, B: AutodiffBackend, I: Iterator<Item = Request> + Clone + Send + 'static>(
    model: &T::Model,
    data: &Arc<T::Data>,
    training: &Training,
    requests: &I,
    device: &B::Device,
) -> io::Result<Option<Means>> {
    let mut loader = Loader::<T>::start(data, training.seed, training.loader, requests)?;
    let model = model.valid();
    let mut total = Tally::default();
    while let Some(batch) = loader.next() {
        total.add(&T::evaluate(&model, batch, device));
    }
    Ok((total.count > 0).then(|| to_means(&total, T::metrics(&total))))
}

fn to_means(total: &Tally, metrics: Vec<(&'static str, f64)>) -> Means {
    let finite = metrics.into_iter().filter(|(_, value)| value.is_finite());
    let metrics = finite.filter_map(|(name, value)| Some((sanitize_name(name)?, value))).collect();
    Means { loss: total.mean_loss(), metrics }
}
