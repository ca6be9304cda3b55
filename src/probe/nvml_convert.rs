//! Converts NVML's answers to metrics, and rejects figures that cannot be true.

use super::nvml_error::metric_reason;
use crate::protocol::probe::{Metric, Throttle};
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::error::NvmlError;

/// Returns the converted answer, or the reason why there is none.
pub fn to_metric<T, U>(answer: Result<T, NvmlError>, convert: impl FnOnce(T) -> Metric<U>) -> Metric<U> {
    match answer {
        Ok(value) => convert(value),
        Err(error) => Metric::Not(metric_reason(&error)),
    }
}

/// Converts per cent to a share.
pub fn percent_to_share(percent: u32) -> Metric<f64> {
    if percent > 100 { implausible("more than 100 %") } else { Metric::Is(f64::from(percent) / 100.0) }
}

/// Converts the unit of NVML.
pub fn milliwatts_to_watts(milliwatts: u32) -> f64 {
    f64::from(milliwatts) / 1000.0
}

/// Converts a temperature limit; some drivers report zero degrees when there is none.
pub fn temperature_limit(celsius: u32) -> Metric<f64> {
    if celsius == 0 { Metric::Not("not reported".to_owned()) } else { Metric::Is(celsius.into()) }
}

/// Groups the reasons for reduced clocks.
pub fn throttle_causes(reasons: ThrottleReasons) -> Throttle {
    let heat = ThrottleReasons::SW_THERMAL_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN;
    let power = ThrottleReasons::SW_POWER_CAP | ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN;
    let hardware =
        ThrottleReasons::HW_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN | ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN;
    Throttle {
        thermal: reasons.intersects(heat),
        power: reasons.intersects(power),
        hardware: reasons.intersects(hardware),
    }
}

/// Rejects a figure that cannot be true.
pub fn implausible<T>(what: &str) -> Metric<T> {
    Metric::Not(format!("implausible: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_converted_and_impossible_figures_are_not_shown() {
        assert_eq!(percent_to_share(0), Metric::Is(0.0));
        assert_eq!(percent_to_share(37), Metric::Is(0.37));
        assert_eq!(percent_to_share(100), Metric::Is(1.0));
        assert_eq!(percent_to_share(101).get(), None);
        assert_eq!(temperature_limit(0), Metric::Not("not reported".into()));
        assert_eq!(temperature_limit(83), Metric::Is(83.0));
        assert!((milliwatts_to_watts(43_250) - 43.25).abs() < 1e-9);
    }

    #[test]
    fn throttle_bits_become_causes() {
        let cases = [
            (0, (false, false, false)),
            (1 | 2 | 16 | 256, (false, false, false)),
            (4, (false, true, false)),
            (8, (false, false, true)),
            (32, (true, false, false)),
            (64, (true, false, true)),
            (128, (false, true, true)),
            (1 << 40, (false, false, false)),
        ];
        for (bits, (thermal, power, hardware)) in cases {
            let expected = Throttle { thermal, power, hardware };
            assert_eq!(throttle_causes(ThrottleReasons::from_bits_truncate(bits)), expected, "{bits}");
        }
    }
}
