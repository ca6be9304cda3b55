//! Detects loss spikes: several standard deviations above the mean of the last 128 finite values, for
//! some steps in a row. Spikes and non-finite values never enter the window.
//!
//! A jump counts only if it undoes a tenth of the drop of the loss since the start: near the end of a training, where the loss
//! is almost 0, any hard batch is many standard deviations above it. A run that begins from another's checkpoint takes over the
//! first losses of that run.

use crate::config::watch;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Losses in the window.
const WINDOW: usize = 128;
/// Losses needed before the first verdict.
const ENOUGH: usize = 64;
/// Smallest spike, as a share of the mean: a very even loss has almost no deviation.
const EVEN: f64 = 0.2;
/// Smallest spike, as a share of the fall of the loss since the start of the run.
const GAINED: f64 = 0.1;
/// Losses that tell where a run started.
const FIRST: u32 = 8;

/// The first finite losses of a run.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct FirstLosses {
    count: u32,
    sum: f64,
}

impl FirstLosses {
    /// Takes in a step's loss, if it is one of the first.
    pub fn observe(&mut self, loss: Option<f64>) {
        if let Some(sum) = loss.map(|loss| self.sum + loss).filter(|sum| self.count < FIRST && sum.is_finite()) {
            (self.count, self.sum) = (self.count + 1, sum);
        }
    }

    /// Returns their mean.
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / f64::from(self.count))
    }
}

/// Watches the loss of one worker.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SpikeWatch {
    window: VecDeque<f64>,
    jumped: u64,
}

/// A loss spike.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spike {
    /// Steps since it began, including the newest.
    pub steps: u64,
    /// The newest loss.
    pub loss: f64,
    /// The mean before the spike.
    pub mean: f64,
    /// Standard deviations above that mean.
    pub sigmas: f64,
}

impl SpikeWatch {
    /// Takes in the loss of a step of a run that started at the loss `first`. Returns the spike once it has lasted long
    /// enough, and then starts over.
    pub fn observe(&mut self, loss: f64, first: Option<f64>, knobs: watch::Spike) -> Option<Spike> {
        if !loss.is_finite() || knobs.sigma <= 0.0 {
            return None;
        }
        let (mean, deviation) = self.moments();
        let gained = first.map_or(0.0, |first| first - mean).max(0.0);
        let jump = loss > mean + knobs.sigma * deviation && loss - mean > (EVEN * mean.abs()).max(GAINED * gained);
        if self.window.len() < ENOUGH || !jump {
            self.jumped = 0;
            self.window.push_back(loss);
            if self.window.len() > WINDOW {
                self.window.pop_front();
            }
            return None;
        }
        self.jumped += 1;
        if self.jumped < knobs.in_a_row {
            return None;
        }
        let spike = Spike { steps: self.jumped, loss, mean, sigmas: (loss - mean) / deviation.max(1e-12) };
        *self = Self::default();
        Some(spike)
    }

    fn moments(&self) -> (f64, f64) {
        let count = self.window.len().max(1) as f64;
        let mean = self.window.iter().sum::<f64>() / count;
        let variance = self.window.iter().map(|loss| (loss - mean).powi(2)).sum::<f64>() / count;
        (mean, variance.sqrt())
    }
}

#[cfg(test)]
mod tests {
    use super::{FirstLosses, SpikeWatch};
    use crate::config::watch;
    use crate::recipe::seed::Stream;

    /// A noisy loss around 1.
    fn noisy(count: usize) -> Vec<f64> {
        let mut stream = Stream::new(7);
        (0..count).map(|_| 0.9 + 0.2 * f64::from(stream.unit())).collect()
    }

    fn verdicts(losses: &[f64]) -> Vec<usize> {
        let mut watch = SpikeWatch::default();
        let found = |(at, loss): (usize, &f64)| watch.observe(*loss, None, watch::Spike::default()).map(|_| at);
        losses.iter().enumerate().filter_map(found).collect()
    }

    #[test]
    fn only_a_lasting_jump_is_a_spike() {
        let calm = noisy(500);
        let then = |before: usize, after: &[f64]| [&calm[..before], after, &calm[..50]].concat();
        let table: [(&str, Vec<f64>, &[usize]); 9] = [
            ("calm", calm.clone(), &[]),
            ("three in a row", then(200, &[5.0, 6.0, 5.0]), &[202]),
            ("two in a row", then(200, &[5.0, 6.0]), &[]),
            ("three, not in a row", then(200, &[5.0, 1.0, 5.0, 1.0, 5.0]), &[]),
            ("too early", then(60, &[5.0, 5.0, 5.0]), &[]),
            ("just enough", then(64, &[5.0, 5.0, 5.0]), &[66]),
            ("NaN and infinity enter nothing", then(200, &[f64::NAN, f64::INFINITY, 5.0, f64::NAN, 5.0, 5.0]), &[205]),
            ("a step up of a tenth", then(200, &[1.15; 40]), &[]),
            ("said once while it lasts", then(200, &[5.0; 60]), &[202]),
        ];
        for (name, losses, wanted) in table {
            assert_eq!(verdicts(&losses), wanted, "{name}");
        }
    }

    #[test]
    fn an_even_loss_may_wobble() {
        let mut losses = vec![1.0; 200];
        losses.extend([1.01, 1.02, 1.05, 1.1, 1.1, 1.1]);
        assert_eq!(verdicts(&losses), [0_usize; 0]);
        losses.extend([2.0; 3]);
        assert_eq!(verdicts(&losses), [208]);
    }

    #[test]
    fn a_jump_that_takes_back_little_of_what_was_gained_is_none() {
        let started = [Some(1.4), None];
        let found = |jump: f64, first: Option<f64>| {
            let mut watch = SpikeWatch::default();
            let losses = [vec![0.001; 200], vec![jump; 3]].concat();
            losses.iter().any(|loss| watch.observe(*loss, first, watch::Spike::default()).is_some())
        };
        assert_eq!(started.map(|first| found(0.08, first)), [false, true]);
        assert_eq!(started.map(|first| found(0.5, first)), [true, true]);
    }

    #[test]
    fn the_first_losses_are_those_of_the_start() {
        let mut first = FirstLosses::default();
        assert_eq!(first.mean(), None);
        for loss in [Some(f64::NAN), None, Some(1.0), Some(2.0)] {
            first.observe(loss);
        }
        assert_eq!(first.mean(), Some(1.5));
        (0..100).for_each(|_| first.observe(Some(0.0)));
        assert_eq!(first.mean(), Some(3.0 / 8.0));
        let mut huge = FirstLosses::default();
        (0..3).for_each(|_| huge.observe(Some(f64::MAX)));
        assert_eq!(huge.mean(), Some(f64::MAX), "a sum that overflows could not be stored");
    }

    #[test]
    fn zero_standard_deviations_turn_it_off() {
        let mut watch = SpikeWatch::default();
        let off = watch::Spike { sigma: 0.0, ..watch::Spike::default() };
        let losses = [vec![1.0; 200], vec![1e9; 10]].concat();
        assert!(losses.iter().all(|loss| watch.observe(*loss, None, off).is_none()));
    }
}
