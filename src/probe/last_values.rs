//! Remembers measured values, so that a metric with a transient failure is shown as stale, with its age,
//! and not as missing.

use super::nvml_error::TRANSIENT;
use crate::protocol::probe::{Gpu, Metric};
use std::time::{Duration, Instant};

/// Maximum age of a stale value.
const KEPT: Duration = Duration::from_secs(30);

/// The last reading of each metric.
#[derive(Debug, Default)]
pub struct LastValues {
    last: Option<(Gpu, Instant)>,
    ages: Vec<Instant>,
    worker: Option<u32>,
}

impl LastValues {
    /// Fills metrics that fail for a transient reason with their last values, marked stale.
    pub fn fill_gaps(&mut self, gpu: &mut Gpu, worker: Option<u32>, now: Instant) {
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
        fill_gap(&mut gpu.vram_total_bytes, &mut last.vram_total_bytes, &mut age);
        fill_gap(&mut gpu.vram_used_bytes, &mut last.vram_used_bytes, &mut age);
        if !same_worker {
            last.vram_worker_bytes = Metric::default();
        }
        fill_gap(&mut gpu.vram_worker_bytes, &mut last.vram_worker_bytes, &mut age);
        fill_gap(&mut gpu.temperature_c, &mut last.temperature_c, &mut age);
        fill_gap(&mut gpu.utilisation, &mut last.utilisation, &mut age);
        fill_gap(&mut gpu.power_w, &mut last.power_w, &mut age);
        fill_gap(&mut gpu.sm_clock_mhz, &mut last.sm_clock_mhz, &mut age);
        fill_gap(&mut gpu.throttle, &mut last.throttle, &mut age);
        fill_gap(&mut gpu.more.vram_free_bytes, &mut last.more.vram_free_bytes, &mut age);
        fill_gap(&mut gpu.more.ecc, &mut last.more.ecc, &mut age);
        fill_gap(&mut gpu.more.pcie, &mut last.more.pcie, &mut age);
        self.ages = ages;
        self.last = Some((last, now));
    }
}

/// Marks every changing metric as stale with this age, because nothing was measured.
pub fn mark_stale(gpu: &mut Gpu, age: Duration, why: &str) {
    fn age_metric<T: Clone>(metric: &mut Metric<T>, age: Duration, why: &str) {
        if let Metric::Is(value) | Metric::Stale { value, .. } = &*metric {
            *metric = Metric::Stale { value: value.clone(), for_s: age.as_secs(), why: why.to_owned() };
        }
    }
    age_metric(&mut gpu.vram_used_bytes, age, why);
    age_metric(&mut gpu.vram_worker_bytes, age, why);
    age_metric(&mut gpu.temperature_c, age, why);
    age_metric(&mut gpu.utilisation, age, why);
    age_metric(&mut gpu.power_w, age, why);
    age_metric(&mut gpu.sm_clock_mhz, age, why);
    age_metric(&mut gpu.throttle, age, why);
    let more = &mut gpu.more;
    age_metric(&mut more.vram_free_bytes, age, why);
    age_metric(&mut more.vram_others_bytes, age, why);
    age_metric(&mut more.memory_temperature_c, age, why);
    age_metric(&mut more.memory_utilisation, age, why);
    age_metric(&mut more.memory_clock_mhz, age, why);
    age_metric(&mut more.ecc, age, why);
    age_metric(&mut more.pcie, age, why);
    age_metric(&mut more.pcie_rx_bytes_s, age, why);
    age_metric(&mut more.pcie_tx_bytes_s, age, why);
    age_metric(&mut more.pcie_replays, age, why);
    // Events are reported once and cannot be repeated.
    more.xids = Metric::Not(why.to_owned());
    more.processes = Metric::Not(why.to_owned());
}

/// Number of metrics with stale values.
const METRICS: usize = 11;

fn fill_gap<T: Clone>(now: &mut Metric<T>, last: &mut Metric<T>, age: &mut impl FnMut(bool) -> Duration) {
    let old = age(now.value().is_some());
    if now.value().is_some() {
        last.clone_from(now);
        return;
    }
    let Metric::Not(why) = &*now else { return };
    if let Some(value) = last.value().filter(|_| TRANSIENT.contains(&why.as_str()) && old < KEPT) {
        *now = Metric::Stale { value: value.clone(), for_s: old.as_secs(), why: why.clone() };
    }
}
