//! The course of the loss in a log: a training that diverges prints nothing else that is wrong.

use crate::format::{count, figure};
use std::collections::VecDeque;

/// Losses in a mean.
const WINDOW: usize = 8;
/// Losses below which a log says nothing about their course.
const ENOUGH: usize = 4 * WINDOW;
/// How far the loss rises above its lowest mean, in shares of its fall, before it counts as diverged.
const RISE: f64 = 0.5;

/// A mean of some losses, and the step of the newest.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Mean {
    step: Option<u64>,
    loss: f64,
}

/// The means of the losses of a log.
#[derive(Debug, Default)]
pub struct Losses {
    window: VecDeque<f64>,
    seen: usize,
    first: Option<Mean>,
    lowest: Option<Mean>,
    last: Option<Mean>,
}

impl Losses {
    /// Takes a loss.
    pub fn push(&mut self, step: Option<u64>, loss: f64) {
        if !loss.is_finite() {
            return;
        }
        // Another training begins, or the same one again.
        if self.last.and_then(|last| last.step).zip(step).is_some_and(|(last, step)| step < last) {
            *self = Self::default();
        }
        self.seen += 1;
        self.window.push_back(loss);
        if self.window.len() > WINDOW {
            self.window.pop_front();
        }
        if self.window.len() < WINDOW {
            return;
        }
        let mean = Mean { step, loss: self.window.iter().sum::<f64>() / WINDOW as f64 };
        self.first = self.first.or(Some(mean));
        self.lowest = self.lowest.filter(|lowest| lowest.loss <= mean.loss).or(Some(mean));
        self.last = Some(mean);
    }

    /// Describes a loss that rose far again after it had fallen.
    #[must_use]
    pub fn describe_divergence(&self) -> Option<String> {
        let (first, lowest, last) = (self.first?, self.lowest?, self.last?);
        let fell = (first.loss - lowest.loss).max(lowest.loss.abs());
        if self.seen < ENOUGH
            || lowest.loss <= 0.0
            || last.loss - lowest.loss <= RISE * fell
            || last.loss <= 2.0 * lowest.loss
        {
            return None;
        }
        let at = |mean: Mean| mean.step.map_or_else(String::new, |step| format!(" (step {})", count(step)));
        Some(format!(
            "The loss fell to {}{} and rose to {}{}: the training diverged. A lower learning rate, a longer warm-up, clipped \
             gradients or f32 help; start again from a checkpoint before it rose.",
            figure(lowest.loss),
            at(lowest),
            figure(last.loss),
            at(last)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::Losses;

    fn described(loss: impl Fn(u64) -> f64) -> Option<String> {
        written(1..=300, loss)
    }

    fn written(steps: impl Iterator<Item = u64>, loss: impl Fn(u64) -> f64) -> Option<String> {
        let mut losses = Losses::default();
        steps.for_each(|step| losses.push(Some(step), loss(step)));
        losses.describe_divergence()
    }

    #[test]
    fn a_training_that_begins_again_has_not_diverged() {
        assert_eq!(written((1..=300).chain(1..=40), |step| 5.0 / (1.0 + step as f64 * 0.05)), None);
    }

    #[test]
    fn a_loss_that_rises_far_again_has_diverged() {
        let falls = |step: u64| 5.0 / (1.0 + step as f64 * 0.05);
        assert_eq!(described(falls), None);
        assert_eq!(described(|step| falls(step) + 0.3 * (step % 7) as f64 / 7.0), None, "noise");
        assert_eq!(
            described(|step| falls(step.min(100)) + 0.002 * step.saturating_sub(100) as f64),
            None,
            "rises a little"
        );
        let said = described(|step| falls(step) * 1.1_f64.powi(step.saturating_sub(150) as i32)).unwrap();
        assert!(said.contains("(step 1") && said.contains("rose to 3.7e5") && said.contains("(step 300)"), "{said}");
    }
}
