//! Micro-batches, prepared ahead of the step.
//!
//! ```text
//! list of requests   0 1 2 3 4 5 …      a pure function, so every thread has the whole list
//!   thread 0         0   2   4          ── channel ──┐
//!   thread 1           1   3   5        ── channel ──┴▶ the consumer takes turns: 0 1 2 3 4 5 …
//! ```
//! The threads share no state, so the order cannot depend on which one is faster.

use super::task::{BatchRequest, Split, Task};
use downshift_core::config::knobs;
use downshift_core::recipe::{
    batch::{BatchPlan, Position},
    leave_out::LeaveOut,
    order::epoch_order,
};
use std::{
    io,
    sync::{
        Arc,
        mpsc::{Receiver, sync_channel},
    },
    thread,
};

/// A micro-batch to prepare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    split: Split,
    epoch: u64,
    indices: Vec<u32>,
}

/// Returns the training micro-batches from a position to the end of the run, in order.
pub fn training_requests(
    plan: BatchPlan,
    seed: u64,
    from: Position,
    total_units: u64,
    leave_out: &LeaveOut,
) -> impl Iterator<Item = Request> + Clone + Send + use<> {
    let samples = usize::try_from(plan.epoch_samples).unwrap_or(usize::MAX);
    let (mut at, mut shuffled, mut order) = (from, None, Vec::new());
    let leave_out = leave_out.clone();
    let steps = std::iter::from_fn(move || {
        at = leave_out.next_step_start(&plan, at);
        (at.samples < total_units).then(|| {
            let step = plan.step(at);
            at = step.after;
            step
        })
    });
    steps.flat_map(move |step| {
        if shuffled != Some(step.epoch) {
            order = epoch_order(seed, step.epoch, samples);
            shuffled = Some(step.epoch);
        }
        let request = |range: &std::ops::Range<usize>| {
            let indices = order.get(range.clone()).unwrap_or_default().to_vec();
            Request { split: Split::Training, epoch: step.epoch, indices }
        };
        step.micro_batches.iter().map(request).collect::<Vec<_>>()
    })
}

/// Returns an endless sequence of micro-batches of an epoch from the start of the training samples, wrapping around if
/// there are too few.
pub fn endless_requests(
    samples: usize,
    micro_batch: u64,
    epoch: u64,
) -> impl Iterator<Item = Request> + Clone + Send + use<> {
    std::iter::repeat_with(move || {
        let place = |index: u64| u32::try_from(index % samples.max(1) as u64).ok();
        Request { split: Split::Training, epoch, indices: (0..micro_batch).filter_map(place).collect() }
    })
}

/// Returns the validation set in micro-batches, each sample once.
pub fn validation_requests(samples: usize, micro_batch: u64) -> impl Iterator<Item = Request> + Clone + Send + use<> {
    let micro_batch = usize::try_from(micro_batch).unwrap_or(usize::MAX).max(1);
    (0..samples).step_by(micro_batch).map(move |start| {
        let end = start.saturating_add(micro_batch).min(samples);
        let indices = (start..end).filter_map(|index| u32::try_from(index).ok()).collect();
        Request { split: Split::Validation, epoch: 0, indices }
    })
}

/// Returns the first and the last micro-batch of the validation set, which cover every batch size.
pub fn validation_end_requests(
    samples: usize,
    micro_batch: u64,
) -> impl Iterator<Item = Request> + Clone + Send + use<> {
    let all = validation_requests(samples, micro_batch);
    all.clone().take(1).chain(all.skip(1).last())
}

/// The threads that prepare micro-batches, and the consumer's end of their channels.
pub struct Loader<T: Task> {
    lanes: Vec<Receiver<T::Batch>>,
    next: usize,
}

