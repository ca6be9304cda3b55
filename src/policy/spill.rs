//! Detects memory of the GPU that spilled to the host. Under WSL2 the driver of Windows moves pages to shared system memory
//! when the GPU's is full: nothing fails, and every step becomes many times slower. The driver of Linux reports an error instead.
//!
//! ```text
//! steps ──▶ compute per unit of the clock ──▶ at least FACTOR times its own baseline, for a while
//! probe ──▶ memory at its limit, no thermal or power cap, GPU busy ──▶ and that explains it
//! ```

use crate::config::watch;
use crate::format::{percent, took};
use crate::protocol::probe::Gpu;
use crate::protocol::worker::{Phase, Step};
use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

/// Steps that the baseline is learned from.
const BASELINE: usize = 16;
/// First steps of a worker, which compile and tune kernels.
const WARM_UP: u64 = 3;
/// Slow steps in a row that are no accident.
const SLOW: usize = 5;
/// Share of time with a kernel running above which the GPU, not the data, makes a step slow.
const BUSY: f64 = 0.5;

/// The GPU in one reading, as far as it explains slow steps.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct GpuLoad {
    /// Share of its memory in use; above 1 where the driver counts spilled pages.
    pub memory: Option<f64>,
    /// Heat or the power limit reduces its clocks.
    pub is_capped: bool,
    /// Share of time with a kernel running.
    pub busy: Option<f64>,
}

impl GpuLoad {
    /// Reads what is known; none where the driver reports full memory, as anywhere but in WSL.
    #[must_use]
    pub fn of(gpu: &Gpu, is_wsl: bool) -> Option<Self> {
        if !is_wsl {
            return None;
        }
        let total = gpu.vram_total_bytes.get().filter(|total| *total > 0);
        let used = gpu.vram_used_bytes.get().max(gpu.vram_worker_bytes.get());
        let is_hot = gpu.temperature_c.get().zip(gpu.slowdown_c.get()).is_some_and(|(now, limit)| now >= limit);
        let throttle = gpu.throttle.get().unwrap_or_default();
        Some(Self {
            memory: used.zip(total).map(|(used, total)| used as f64 / total as f64),
            is_capped: is_hot || throttle.thermal || throttle.power || throttle.hardware,
            busy: gpu.utilisation.get(),
        })
    }
}

/// Watches one worker.
#[derive(Debug, Clone, Default)]
pub struct SpillWatch {
    load: GpuLoad,
    steps: u64,
    last: Option<(Duration, u64)>,
    /// Cost of the first steps: milliseconds per unit of the clock.
    first: Vec<f64>,
    /// The newest slow steps in a row.
    slow: VecDeque<Sample>,
    slow_since: Option<Duration>,
    told: bool,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    cost: f64,
    ms: f64,
}

/// Memory that spilled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spill {
    /// Milliseconds of a step now.
    pub now_ms: f64,
    /// Milliseconds of a step before.
    pub usual_ms: f64,
    /// Share of the GPU's memory in use.
    pub memory: f64,
}

impl fmt::Display for Spill {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ms: f64| took(ms.round() as u64);
        write!(
            formatter,
            "the GPU's memory has spilled to the host: a step takes {} of compute, usually {}, {} of the memory is in use, \
             and neither data, heat nor the power limit explains it",
            ms(self.now_ms),
            ms(self.usual_ms),
            percent(self.memory)
        )
    }
}

impl SpillWatch {
    /// Takes in a reading. One that says nothing about memory changes nothing.
    pub fn measured(&mut self, load: GpuLoad) {
        if load.memory.is_some() {
            self.load = load;
        }
    }

    /// Takes in a phase: its time belongs to no step.
    pub fn phase(&mut self, phase: Phase) {
        if phase != Phase::Training {
            self.last = None;
        }
    }

    /// Takes in a step. Returns the spill once it is certain.
    pub fn step(&mut self, step: &Step, knobs: watch::Spill, now: Duration) -> Option<Spill> {
        let before = self.last.replace((now, step.samples));
        self.steps += 1;
        let (then, samples) = before.filter(|_| self.steps > WARM_UP)?;
        let units = step.samples.saturating_sub(samples).max(1) as f64;
        let is_measured = step.compute_ms > 0.0;
        let ms = if is_measured { step.compute_ms } else { now.saturating_sub(then).as_secs_f64() * 1e3 };
        // A longer sequence or a larger batch may cost more; the clock counts its tokens or samples.
        let sample = Sample { cost: ms / units, ms };
        if self.first.len() < BASELINE {
            self.first.push(sample.cost);
            return None;
        }
        let usual = median(&self.first);
        let memory = self.load.memory.unwrap_or(0.0);
        // Without a measured wait for data, a busy GPU tells that the step does not wait for it.
        let waits = if is_measured { step.data_wait_ms > ms } else { self.load.busy.is_none_or(|busy| busy < BUSY) };
        let is_slow = knobs.factor > 0.0 && sample.cost >= knobs.factor * usual;
        if !is_slow || memory < knobs.memory || self.load.is_capped || waits {
            self.slow.clear();
            self.slow_since = None;
            self.told &= is_slow;
            return None;
        }
        if self.slow.len() == BASELINE {
            self.slow.pop_front();
        }
        self.slow.push_back(sample);
        let since = *self.slow_since.get_or_insert(then);
        let is_certain = self.slow.len() >= SLOW && now.saturating_sub(since) >= knobs.after.duration();
        if !is_certain || std::mem::replace(&mut self.told, true) {
            return None;
        }
        let (now_ms, cost) = (median_by(&self.slow, |sample| sample.ms), median_by(&self.slow, |sample| sample.cost));
        Some(Spill { now_ms, usual_ms: now_ms * usual / cost, memory })
    }
}

