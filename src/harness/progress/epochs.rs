//! The steps of a training whose output counts none: its epochs are the unit.

use super::is_eval;
use crate::log_metrics::Reading;

/// Metrics of a training.
const MEASURED: [&str; 3] = ["loss", "reward", "accuracy"];

/// Epochs that count as steps.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct EpochSteps {
    /// The step before the attempt.
    from: u64,
    /// The first epoch that was named.
    first: Option<u64>,
    /// Something else counts: a step, or fractions of an epoch.
    is_beside_steps: bool,
    /// A training loss was reported.
    has_losses: bool,
    /// Evaluations that nothing places.
    unplaced: u64,
}

impl EpochSteps {
    pub(super) fn new(from: u64) -> Self {
        Self { from, ..Self::default() }
    }

    /// Takes note of what a reading counts.
    pub(super) fn observe(&mut self, reading: &Reading) {
        let is_fraction = reading.epoch.is_some_and(|epoch| epoch.fract() != 0.0);
        self.is_beside_steps |= reading.step.is_some() || reading.count_started_over.is_some() || is_fraction;
        self.first = self.first.or_else(|| epoch_of(reading));
        self.has_losses |= MEASURED.iter().any(|name| reading.value(name).is_some());
    }

    /// Reports whether an evaluation measures the newest epoch, whatever number it gives: scripts also count the epochs
    /// that are done.
    pub(super) fn follows_losses(&self) -> bool {
        self.counts() && self.has_losses
    }

    /// Returns the step of a reading that names none: the number of its epoch, counted from 1.
    pub(super) fn place(&self, reading: &Reading) -> Option<u64> {
        let epoch = epoch_of(reading).filter(|_| !self.is_beside_steps && reading.step.is_none())?;
        let counts_from_zero = self.first.unwrap_or(epoch) == self.from;
        Some(epoch.saturating_add(u64::from(counts_from_zero)))
    }

    /// Reports whether epochs are what is counted.
    pub(super) fn counts(&self) -> bool {
        self.first.is_some() && !self.is_beside_steps
    }

    /// Returns the place of an evaluation in a training that nothing counts: those that were reported before.
    pub(super) fn place_evaluation(&mut self) -> u64 {
        let place = self.unplaced;
        self.unplaced += 1;
        place
    }
}

/// Returns the whole epoch of a reading that reports something.
fn epoch_of(reading: &Reading) -> Option<u64> {
    let measures = is_eval(reading) || MEASURED.iter().any(|name| reading.value(name).is_some());
    let epoch = reading.epoch.filter(|epoch| measures && epoch.fract() == 0.0 && (0.0..1e15).contains(epoch))?;
    Some(epoch as u64)
}

#[cfg(test)]
mod tests {
    use super::super::CommandProgress;
    use super::super::tests::reading;
    use crate::log_metrics::Reading;
    use crate::protocol::worker::Event;
    use std::time::Duration;

    fn of_epoch(epoch: f64, values: &[(&str, f64)]) -> Reading {
        Reading { epoch: Some(epoch), epochs: Some(3), ..reading(None, values) }
    }

    /// Steps, and the loss of each.
    type Losses = Vec<(u64, Option<f64>)>;

    /// Returns the steps and losses, and the places and losses of the evaluations.
    fn take(progress: &mut CommandProgress, readings: &[Reading]) -> (Losses, Losses) {
        let mut events: Vec<Event> =
            readings.iter().flat_map(|reading| progress.take(reading, Duration::from_secs(1))).collect();
        events.extend(progress.flush());
        let (mut steps, mut evals) = (Vec::new(), Vec::new());
        for event in events {
            match event {
                Event::Step(step) => steps.push((step.step, step.loss)),
                Event::Eval(eval) => evals.push((eval.step, eval.loss)),
                _ => {}
            }
        }
        (steps, evals)
    }

