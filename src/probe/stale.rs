//! Remembers measured values, so that a metric with a transient failure is shown as stale, with its age,
//! and not as missing.

use crate::protocol::probe::{Gpu, Metric};
use std::time::{Duration, Instant};

/// Maximum age of a stale value.
const KEPT: Duration = Duration::from_secs(30);
/// Transient reasons, as the probe words them.
const PASSING: [&str; 4] = ["timed out", "unknown error of the driver", "no data", "list changed while reading"];

/// The last reading of each metric.
#[derive(Debug, Default)]
pub struct Memory {
    last: Option<(Gpu, Instant)>,
    ages: Vec<Instant>,
    worker: Option<u32>,
}

impl Memory {
    /// Fills metrics that fail for a transient reason with their last values, marked stale.
    pub fn settle(&mut self, gpu: &mut Gpu, worker: Option<u32>, now: Instant) {
        let same_worker = self.worker == worker;
        self.worker = worker;
        let Some((mut last, _)) = self.last.take() else {
            self.ages = vec![now; METRICS];
            self.last = Some((gpu.clone(), now));
            return;
        };
        let mut index = 0;
        let mut ages = std::mem::take(&mut self.ages);
        let mut age = |fresh: bool| {
            let at = ages.get_mut(index);
            index += 1;
            at.map_or(Duration::ZERO, |at| {
                if fresh {
                    *at = now;
                }
                now.saturating_duration_since(*at)
            })
        };
        settle(&mut gpu.vram_total_bytes, &mut last.vram_total_bytes, &mut age);
        settle(&mut gpu.vram_used_bytes, &mut last.vram_used_bytes, &mut age);
        if !same_worker {
            last.vram_worker_bytes = Metric::default();
        }
        settle(&mut gpu.vram_worker_bytes, &mut last.vram_worker_bytes, &mut age);
        settle(&mut gpu.temperature_c, &mut last.temperature_c, &mut age);
        settle(&mut gpu.utilisation, &mut last.utilisation, &mut age);
        settle(&mut gpu.power_w, &mut last.power_w, &mut age);
        settle(&mut gpu.sm_clock_mhz, &mut last.sm_clock_mhz, &mut age);
        settle(&mut gpu.throttle, &mut last.throttle, &mut age);
        settle(&mut gpu.more.vram_free_bytes, &mut last.more.vram_free_bytes, &mut age);
        settle(&mut gpu.more.ecc, &mut last.more.ecc, &mut age);
        settle(&mut gpu.more.pcie, &mut last.more.pcie, &mut age);
        self.ages = ages;
        self.last = Some((last, now));
    }
}

/// Marks every changing metric as stale with this age, because nothing was measured.
pub fn freeze(gpu: &mut Gpu, age: Duration, why: &str) {
    fn old<T: Clone>(metric: &mut Metric<T>, age: Duration, why: &str) {
        if let Metric::Is(value) | Metric::Stale { value, .. } = &*metric {
            *metric = Metric::Stale { value: value.clone(), for_s: age.as_secs(), why: why.to_owned() };
        }
    }
    old(&mut gpu.vram_used_bytes, age, why);
    old(&mut gpu.vram_worker_bytes, age, why);
    old(&mut gpu.temperature_c, age, why);
    old(&mut gpu.utilisation, age, why);
    old(&mut gpu.power_w, age, why);
    old(&mut gpu.sm_clock_mhz, age, why);
    old(&mut gpu.throttle, age, why);
    let more = &mut gpu.more;
    old(&mut more.vram_free_bytes, age, why);
    old(&mut more.vram_others_bytes, age, why);
    old(&mut more.memory_temperature_c, age, why);
    old(&mut more.memory_utilisation, age, why);
    old(&mut more.memory_clock_mhz, age, why);
    old(&mut more.ecc, age, why);
    old(&mut more.pcie, age, why);
    old(&mut more.pcie_rx_bytes_s, age, why);
    old(&mut more.pcie_tx_bytes_s, age, why);
    old(&mut more.pcie_replays, age, why);
    // Events are reported once and cannot be repeated.
    more.xids = Metric::Not(why.to_owned());
    more.processes = Metric::Not(why.to_owned());
}

/// Number of metrics with stale values.
const METRICS: usize = 11;

fn settle<T: Clone>(now: &mut Metric<T>, last: &mut Metric<T>, age: &mut impl FnMut(bool) -> Duration) {
    let old = age(now.value().is_some());
    if now.value().is_some() {
        last.clone_from(now);
        return;
    }
    let Metric::Not(why) = &*now else { return };
    if let Some(value) = last.value().filter(|_| PASSING.contains(&why.as_str()) && old < KEPT) {
        *now = Metric::Stale { value: value.clone(), for_s: old.as_secs(), why: why.clone() };
    }
}
