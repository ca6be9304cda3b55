//! The learning rate on a plateau: the rule that lowers it when evaluations stop improving.
//!
//! The rule and the names of its knobs are those of PyTorch's `torch.optim.lr_scheduler.ReduceLROnPlateau` in mode `min`
//! with a relative threshold, its `eps` included. An evaluation is bad if it is not below the best one by more than the
//! threshold. More than `patience` bad ones in a row multiply the rate by `factor`; then `cooldown` evaluations pass in
//! which none is bad. Two things differ, because a schedule runs beside the rule: it changes a factor on the scheduled
//! rate, so `min_lr` bounds the peak of that schedule, and each step counts once, however often it is evaluated.

use serde::{Deserialize, Serialize};

/// A reduction of the peak rate by less than this is not made: PyTorch's `eps`.
const LEAST_CHANGE: f64 = 1e-8;

/// When the rate is lowered, and by how much.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Multiplier of each reduction.
    pub factor: f64,
    /// Bad evaluations in a row that change nothing.
    pub patience: u64,
    /// Share of the best value by which a better one must beat it.
    pub threshold: f64,
    /// Evaluations after a reduction in which none counts as bad.
    pub cooldown: u64,
    /// Peak rate below which the rule does not lower it.
    pub min_lr: f64,
}

impl Default for Rule {
    fn default() -> Self {
        Self { factor: 0.5, patience: 3, threshold: 1e-4, cooldown: 0, min_lr: 0.0 }
    }
}

/// The evaluations so far, as far as the rule needs them. Part of the training state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlateauState {
    /// The factor on the scheduled rate.
    pub factor: f64,
    /// The ranking: another one begins anew, since its values cannot be compared.
    pub ranking: String,
    /// The lowest cost.
    pub best: Option<f64>,
    /// Bad evaluations in a row.
    pub bad: u64,
    /// Evaluations of the cooldown that are left.
    pub cooldown: u64,
    /// The step of the newest evaluation that counted.
    pub step: u64,
}

impl Default for PlateauState {
    fn default() -> Self {
        Self { factor: 1.0, ranking: String::new(), best: None, bad: 0, cooldown: 0, step: 0 }
    }
}

/// A reduction of the rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reduction {
    /// The factor before.
    pub from: f64,
    /// The factor from here on.
    pub to: f64,
    /// Evaluations in a row that were not better.
    pub evaluations: u64,
}

/// An evaluation that the rule takes in.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluated<'a> {
    /// The step after which it was measured.
    pub step: u64,
    /// How costs are ranked, in words.
    pub ranking: &'a str,
    /// The value that ranks it, where lower is better.
    pub cost: f64,
}

impl PlateauState {
    /// Takes in an evaluation; `peak` is the peak rate of the schedule. Ignores a step that already counted, and a cost
    /// that is not finite: NaN is not a plateau.
    pub fn record(&mut self, rule: &Rule, peak: f64, eval: Evaluated<'_>) -> Option<Reduction> {
        let Evaluated { step, ranking, cost } = eval;
        if self.ranking != ranking {
            *self = Self { factor: self.factor, ranking: ranking.to_owned(), ..Self::default() };
        } else if step <= self.step {
            return None;
        }
        if !cost.is_finite() {
            return None;
        }
        self.step = step;
        // PyTorch multiplies the best by 1 - threshold, which for values below zero is a higher bar, not a lower one.
        if self.best.is_none_or(|best| cost < best - best.abs() * rule.threshold) {
            (self.best, self.bad) = (Some(cost), 0);
        } else {
            self.bad += 1;
        }
        if self.cooldown > 0 {
            (self.cooldown, self.bad) = (self.cooldown - 1, 0);
        }
        if self.bad <= rule.patience {
            return None;
        }
        let evaluations = std::mem::take(&mut self.bad);
        self.cooldown = rule.cooldown;
        let from = self.factor;
        let to = (from * rule.factor).max(rule.min_lr / peak);
        if (from - to) * peak <= LEAST_CHANGE {
            return None;
        }
        self.factor = to;
        Some(Reduction { from, to, evaluations })
    }
}