fn median_by(samples: &VecDeque<Sample>, of: impl Fn(&Sample) -> f64) -> f64 {
    median(&samples.iter().map(of).collect::<Vec<_>>())
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::{BASELINE, GpuLoad, SpillWatch};
    use crate::config::watch;
    use crate::protocol::blank;
    use crate::protocol::probe::Metric;
    use crate::protocol::worker::{Phase, Step};
    use std::time::Duration;

    const FULL: GpuLoad = GpuLoad { memory: Some(0.985), is_capped: false, busy: Some(1.0) };

    /// Thirty usual steps of 200 ms, then sixty with these times and units on a GPU in this condition.
    fn verdict(load: GpuLoad, (wait, compute): (f64, f64), units: u64) -> Option<String> {
        let (mut watch, mut now, mut clock) = (SpillWatch::default(), Duration::ZERO, 0);
        let mut told = None;
        for number in 1..=90 {
            let is_usual = number <= 30;
            let (wait, compute, units) = if is_usual { (5.0, 200.0, 32) } else { (wait, compute, units) };
            watch.measured(if is_usual { GpuLoad { memory: Some(0.9), ..FULL } } else { load });
            (now, clock) = (now + Duration::from_secs_f64((wait + compute) / 1e3), clock + units);
            let step =
                Step { step: number, samples: clock, data_wait_ms: wait, compute_ms: compute, ..Step::default() };
            told = told.or(watch.step(&step, watch::Spill::default(), now));
        }
        told.map(|spill| spill.to_string())
    }

    #[test]
    fn slow_compute_on_a_full_card_is_a_spill_and_nothing_else_is() {
        let said = verdict(FULL, (5.0, 4_000.0), 32).unwrap();
        assert!(said.contains("takes 4.0 s of compute, usually 0.2 s, 98 % of the memory"), "{said}");
        let spilled_pages = GpuLoad { memory: Some(1.3), ..FULL };
        assert!(verdict(spilled_pages, (5.0, 4_000.0), 32).is_some());
        // Controls.
        assert_eq!(verdict(FULL, (9_000.0, 200.0), 32), None, "slow data");
        assert_eq!(verdict(FULL, (9_000.0, 900.0), 32), None, "slow data, and with it slow compute");
        assert_eq!(verdict(GpuLoad { is_capped: true, ..FULL }, (5.0, 4_000.0), 32), None, "a hot card");
        assert_eq!(verdict(GpuLoad { memory: Some(0.9), ..FULL }, (5.0, 4_000.0), 32), None, "memory is left");
        assert_eq!(verdict(GpuLoad::default(), (5.0, 4_000.0), 32), None, "memory is unknown");
        assert_eq!(verdict(FULL, (5.0, 4_000.0), 32 * 20), None, "sequences of twenty times the length");
        assert_eq!(verdict(FULL, (5.0, 500.0), 32), None, "below three times the baseline");
    }

    #[test]
    fn a_few_slow_steps_and_an_evaluation_between_two_are_no_spill() {
        let (mut watch, knobs) = (SpillWatch::default(), watch::Spill::default());
        watch.measured(FULL);
        let (mut now, mut told) = (Duration::ZERO, 0);
        for number in 1..=400_u64 {
            // Every tenth step is slow, and before every fifth stands an evaluation.
            let slow = number % 10 == 0;
            if number % 5 == 0 {
                watch.phase(Phase::Evaluating);
                now += Duration::from_mins(1);
                watch.phase(Phase::Training);
            }
            now += Duration::from_secs(if slow { 30 } else { 1 });
            let step = Step { step: number, samples: number, ..Step::default() };
            told += usize::from(watch.step(&step, knobs, now).is_some());
        }
        assert_eq!(told, 0);
    }

    #[test]
    fn the_output_of_a_script_tells_a_spill_by_a_busy_card_and_once() {
        let spills = |busy: Option<f64>| {
            let (mut watch, knobs, mut now) = (SpillWatch::default(), watch::Spill::default(), Duration::ZERO);
            let mut told = 0;
            for number in 1..=100_u64 {
                watch.measured(GpuLoad { busy, ..FULL });
                now += Duration::from_secs(if number > 40 { 20 } else { 1 });
                let step = Step { step: number, samples: number, ..Step::default() };
                told += usize::from(watch.step(&step, knobs, now).is_some());
            }
            told
        };
        assert_eq!(spills(Some(0.99)), 1);
        assert_eq!(spills(Some(0.1)), 0, "the card waits for data");
        assert_eq!(spills(None), 0, "nothing tells data from compute");
    }

    #[test]
    fn a_driver_that_reports_full_memory_spills_nothing() {
        let mut gpu = blank::gpu();
        (gpu.vram_total_bytes, gpu.vram_used_bytes) = (Metric::Is(100), Metric::Is(99));
        assert_eq!(GpuLoad::of(&gpu, false), None);
        assert_eq!(GpuLoad::of(&gpu, true).and_then(|load| load.memory), Some(0.99));
    }

    #[test]
    fn a_training_that_stays_slow_for_days_needs_no_more_memory() {
        let (mut watch, knobs, mut now) = (SpillWatch::default(), watch::Spill::default(), Duration::ZERO);
        watch.measured(FULL);
        for number in 1..=1_000_u64 {
            now += Duration::from_secs(if number > 40 { 20 } else { 1 });
            let step = Step { step: number, samples: number, ..Step::default() };
            watch.step(&step, knobs, now);
        }
        assert_eq!(watch.slow.len(), BASELINE);
    }
}
