//! One opened NVML library and one of its GPUs. Every metric is queried separately and may fail.

use super::explain::{Place, candidates, no_device, reason, sentence};
use super::stale::Memory;
use super::{more, xid_events::XidEvents};
use crate::protocol::probe::{Gpu, GpuMore, Metric, Throttle};
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor, TemperatureThreshold};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::{MemoryInfo, ProcessInfo};
use std::mem::{self, ManuallyDrop};
use std::path::Path;
use std::time::Instant;

/// An NVML session.
pub struct Session {
    /// Never dropped automatically: dropping calls `nvmlShutdown`, and panics if the library lacks it.
    nvml: ManuallyDrop<Nvml>,
    index: u32,
    /// Cached, so that a lost GPU still has its name.
    name: Option<String>,
    driver: Metric<String>,
    cuda: Metric<String>,
    events: XidEvents,
    memory: Memory,
}

impl Session {
    /// Opens the first library that loads.
    ///
    /// # Errors
    /// Returns an error when the GPU cannot be read: one sentence with the reason and the fix.
    pub fn open(named: Option<&Path>, index: u32) -> Result<Self, String> {
        let place = Place::look(named.is_some());
        let mut refusal = String::new();
        for library in candidates(named, place) {
            match Nvml::builder().lib_path(library.as_os_str()).init() {
                Ok(nvml) => {
                    let opened = Self::of(nvml, index, &library);
                    return opened.map_err(|count| no_device(index, count, &library, place));
                }
                Err(error @ NvmlError::LibloadingError(_)) => refusal = sentence(&error, &library, place),
                Err(error) => return Err(sentence(&error, &library, place)),
            }
        }
        Err(refusal)
    }

    /// Returns the session, or the number of GPUs if `index` is out of range.
    fn of(nvml: Nvml, index: u32, library: &Path) -> Result<Self, u32> {
        let driver = metric(nvml.sys_driver_version(), Metric::Is);
        let cuda = metric(nvml.sys_cuda_driver_version(), |version| {
            Metric::Is(format!("{}.{}", version / 1000, version % 1000 / 10))
        });
        let count = nvml.device_count();
        let events = XidEvents::default();
        let memory = Memory::default();
        let mut session = Self { nvml: ManuallyDrop::new(nvml), index, name: None, driver, cuda, events, memory };
        match count {
            Ok(count) if index >= count => {
                session.close();
                Err(count)
            }
            // A failing count is not fatal: the handle decides, metric by metric.
            _ => {
                session.events = XidEvents::watch(library, index);
                Ok(session)
            }
        }
    }

    /// Shuts NVML down, so that a later [`Session::open`] starts it afresh.
    pub fn close(self) {
        self.events.stop();
        let nvml = ManuallyDrop::into_inner(self.nvml);
        if nvml.lib().nvmlShutdown.is_err() {
            mem::forget(nvml);
        }
    }

    /// Queries every metric. A metric that worked before and now fails for a transient reason becomes stale.
    pub fn read(&mut self, worker: Option<u32>, now: Instant) -> Gpu {
        let mut gpu = self.ask(worker);
        self.memory.settle(&mut gpu, worker, now);
        gpu
    }

    fn ask(&mut self, worker: Option<u32>) -> Gpu {
        let device = match self.nvml.device_by_index(self.index) {
            Ok(device) => device,
            Err(error) => return self.unread(&reason(&error)),
        };
        if self.name.is_none() {
            self.name = device.name().ok();
        }
        let memory_info = device.memory_info();
        let vram_free_bytes = more::free(&memory_info);
        let (vram_total_bytes, vram_used_bytes) = memory(memory_info);
        let processes = device.running_compute_processes();
        let vram_worker_bytes = match (worker, &processes) {
            (None, _) => Metric::Not("no worker".to_owned()),
            (Some(pid), Ok(list)) => of_process(list, pid),
            (Some(_), Err(error)) => Metric::Not(reason(error)),
        };
        let more = GpuMore {
            cuda: self.cuda.clone(),
            vram_free_bytes,
            vram_others_bytes: more::others(&vram_used_bytes, &vram_worker_bytes),
            processes: more::processes(processes),
            xids: self.events.take(),
            ..more::ask(&device)
        };
        Gpu {
            index: self.index,
            name: self.name(),
            driver: self.driver.clone(),
            vram_total_bytes,
            vram_used_bytes,
            vram_worker_bytes,
            temperature_c: metric(device.temperature(TemperatureSensor::Gpu), |c| match c {
                // No GPU in use is that cold, so 0 means a broken sensor.
                0 => Metric::Not("the sensor says 0".to_owned()),
                c => Metric::Is(c.into()),
            }),
            slowdown_c: metric(device.temperature_threshold(TemperatureThreshold::Slowdown), threshold),
            utilisation: metric(device.utilization_rates(), |rates| share(rates.gpu)),
            power_w: metric(device.power_usage(), |mw| Metric::Is(watts(mw))),
            power_limit_w: metric(device.enforced_power_limit(), |mw| Metric::Is(watts(mw))),
            sm_clock_mhz: metric(device.clock_info(Clock::SM), Metric::Is),
            throttle: metric(device.current_throttle_reasons(), |reasons| Metric::Is(throttle(reasons))),
            more,
        }
    }

    fn name(&self) -> String {
        self.name.clone().unwrap_or_else(|| format!("GPU {}", self.index))
    }