impl<T: Task> Loader<T> {
    /// Starts threads that together keep micro-batches of `requests` ready.
    ///
    /// # Errors
    /// Returns an error when the operating system refuses a thread.
    pub fn start<I>(data: &Arc<T::Data>, seed: u64, knobs: knobs::Loader, requests: &I) -> io::Result<Self>
    where
        I: Iterator<Item = Request> + Clone + Send + 'static,
    {
        let threads = usize::try_from(knobs.threads.max(1)).unwrap_or(1);
        let ready = usize::try_from(knobs.prefetch).unwrap_or(usize::MAX).div_ceil(threads).min(1 << 16);
        let lane = |lane: usize| {
            let (sender, receiver) = sync_channel(ready);
            let (data, requests) = (Arc::clone(data), requests.clone().skip(lane).step_by(threads));
            thread::Builder::new().name(format!("loader-{lane}")).spawn(move || {
                for Request { split, epoch, indices } in requests {
                    let batch = T::batch(&data, BatchRequest { split, indices: &indices, epoch, seed });
                    if sender.send(batch).is_err() {
                        return;
                    }
                }
            })?;
            Ok(receiver)
        };
        Ok(Self { lanes: (0..threads).map(lane).collect::<io::Result<_>>()?, next: 0 })
    }

    /// Returns the next micro-batch, waiting for it if necessary, or `None` once all are consumed.
    pub fn next(&mut self) -> Option<T::Batch> {
        let batch = self.lanes.get(self.next)?.recv().ok();
        self.next = (self.next + 1) % self.lanes.len();
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::{Loader, training_requests, validation_end_requests, validation_requests};
    use crate::task::{BatchRequest, DataError, Split, Task};
    use downshift_core::config::{knobs, problem::Problem};
    use downshift_core::recipe::batch::{BatchPlan, Position};
    use downshift_core::recipe::leave_out::LeaveOut;
    use std::sync::Arc;

    struct Echo;

    impl Task for Echo {
        const NAME: &'static str = "echo";
        type DataConfig = ();
        type ModelConfig = ();
        type Data = ();
        type Batch = (u64, Vec<u32>);
        fn check((): &(), (): &()) -> Vec<Problem> {
            Vec::new()
        }
        fn resolve_paths((): &mut (), _absolute: &dyn Fn(&str) -> String) {}
        fn load((): &(), (): &(), _seed: u64) -> Result<(), DataError> {
            Ok(())
        }
        fn len((): &(), _split: Split) -> usize {
            10
        }
        fn batch((): &(), request: BatchRequest<'_>) -> Self::Batch {
            (request.epoch, request.indices.to_vec())
        }
    }

    const PLAN: BatchPlan = BatchPlan { epoch_samples: 10, units: 2, micro_batch: 3, accumulation: 2 };

    fn all(threads: u64, prefetch: u64, from: Position) -> Vec<(u64, Vec<u32>)> {
        let requests = training_requests(PLAN, 7, from, 60, &LeaveOut::default());
        let mut loader =
            Loader::<Echo>::start(&Arc::new(()), 7, knobs::Loader { threads, prefetch }, &requests).unwrap();
        std::iter::from_fn(|| loader.next()).collect()
    }

    #[test]
    fn the_order_does_not_depend_on_threads_and_prefetch() {
        let one = all(1, 0, Position::default());
        assert_eq!(one.iter().map(|(_, indices)| indices.len()).sum::<usize>(), 30);
        for (threads, prefetch) in [(1, 5), (2, 2), (3, 1), (7, 100)] {
            assert_eq!(all(threads, prefetch, Position::default()), one);
        }
    }

    #[test]
    fn the_rest_of_a_run_is_the_same_from_any_step_border() {
        let whole = all(1, 1, Position::default());
        let (mut at, mut micros) = (Position::default(), 0);
        while at.samples < 60 {
            assert_eq!(all(2, 2, at), whole[micros..]);
            let step = PLAN.step(at);
            micros += step.micro_batches.len();
            at = step.after;
        }
        assert_eq!(micros, whole.len());
    }

    #[test]
    fn validation_takes_every_sample_once() {
        let indices: Vec<u32> = validation_requests(10, 4).flat_map(|request| request.indices).collect();
        assert_eq!(indices, (0..10).collect::<Vec<_>>());
        assert_eq!(validation_requests(0, 4).count(), 0);
    }

    #[test]
    fn the_ends_of_the_validation_set_cover_every_batch_size() {
        let sizes =
            |samples| validation_end_requests(samples, 4).map(|request| request.indices.len()).collect::<Vec<_>>();
        assert_eq!([sizes(10), sizes(8), sizes(3), sizes(0)], [vec![4, 2], vec![4, 4], vec![3], vec![]]);
    }
}