#[cfg(test)]
mod tests {
    use super::{Evaluated, PlateauState, Rule};
    use proptest::prelude::*;

    const PLAIN: Rule = Rule { factor: 0.5, patience: 1, threshold: 0.0, cooldown: 0, min_lr: 0.0 };

    fn eval(step: u64, cost: f64) -> Evaluated<'static> {
        Evaluated { step, ranking: "lowest loss", cost }
    }

    /// Returns the peak rate after each evaluation, from a peak of 1.
    fn rates(rule: &Rule, costs: &[f64]) -> Vec<f64> {
        let mut state = PlateauState::default();
        let after = |(index, cost): (usize, &f64)| {
            state.record(rule, 1.0, eval(index as u64 + 1, *cost));
            state.factor
        };
        costs.iter().enumerate().map(after).collect()
    }

    #[test]
    fn the_rates_are_those_of_pytorchs_rule() {
        // Worked out by hand from the documentation of ReduceLROnPlateau; PyTorch 2.15 gives the same rates.
        let flat = [1.0; 8];
        let table: [(Rule, &[f64], &[f64]); 9] = [
            // Patience 0: the first evaluation is the baseline, the second is one too many.
            (Rule { patience: 0, ..PLAIN }, &flat[..4], &[1.0, 0.5, 0.25, 0.125]),
            // Patience 2: two bad ones are allowed, the third lowers the rate.
            (Rule { patience: 2, ..PLAIN }, &flat, &[1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25]),
            // An improvement resets the count.
            (PLAIN, &[3.0, 3.0, 2.0, 2.0, 1.0, 1.0, 1.0], &[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5]),
            // Better than the last but not than the best is bad.
            (PLAIN, &[1.0, 3.0, 2.0], &[1.0, 1.0, 0.5]),
            // The threshold is relative and the comparison strict: 90 is 10 % below 100, not more.
            (Rule { threshold: 0.1, ..PLAIN }, &[100.0, 90.0, 90.0, 89.0, 88.0], &[1.0, 1.0, 0.5, 0.5, 0.5]),
            // Three evaluations of cooldown in which none is bad, then patience 1 again.
            (Rule { cooldown: 3, ..PLAIN }, &flat, &[1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.25]),
            // The best is followed during a cooldown.
            (
                Rule { cooldown: 1, ..PLAIN },
                &[5.0, 5.0, 5.0, 1.0, 2.0, 2.0, 2.0],
                &[1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25],
            ),
            // The last reduction stops at the least rate, and no further one is made.
            (Rule { patience: 0, min_lr: 0.3, ..PLAIN }, &flat[..5], &[1.0, 0.5, 0.3, 0.3, 0.3]),
            // NaN is neither good nor bad.
            (PLAIN, &[1.0, f64::NAN, f64::NAN, f64::INFINITY, 1.0, 1.0], &[1.0, 1.0, 1.0, 1.0, 1.0, 0.5]),
        ];
        for (rule, costs, wanted) in table {
            assert_eq!(rates(&rule, costs), wanted, "{rule:?} on {costs:?}");
        }
    }

    #[test]
    fn a_long_noisy_curve_is_lowered_where_pytorch_lowers_it() {
        // PyTorch 2.15 on the same losses: the evaluations that lowered the rate, and the last rate.
        let losses: Vec<f64> = (0..80u32).map(|at| f64::from(100 - at + (at * 37) % 23) / 100.0).collect();
        let table: [(Rule, &[usize], f64); 4] = [
            (Rule::default(), &[5, 10, 15, 20, 28, 33, 38, 43, 51, 56, 61, 66, 74, 79], 6.103_515_625e-5),
            (Rule { factor: 0.1, patience: 1, threshold: 0.05, cooldown: 2, min_lr: 1e-4 }, &[3, 7, 13, 17], 1e-4),
            (Rule { factor: 0.7, patience: 0, threshold: 0.01, cooldown: 5, min_lr: 0.2 }, &[2, 8, 14, 20, 26], 0.2),
            (Rule { patience: 10, ..Rule::default() }, &[], 1.0),
        ];
        for (rule, lowered, last) in table {
            let rates = rates(&rule, &losses);
            let before = std::iter::once(&1.0).chain(&rates);
            let seen: Vec<usize> =
                before.zip(&rates).enumerate().filter(|(_, (a, b))| b < a).map(|(at, _)| at + 1).collect();
            assert_eq!(seen, lowered, "{rule:?}");
            assert!((rates[79] - last).abs() < 1e-12, "{rule:?}: {}", rates[79]);
        }
    }

    #[test]
    fn a_value_below_zero_has_a_threshold_too() {
        let rule = Rule { threshold: 0.1, ..PLAIN };
        assert_eq!(rates(&rule, &[-100.0, -105.0, -109.0]), [1.0, 1.0, 0.5]);
        assert_eq!(rates(&rule, &[-100.0, -111.0, -123.0]), [1.0, 1.0, 1.0]);
    }

    #[test]
    fn a_change_too_small_to_matter_is_not_made() {
        let (mut state, rule) = (PlateauState::default(), Rule { patience: 0, ..PLAIN });
        let seen = (1..=9).map(|step| state.record(&rule, 1.2e-7, eval(step, 1.0)).is_some());
        // 1.2e-7, 6e-8, 3e-8, 1.5e-8: the next change would be 7.5e-9.
        assert_eq!(seen.collect::<Vec<_>>(), [false, true, true, true, false, false, false, false, false]);
    }

    #[test]
    fn another_metric_begins_anew_and_keeps_the_factor() {
        let mut state = PlateauState::default();
        for step in 1..=3 {
            state.record(&PLAIN, 1.0, eval(step, 1.0));
        }
        let other = |step, cost| Evaluated { step, ranking: "highest accuracy", cost };
        assert_eq!(state.record(&PLAIN, 1.0, other(4, -0.1)), None);
        assert_eq!((state.factor, state.best, state.bad), (0.5, Some(-0.1), 0));
    }

    proptest! {
        #[test]
        fn a_step_counts_once_and_a_state_that_was_stored_goes_on_alike(
            costs in prop::collection::vec(0.0f64..2.0, 1..60), factor in 0.05f64..0.95, patience in 0u64..4,
            threshold in 0.0f64..0.2, cooldown in 0u64..4, min_lr in 0.0f64..0.5, cut in 0usize..60, back in 0usize..8,
        ) {
            let rule = Rule { factor, patience, threshold, cooldown, min_lr };
            let mut whole = PlateauState::default();
            let (mut states, mut reductions) = (vec![whole.clone()], 0u64);
            for (index, cost) in costs.iter().enumerate() {
                let before = whole.factor;
                let reduction = whole.record(&rule, 1.0, eval(index as u64 + 1, *cost));
                prop_assert!(whole.factor <= before && whole.factor >= min_lr.min(1.0));
                prop_assert_eq!(reduction.is_some(), whole.factor < before);
                prop_assert!(whole.bad <= patience && whole.cooldown <= cooldown);
                reductions += u64::from(reduction.is_some());
                states.push(whole.clone());
            }
            // Each reduction takes more than `patience` evaluations, after the baseline and each cooldown.
            prop_assert!(reductions * (patience + 1) + reductions.saturating_sub(1) * cooldown < costs.len() as u64 + 1);
            // A worker that is killed after `cut` evaluations and resumes from a state saved some evaluations earlier.
            let cut = cut.min(costs.len());
            let stored = serde_json::to_string(&states[cut.saturating_sub(back)]).unwrap();
            let mut resumed: PlateauState = serde_json::from_str(&stored).unwrap();
            // Evaluations from before that state are ignored; those after it count as they did.
            for (index, cost) in costs.iter().enumerate() {
                resumed.record(&rule, 1.0, eval(index as u64 + 1, *cost));
            }
            prop_assert_eq!(resumed, whole);
        }
    }
}
