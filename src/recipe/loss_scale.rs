//! The loss scale of 16-bit training: gradients below the smallest f16 would be lost, so the loss is
//! multiplied before the backward pass and the gradients are divided by as much, in f32.
//!
//! The rule and its numbers are those of PyTorch's `torch.amp.GradScaler` (its documentation:
//! `init_scale` 65536, `backoff_factor` 0.5, `growth_factor` 2, `growth_interval` 2000): a step whose
//! gradient overflows is dropped and the scale halved; after 2000 clean steps in a row it is doubled.
//! Beyond that rule the scale stops at 1. From 2¹⁶ that is after 16 halvings, so steps dropped for
//! the scale end by themselves, and what overflows at 1 is trouble of the numbers.

use serde::{Deserialize, Serialize};

const FIRST: f64 = 65_536.0;
const GROWS_AFTER: u64 = 2000;

/// What the loss is multiplied by, and since when.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LossScale {
    /// The factor, a power of two: dividing by it is exact.
    pub scale: f64,
    /// Steps taken with it in a row.
    pub clean_steps: u64,
}

impl Default for LossScale {
    fn default() -> Self {
        Self { scale: FIRST, clean_steps: 0 }
    }
}

impl LossScale {
    /// A step had a finite gradient.
    pub fn took(&mut self) {
        self.clean_steps += 1;
        let doubled = self.scale * 2.0;
        if self.clean_steps >= GROWS_AFTER {
            self.clean_steps = 0;
            if doubled <= f64::from(f32::MAX) {
                self.scale = doubled;
            }
        }
    }

    /// A step had a finite loss and a gradient that is not. Whether a smaller scale may help: then it
    /// is halved.
    pub fn overflowed(&mut self) -> bool {
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
            scale.took();
        }
    }

    #[test]
    fn it_halves_at_once_and_doubles_after_two_thousand_clean_steps() {
        let mut scale = LossScale::default();
        assert!(scale.overflowed() && scale.overflowed());
        assert_eq!(scale, LossScale { scale: 16_384.0, clean_steps: 0 });
        run(&mut scale, 1999);
        assert_eq!(scale, LossScale { scale: 16_384.0, clean_steps: 1999 });
        scale.took();
        assert_eq!(scale, LossScale { scale: 32_768.0, clean_steps: 0 });
        run(&mut scale, 1999);
        assert!(scale.overflowed(), "the count begins anew");
        assert_eq!(scale, LossScale { scale: 16_384.0, clean_steps: 0 });
    }

    #[test]
    fn it_stays_between_one_and_what_f32_holds() {
        let mut scale = LossScale::default();
        let halvings = (0..100).filter(|_| scale.overflowed()).count();
        assert_eq!((halvings, scale), (16, LossScale { scale: 1.0, clean_steps: 0 }));
        run(&mut scale, 1_000_000);
        assert_eq!(scale, LossScale { scale: 127.0_f64.exp2(), clean_steps: 0 });
    }
}