    /// Returns a GPU with every metric unknown for one reason.
    fn unread(&self, why: &str) -> Gpu {
        fn not<T>(why: &str) -> Metric<T> {
            Metric::Not(why.to_owned())
        }
        Gpu {
            index: self.index,
            name: self.name(),
            driver: self.driver.clone(),
            vram_total_bytes: not(why),
            vram_used_bytes: not(why),
            vram_worker_bytes: not(why),
            temperature_c: not(why),
            slowdown_c: not(why),
            utilisation: not(why),
            power_w: not(why),
            power_limit_w: not(why),
            sm_clock_mhz: not(why),
            throttle: not(why),
            more: more::unread(why),
        }
    }
}

/// Reports whether at least one changing metric was read.
pub fn answers(gpu: &Gpu) -> bool {
    gpu.vram_used_bytes.get().is_some()
        || gpu.temperature_c.get().is_some()
        || gpu.utilisation.get().is_some()
        || gpu.power_w.get().is_some()
        || gpu.sm_clock_mhz.get().is_some()
}

pub(super) fn metric<T, U>(answer: Result<T, NvmlError>, convert: impl FnOnce(T) -> Metric<U>) -> Metric<U> {
    match answer {
        Ok(value) => convert(value),
        Err(error) => Metric::Not(reason(&error)),
    }
}

/// Returns total and used bytes. Uses only version 2 of the call: the wrapper exposes version 1, which
/// old drivers have, as an unsafe function only.
fn memory(answer: Result<MemoryInfo, NvmlError>) -> (Metric<u64>, Metric<u64>) {
    match answer {
        Ok(MemoryInfo { total: 0, .. }) => (not_plausible("no memory at all"), not_plausible("no memory at all")),
        Ok(info) if info.used > info.total => (Metric::Is(info.total), not_plausible("more than there is")),
        Ok(info) => (Metric::Is(info.total), Metric::Is(info.used)),
        Err(error) => (Metric::Not(reason(&error)), Metric::Not(reason(&error))),
    }
}

/// Returns the bytes of one process over all its entries. Under WSL, Windows manages the memory, so the
/// list is empty or lacks amounts.
fn of_process(list: &[ProcessInfo], pid: u32) -> Metric<u64> {
    let mut bytes = None;
    for process in list.iter().filter(|process| process.pid == pid) {
        match process.used_gpu_memory {
            UsedGpuMemory::Used(more) => bytes = Some(bytes.unwrap_or(0_u64).saturating_add(more)),
            UsedGpuMemory::Unavailable => return Metric::Not("not told per process".to_owned()),
        }
    }
    bytes.map_or_else(|| Metric::Not("worker not listed".to_owned()), Metric::Is)
}

/// Converts per cent to a share.
pub(super) fn share(percent: u32) -> Metric<f64> {
    if percent > 100 { not_plausible("more than 100 %") } else { Metric::Is(f64::from(percent) / 100.0) }
}

fn watts(milliwatts: u32) -> f64 {
    f64::from(milliwatts) / 1000.0
}

/// Converts a temperature limit; some drivers report zero degrees when there is none.
pub(super) fn threshold(celsius: u32) -> Metric<f64> {
    if celsius == 0 { Metric::Not("not reported".to_owned()) } else { Metric::Is(celsius.into()) }
}

fn throttle(reasons: ThrottleReasons) -> Throttle {
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

pub(super) fn not_plausible<T>(what: &str) -> Metric<T> {
    Metric::Not(format!("implausible: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(pid: u32, used_gpu_memory: UsedGpuMemory) -> ProcessInfo {
        ProcessInfo { pid, used_gpu_memory, gpu_instance_id: None, compute_instance_id: None }
    }

    #[test]
    fn a_process_has_the_sum_of_its_entries_or_a_reason() {
        let list = [
            entry(1, UsedGpuMemory::Used(5)),
            entry(2, UsedGpuMemory::Used(70)),
            entry(1, UsedGpuMemory::Used(6)),
            entry(3, UsedGpuMemory::Unavailable),
            entry(4, UsedGpuMemory::Used(u64::MAX - 1)),
            entry(4, UsedGpuMemory::Used(9)),
            entry(5, UsedGpuMemory::Used(0)),
        ];
        assert_eq!(of_process(&list, 1), Metric::Is(11));
        assert_eq!(of_process(&list, 2), Metric::Is(70));
        assert_eq!(of_process(&list, 3), Metric::Not("not told per process".into()));
        assert_eq!(of_process(&list, 4), Metric::Is(u64::MAX));
        assert_eq!(of_process(&list, 5), Metric::Is(0));
        assert_eq!(of_process(&list, 6), Metric::Not("worker not listed".into()));
        assert_eq!(of_process(&[], 1), Metric::Not("worker not listed".into()));
    }

    #[test]
    fn impossible_figures_are_not_shown() {
        let info = |total, used| Ok(MemoryInfo { free: 0, reserved: 0, total, used, version: 2 });
        assert_eq!(memory(info(10, 4)), (Metric::Is(10), Metric::Is(4)));
        assert_eq!(memory(info(10, 11)), (Metric::Is(10), Metric::Not("implausible: more than there is".into())));
        assert_eq!(memory(info(0, 0)).0.get(), None);
        assert_eq!(share(0), Metric::Is(0.0));
        assert_eq!(share(37), Metric::Is(0.37));
        assert_eq!(share(100), Metric::Is(1.0));
        assert_eq!(share(101).get(), None);
        assert_eq!(threshold(0), Metric::Not("not reported".into()));
        assert_eq!(threshold(83), Metric::Is(83.0));
        assert!((watts(43_250) - 43.25).abs() < 1e-9);
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
            assert_eq!(throttle(ThrottleReasons::from_bits_truncate(bits)), expected, "{bits}");
        }
    }
}
