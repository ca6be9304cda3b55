//! The save interval for `every: auto`.
//!
//! A save costs `C` seconds of training; a failure costs half an interval of work. In the long run, the
//! interval `√(2·C·M)` loses least, where `M` is the mean time between failures: J. W. Young, "A first order
//! approximation to the optimum checkpoint interval", Communications of the ACM 17(9), 1974. J. T. Daly, "A
//! higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
//! Systems 22(3), 2006, adds terms that matter once `C` is not small compared to `M`; below a hundredth, as
//! here, the two agree within 3 %.

use serde::{Deserialize, Serialize};

/// The shortest interval in seconds. Below it, consecutive saves are too close together to tell apart.
pub const SHORTEST_S: f64 = 30.0;
/// The time before the first save of a plain loop in seconds: a fault in its first minute should not lose all of it.
pub const FIRST_S: f64 = 10.0;
/// The longest interval in seconds: the most work that a failure may lose.
pub const LONGEST_S: f64 = 600.0;
/// The mean time between failures assumed for a run without history: three hours.
const PRIOR_S: f64 = 3.0 * 3600.0;

/// The failures of a run so far.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Faults {
    /// Workers that died.
    pub count: u64,
    /// Total lifetime of all workers in seconds.
    pub lived_s: f64,
}

impl Faults {
    /// Returns the mean time between failures `more_s` seconds later: the observed failures, with the prior
    /// counted as one more observation.
    #[must_use]
    pub fn mtbf_s(&self, more_s: f64) -> f64 {
        (PRIOR_S + self.lived_s + more_s) / (self.count as f64 + 1.0)
    }
}

/// Returns the optimal seconds between saves that each cost `cost_s` seconds of training.
#[must_use]
pub fn best_interval_s(cost_s: f64, mtbf_s: f64) -> f64 {
    let best = (2.0 * cost_s.max(0.0) * mtbf_s.max(0.0)).sqrt();
    if best.is_finite() { best.clamp(SHORTEST_S, LONGEST_S) } else { LONGEST_S }
}

#[cfg(test)]
mod tests {
    use super::{Faults, best_interval_s};
    use proptest::prelude::*;

    #[test]
    fn the_interval_is_youngs_within_its_bounds() {
        let three_hours = Faults::default().mtbf_s(0.0);
        for (cost, mtbf, wanted) in [
            (1.0, three_hours, 147.0),
            (1.0, 3600.0, 84.9),
            (0.001, three_hours, 30.0),
            (0.0, three_hours, 30.0),
            (100.0, three_hours, 600.0),
            (f64::INFINITY, three_hours, 600.0),
            (f64::NAN, three_hours, 30.0),
        ] {
            assert!(
                (best_interval_s(cost, mtbf) - wanted).abs() < 0.1,
                "{cost} s, {mtbf} s: {}",
                best_interval_s(cost, mtbf)
            );
        }
    }

    #[test]
    fn faults_shorten_it_and_quiet_time_lengthens_it() {
        let seen = |count, lived_s| Faults { count, lived_s }.mtbf_s(0.0);
        assert!((seen(0, 0.0) - 10_800.0).abs() < 1e-9);
        assert!((seen(5, 7200.0) - 3000.0).abs() < 1e-9);
        assert!(seen(1, 0.0) < seen(0, 0.0) && seen(1, 1e6) > seen(1, 0.0));
        assert!((Faults::default().mtbf_s(10_800.0) - 21_600.0).abs() < 1e-9, "the worker's own life counts");
    }

    proptest! {
        /// Checks the formula against its definition: no other interval loses less.
        #[test]
        fn no_interval_within_the_bounds_loses_less(cost in 0.01f64..20.0, mtbf in 600.0f64..100_000.0, other in 30.0f64..600.0) {
            let loss = |interval: f64| cost / interval + interval / (2.0 * mtbf);
            prop_assert!(loss(best_interval_s(cost, mtbf)) <= loss(other) * (1.0 + 1e-12));
        }
    }
}
