//! Detects divergence: the smoothed loss stays far above its best, or keeps rising. The keeper only
//! proposes a response, because only the user knows the expected curve.

use crate::config::watch;
use crate::format::counted;
use std::collections::VecDeque;

/// Weight of the newest loss in the smoothed one.
const NEWEST: f64 = 0.02;
/// Steps before the smoothed loss is meaningful.
const SETTLED: u64 = 100;
/// A rise splits its steps into this many parts, each above the one before.
const PARTS: usize = 8;
/// A rise below this share of the early losses is noise at the bottom of the curve.
const NOISE: f64 = 0.05;

/// Watches one worker's loss curve.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DriftWatch {
    steps: u64,
    smooth: f64,
    first: f64,
    best: f64,
    above: u64,
    part: (u64, f64),
    parts: VecDeque<f64>,
    said: bool,
}

impl DriftWatch {
    /// Takes in a step's loss. Returns a sentence once the loss has diverged, and again only after it recovered.
    pub fn observe(&mut self, loss: f64, knobs: watch::Divergence) -> Option<String> {
        if !loss.is_finite() {
            return None;
        }
        self.steps += 1;
        self.smooth = if self.steps == 1 { loss } else { self.smooth + NEWEST * (loss - self.smooth) };
        if self.steps < SETTLED {
            return None;
        }
        if self.steps == SETTLED {
            (self.first, self.best) = (self.smooth, self.smooth);
        }
        self.best = self.best.min(self.smooth);
        let matters = self.smooth - self.best > NOISE * self.first.abs();
        self.above = if matters && self.smooth > knobs.factor * self.best { self.above + 1 } else { 0 };
        let rises = self.rises(knobs.rising) && matters;
        let text = if knobs.steps > 0 && self.above >= knobs.steps {
            let factor = knobs.factor;
            format!("the smoothed loss has been above {factor} times its best for {}", counted(self.above, "step"))
        } else if rises {
            format!("the loss has been rising for {}", counted(knobs.rising, "step"))
        } else {
            self.said &= matters;
            return None;
        };
        (!std::mem::replace(&mut self.said, true)).then_some(text)
    }

    /// Reports whether each part of the last `steps` steps lies above the one before.
    fn rises(&mut self, steps: u64) -> bool {
        let length = steps / PARTS as u64;
        if length == 0 {
            return false;
        }
        self.part = (self.part.0 + 1, self.part.1 + self.smooth);
        if self.part.0 >= length {
            self.parts.push_back(self.part.1 / self.part.0 as f64);
            self.part = (0, 0.0);
            if self.parts.len() > PARTS {
                self.parts.pop_front();
            }
        }
        self.parts.len() == PARTS && self.parts.iter().is_sorted_by(|a, b| a < b)
    }
}

#[cfg(test)]
mod tests {
    use super::DriftWatch;
    use crate::config::watch;
    use crate::recipe::seed::Stream;

    fn says(course: impl Fn(u64) -> f64) -> Vec<u64> {
        let (mut watch, mut stream) = (DriftWatch::default(), Stream::new(3));
        let noise = |stream: &mut Stream| 1.0 + 0.1 * (f64::from(stream.unit()) - 0.5);
        let mut said = Vec::new();
        for step in 1..=6000 {
            let loss = course(step) * noise(&mut stream);
            said.extend(watch.observe(loss, watch::Divergence::default()).map(|_| step));
        }
        said
    }

    #[test]
    fn a_loss_that_stays_high_or_keeps_rising_is_reported_once() {
        let falling = |step: u64| 2.0 / (step as f64).sqrt();
        assert_eq!(says(falling), [0_u64; 0], "a healthy run");
        assert_eq!(says(|_| 1.0), [0_u64; 0], "a level one");
        let high = says(|step| if step > 2000 { 3.0 } else { 1.0 });
        assert!(matches!(high[..], [2501..=2600]), "{high:?}");
        let rising = says(|step| 1.0 + (step as f64 / 6000.0) * 0.9);
        assert!(matches!(rising[..], [2000..=2700]), "{rising:?}");
        let bump = says(|step| if (2000..2300).contains(&step) { 3.0 } else { 1.0 });
        assert_eq!(bump, [0_u64; 0], "it came back in time");
        let bottom = says(|step| if step > 3000 { 0.004 } else { 2.0 / step as f64 });
        assert_eq!(bottom, [0_u64; 0], "noise at the bottom of the curve");
    }
}
