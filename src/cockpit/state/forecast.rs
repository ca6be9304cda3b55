//! GPU memory trend: the slope over the last minutes, and the time until it is full.

use super::facts::Facts;
use super::readings::{GIB, Gauge};

/// Trend of GPU memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forecast {
    /// Bytes per minute; negative if it shrinks.
    pub bytes_per_min: f64,
    /// Minutes until no memory is free, if it grows steadily.
    pub minutes_to_full: Option<f64>,
}

/// Length of history considered, milliseconds.
const SPAN_MS: i64 = 600_000;
/// Minimum history for a forecast, milliseconds.
const LEAST_MS: i64 = 60_000;
/// Growth below this is noise, GiB per minute.
const NOISE: f64 = 1.0 / 1024.0;

impl Facts {
    /// Fits the slope of GPU memory by least squares; returns `None` before a minute of readings.
    /// `minutes_to_full` is set only if a straight line explains most of the readings.
    #[must_use]
    pub fn vram_forecast(&self, total_bytes: u64) -> Option<Forecast> {
        let (now, used) = self.readings.newest(Gauge::Vram).next()?;
        let near = |point: &(i64, f64)| now.saturating_sub(point.0) <= SPAN_MS;
        let points: Vec<_> = self.readings.newest(Gauge::Vram).take_while(near).collect();
        let oldest = points.last()?.0;
        if now.saturating_sub(oldest) < LEAST_MS || points.len() < 8 {
            return None;
        }
        let count = points.len() as f64;
        let minutes = |time: i64| time.saturating_sub(now) as f64 / 60e3;
        let mean_x = points.iter().map(|(time, _)| minutes(*time)).sum::<f64>() / count;
        let mean_y = points.iter().map(|(_, value)| value).sum::<f64>() / count;
        let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
        for (time, value) in &points {
            let (x, y) = (minutes(*time) - mean_x, value - mean_y);
            (xx, xy, yy) = (xx + x * x, xy + x * y, yy + y * y);
        }
        let slope = xy / xx;
        let fit = if yy > 0.0 { xy * xy / (xx * yy) } else { 0.0 };
        let free = (total_bytes as f64 / GIB - used).max(0.0);
        let grows = slope > NOISE && fit > 0.6;
        slope.is_finite().then(|| Forecast {
            bytes_per_min: slope * GIB,
            minutes_to_full: grows.then(|| free / slope).filter(|minutes| minutes.is_finite()),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::cockpit::fixture::{self, NOW};
    use crate::cockpit::state::facts::Facts;
    use crate::protocol::control::{ReadingRow, Update};
    use crate::protocol::probe::Metric;

    fn facts(grows_by: u64) -> Facts {
        let mut facts = Facts::default();
        for second in 0..120i64 {
            let mut reading = fixture::reading(true, second);
            if let Ok(gpu) = &mut reading.gpu {
                gpu.vram_used_bytes = Metric::Is((10 << 30) + grows_by * second.unsigned_abs());
            }
            let row = ReadingRow { time_ms: NOW + second * 1000, reading };
            facts.apply_update(Update::Reading(Box::new(row)), NOW);
        }
        facts
    }

    #[test]
    fn growing_memory_has_an_end() {
        // 10 MiB/s into 14 GiB of free memory, less the growth so far: just over 22 minutes.
        let forecast = facts(10 << 20).vram_forecast(24 << 30).unwrap();
        assert!((forecast.bytes_per_min / f64::from(600 << 20) - 1.0).abs() < 0.01, "{forecast:?}");
        let minutes = forecast.minutes_to_full.unwrap();
        assert!((21.0..23.0).contains(&minutes), "{minutes}");
    }

    #[test]
    fn level_memory_has_none_and_a_short_look_says_nothing() {
        assert_eq!(facts(0).vram_forecast(24 << 30).unwrap().minutes_to_full, None);
        assert_eq!(Facts::default().vram_forecast(24 << 30), None);
    }
}
