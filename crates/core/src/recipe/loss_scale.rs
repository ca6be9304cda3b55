//! Loss scaling for 16-bit training. Gradients below the smallest f16 would underflow, so the loss is
//! multiplied before the backward pass and the gradients are divided by the same factor, in f32.
//!
//! The rule and its constants are those of PyTorch's `torch.amp.GradScaler` (its documentation: `init_scale`
//! 65536, `backoff_factor` 0.5, `growth_factor` 2, `growth_interval` 2000): a step whose gradient overflows
//! is dropped and the scale is halved; after 2000 clean steps in a row it is doubled. In addition to that
//! rule, the scale never falls below 1. From 2¹⁶ it gets there in 16 halvings, so steps dropped because of
//! the scale are bounded, and an overflow at scale 1 is a genuine numerical problem.

use serde::{Deserialize, Serialize};

const FIRST: f64 = 65_536.0;
const GROWS_AFTER: u64 = 2000;

/// The current loss scale and how long it has held.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    /// The factor, a power of two, so dividing by it is exact.
    pub scale: f64,
    /// Consecutive steps taken with this scale.
    pub clean_steps: u64,
}

impl Default for LossScale {
    fn default() -> Self {
        Self { scale: FIRST, clean_steps: 0 }
    }
}

impl LossScale {
    /// Records a step with a finite gradient.
    pub fn record_clean_step(&mut self) {
        self.clean_steps += 1;
        let doubled = self.scale * 2.0;
        if self.clean_steps >= GROWS_AFTER {
            self.clean_steps = 0;
            if doubled <= f64::from(f32::MAX) {
                self.scale = doubled;
            }
        }
    }

    /// Records a step with a finite loss and a non-finite gradient. Halves the scale and returns true if a
    /// smaller scale may help.
    pub fn record_overflow(&mut self) -> bool {
        let helps = self.scale > 1.0;
        if helps {
            *self = Self { scale: self.scale / 2.0, clean_steps: 0 };
        }
        helps
    }
}

#[cfg(test)]
mod tests {
    use super::LossScale;

    fn run(scale: &mut LossScale, steps: u64) {
        for _ in 0..steps {
            scale.record_clean_step();
        }
    }

    #[test]
    fn it_halves_at_once_and_doubles_after_two_thousand_clean_steps() {
        let mut scale = LossScale::default();
        assert!(scale.record_overflow() && scale.record_overflow());
        assert_eq!(scale, LossScale { scale: 16_384.0, clean_steps: 0 });
        run(&mut scale, 1999);
        assert_eq!(scale, LossScale { scale: 16_384.0, clean_steps: 1999 });
        scale.record_clean_step();
        assert_eq!(scale, LossScale { scale: 32_768.0, clean_steps: 0 });
        run(&mut scale, 1999);
        assert!(scale.record_overflow(), "the count starts over");
        assert_eq!(scale, LossScale { scale: 16_384.0, clean_steps: 0 });
    }

    #[test]
    fn it_stays_between_one_and_what_f32_holds() {
        let mut scale = LossScale::default();
        let halvings = (0..100).filter(|_| scale.record_overflow()).count();
        assert_eq!((halvings, scale), (16, LossScale { scale: 1.0, clean_steps: 0 }));
        run(&mut scale, 1_000_000);
        assert_eq!(scale, LossScale { scale: 127.0_f64.exp2(), clean_steps: 0 });
    }
}