    #[test]
    fn epochs_are_steps_where_nothing_else_counts() {
        for first in [0.0, 1.0] {
            let mut progress = CommandProgress::new(0, 8, 1, None);
            let epochs = [0.0, 1.0, 2.0].map(|index| {
                [
                    of_epoch(first + index, &[("loss", 3.0 - index)]),
                    of_epoch(first + index, &[("eval_loss", 4.0 - index)]),
                ]
            });
            let (steps, evals) = take(&mut progress, epochs.as_flattened());
            assert_eq!(steps, [(1, Some(3.0)), (2, Some(2.0)), (3, Some(1.0))]);
            assert_eq!(evals, [(1, Some(4.0)), (2, Some(3.0)), (3, Some(2.0))]);
            assert_eq!((progress.total, progress.samples(3)), (Some(3), 3));
        }
        let mut resumed = CommandProgress::new(2, 1, 1, None);
        assert_eq!(take(&mut resumed, &[of_epoch(2.0, &[("loss", 0.5)])]).0, [(3, Some(0.5))], "it counts from 0");
    }

    #[test]
    fn an_evaluation_may_count_the_epochs_that_are_done() {
        let mut progress = CommandProgress::new(0, 1, 1, None);
        let readings =
            [0.0, 1.0].map(|epoch| [of_epoch(epoch, &[("loss", 1.0)]), of_epoch(epoch + 1.0, &[("eval_loss", 2.0)])]);
        let (steps, evals) = take(&mut progress, readings.as_flattened());
        assert_eq!(steps, [(1, Some(1.0)), (2, Some(1.0))]);
        assert_eq!(evals, [(1, Some(2.0)), (2, Some(2.0))]);
    }

    #[test]
    fn an_epoch_in_parts_is_reported_once_it_ends() {
        let mut progress = CommandProgress::new(0, 1, 1, None);
        let part = |epoch, loss| Reading { is_partial: true, ..of_epoch(epoch, &[("loss", loss)]) };
        let readings = [part(1.0, 3.0), part(1.0, 2.0)];
        assert!(readings.iter().all(|reading| {
            progress.take(reading, Duration::ZERO).iter().all(|event| !matches!(event, Event::Step(_)))
        }));
        assert_eq!(progress.tick(Duration::from_mins(1)), None);
        assert_eq!(take(&mut progress, &[part(2.0, 1.0)]).0, [(1, Some(2.0)), (2, Some(1.0))]);
    }

    #[test]
    fn an_epoch_beside_steps_or_in_fractions_is_none() {
        let mut progress = CommandProgress::new(0, 1, 1, None);
        let readings = [reading(Some(10), &[("loss", 2.0)]), of_epoch(1.0, &[("eval_loss", 1.0)])];
        assert_eq!(take(&mut progress, &readings), (vec![(10, Some(2.0))], vec![(10, Some(1.0))]));
        let mut progress = CommandProgress::new(0, 1, 1, None);
        let readings = [0.5, 1.0, 1.5].map(|epoch| of_epoch(epoch, &[("loss", 1.0)]));
        assert!(take(&mut progress, &readings).0.is_empty());
    }

    #[test]
    fn evaluations_that_nothing_places_do_not_collide() {
        let mut progress = CommandProgress::new(0, 1, 1, None);
        let readings = [3.0, 2.0, 1.0].map(|loss| reading(None, &[("eval_loss", loss)]));
        assert_eq!(take(&mut progress, &readings).1, [(0, Some(3.0)), (1, Some(2.0)), (2, Some(1.0))]);
    }

    #[test]
    fn declared_epochs_and_the_size_of_one_are_the_length() {
        let mut progress = CommandProgress::new(0, 1, 1, None).of_epochs(Some(40));
        let first = Reading { epoch: Some(5.0), epoch_size: Some(8), ..reading(Some(43), &[("loss", 1.0)]) };
        progress.take(&first, Duration::ZERO);
        assert_eq!(progress.total, Some(320));
    }
}
