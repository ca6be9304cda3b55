//! One opened NVML library and one of its GPUs. Every metric is queried separately and may fail.

use super::last_values::LastValues;
use super::nvml_convert::{
    implausible, milliwatts_to_watts, percent_to_share, temperature_limit, throttle_causes, to_metric,
};
use super::nvml_error::{Environment, library_candidates, metric_reason, no_device, unusable};
use super::worker_processes::Watched;
use super::{nvml_more, xid_events::XidEvents};
use crate::protocol::claim::Card;
use crate::protocol::gpu_error::{GpuError, GpuProblem};
use crate::protocol::probe::{Gpu, GpuMore, Metric};
use nvml_wrapper::Nvml;
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
    last_values: LastValues,
}

impl Session {
    /// Opens the first library that loads.
    ///
    /// # Errors
    /// Returns an error when the GPU cannot be read.
    pub fn open(named: Option<&Path>, index: u32) -> Result<Self, GpuError> {
        let environment = Environment::detect(named.is_some());
        let mut missing = GpuError::new(GpuProblem::LibraryMissing, "install the NVIDIA driver");
        for library in library_candidates(named, environment) {
            match Nvml::builder().lib_path(library.as_os_str()).init() {
                Ok(nvml) => {
                    let opened = Self::start(nvml, index, &library);
                    return opened.map_err(|count| no_device(index, count, &library, environment));
                }
                Err(error @ NvmlError::LibloadingError(_)) => missing = unusable(&error, &library, environment),
                Err(error) => return Err(unusable(&error, &library, environment)),
            }
        }
        Err(missing)
    }

    /// Starts a session; an error is the number of GPUs if `index` is out of range.
    fn start(nvml: Nvml, index: u32, library: &Path) -> Result<Self, u32> {
        let driver = to_metric(nvml.sys_driver_version(), Metric::Is);
        let cuda = to_metric(nvml.sys_cuda_driver_version(), |version| {
            Metric::Is(format!("{}.{}", version / 1000, version % 1000 / 10))
        });
        let count = nvml.device_count();
        let events = XidEvents::default();
        let last_values = LastValues::default();
        let mut session = Self { nvml: ManuallyDrop::new(nvml), index, name: None, driver, cuda, events, last_values };
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
    pub fn read(&mut self, watched: &Watched, now: Instant) -> Gpu {
        let mut gpu = self.query_metrics(watched);
        self.last_values.fill_gaps(&mut gpu, watched.worker, now);
        gpu
    }

    fn query_metrics(&mut self, watched: &Watched) -> Gpu {
        let device = match self.nvml.device_by_index(self.index) {
            Ok(device) => device,
            Err(error) => return self.all_unknown(&metric_reason(&error)),
        };
        if self.name.is_none() {
            self.name = device.name().ok();
        }
        let memory_info = device.memory_info();
        let vram_free_bytes = nvml_more::free_memory(&memory_info);
        let (vram_total_bytes, vram_used_bytes) = total_and_used(memory_info);
        let processes = device.running_compute_processes();
        let vram_worker_bytes = match (watched.worker, &processes) {
            (None, _) => Metric::Not("no worker".to_owned()),
            (Some(_), Ok(list)) => memory_of(list, &watched.processes),
            (Some(_), Err(error)) => Metric::Not(metric_reason(error)),
        };
        let more = GpuMore {
            cuda: self.cuda.clone(),
            vram_free_bytes,
            vram_others_bytes: nvml_more::others_memory(&vram_used_bytes, &vram_worker_bytes),
            processes: nvml_more::list_processes(processes),
            xids: self.events.drain(),
            ..nvml_more::query_metrics(&device)
        };
        Gpu {
            index: self.index,
            name: self.name(),
            driver: self.driver.clone(),
            vram_total_bytes,
            vram_used_bytes,
            vram_worker_bytes,
            temperature_c: to_metric(device.temperature(TemperatureSensor::Gpu), |c| match c {
                // No GPU in use is that cold, so 0 means a broken sensor.
                0 => Metric::Not("sensor reads 0".to_owned()),
                c => Metric::Is(c.into()),
            }),
            slowdown_c: to_metric(device.temperature_threshold(TemperatureThreshold::Slowdown), temperature_limit),
            utilisation: to_metric(device.utilization_rates(), |rates| percent_to_share(rates.gpu)),
            power_w: to_metric(device.power_usage(), |mw| Metric::Is(milliwatts_to_watts(mw))),
            power_limit_w: to_metric(device.enforced_power_limit(), |mw| Metric::Is(milliwatts_to_watts(mw))),
            sm_clock_mhz: to_metric(device.clock_info(Clock::SM), Metric::Is),
            throttle: to_metric(device.current_throttle_reasons(), |reasons| Metric::Is(throttle_causes(reasons))),
            more,
        }
    }

    fn name(&self) -> String {
        self.name.clone().unwrap_or_else(|| format!("GPU {}", self.index))
    }

    /// Returns a GPU with every metric unknown for one reason.
    fn all_unknown(&self, why: &str) -> Gpu {
        fn unknown<T>(why: &str) -> Metric<T> {
            Metric::Not(why.to_owned())
        }
        Gpu {
            index: self.index,
            name: self.name(),
            driver: self.driver.clone(),
            vram_total_bytes: unknown(why),
            vram_used_bytes: unknown(why),
            vram_worker_bytes: unknown(why),
            temperature_c: unknown(why),
            slowdown_c: unknown(why),
            utilisation: unknown(why),
            power_w: unknown(why),
            power_limit_w: unknown(why),
            sm_clock_mhz: unknown(why),
            throttle: unknown(why),
            more: nvml_more::all_unknown(why),
        }
    }
}

/// Lists the cards of the machine; none if NVML cannot be used.
pub fn list_cards(named: Option<&Path>) -> Vec<Card> {
    let libraries = library_candidates(named, Environment::detect(named.is_some()));
    let opened = libraries.iter().find_map(|library| Nvml::builder().lib_path(library.as_os_str()).init().ok());
    let Some(nvml) = opened.map(ManuallyDrop::new) else { return Vec::new() };
    let uuid = |index| nvml.device_by_index(index).and_then(|device| device.uuid()).ok();
    (0..nvml.device_count().unwrap_or(0)).map(|index| Card { index: Some(index), uuid: uuid(index) }).collect()
}

/// Reports whether at least one changing metric was read.
pub fn is_answering(gpu: &Gpu) -> bool {
    gpu.vram_used_bytes.get().is_some()
        || gpu.temperature_c.get().is_some()
        || gpu.utilisation.get().is_some()
        || gpu.power_w.get().is_some()
        || gpu.sm_clock_mhz.get().is_some()
}

/// Returns total and used bytes. Uses only version 2 of the call: the wrapper exposes version 1, which
/// old drivers have, as an unsafe function only.
fn total_and_used(answer: Result<MemoryInfo, NvmlError>) -> (Metric<u64>, Metric<u64>) {
    match answer {
        Ok(MemoryInfo { total: 0, .. }) => (implausible("total is 0"), implausible("total is 0")),
        Ok(info) if info.used > info.total => (Metric::Is(info.total), implausible("used exceeds total")),
        Ok(info) => (Metric::Is(info.total), Metric::Is(info.used)),
        Err(error) => (Metric::Not(metric_reason(&error)), Metric::Not(metric_reason(&error))),
    }
}

/// Returns the bytes of these processes over all their entries. Under WSL, Windows manages the memory, so the
/// list is empty or lacks amounts.
fn memory_of(list: &[ProcessInfo], processes: &[u32]) -> Metric<u64> {
    let mut bytes = None;
    for process in list.iter().filter(|process| processes.contains(&process.pid)) {
        match process.used_gpu_memory {
            UsedGpuMemory::Used(more) => bytes = Some(bytes.unwrap_or(0_u64).saturating_add(more)),
            UsedGpuMemory::Unavailable => return Metric::Not("not reported per process".to_owned()),
        }
    }
    bytes.map_or_else(|| Metric::Not("worker not listed".to_owned()), Metric::Is)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(pid: u32, used_gpu_memory: UsedGpuMemory) -> ProcessInfo {
        ProcessInfo { pid, used_gpu_memory, gpu_instance_id: None, compute_instance_id: None }
    }

    #[test]
    fn a_worker_has_the_sum_of_the_entries_of_its_processes_or_a_reason() {
        let list = [
            entry(1, UsedGpuMemory::Used(5)),
            entry(2, UsedGpuMemory::Used(70)),
            entry(1, UsedGpuMemory::Used(6)),
            entry(3, UsedGpuMemory::Unavailable),
            entry(4, UsedGpuMemory::Used(u64::MAX - 1)),
            entry(4, UsedGpuMemory::Used(9)),
            entry(5, UsedGpuMemory::Used(0)),
        ];
        assert_eq!(memory_of(&list, &[1]), Metric::Is(11));
        assert_eq!(memory_of(&list, &[2]), Metric::Is(70));
        assert_eq!(memory_of(&list, &[3]), Metric::Not("not reported per process".into()));
        assert_eq!(memory_of(&list, &[4]), Metric::Is(u64::MAX));
        assert_eq!(memory_of(&list, &[5]), Metric::Is(0));
        assert_eq!(memory_of(&list, &[6]), Metric::Not("worker not listed".into()));
        assert_eq!(memory_of(&list, &[1, 2, 6]), Metric::Is(81), "a command and its children");
        assert_eq!(memory_of(&[], &[1]), Metric::Not("worker not listed".into()));
    }

    #[test]
    fn impossible_figures_are_not_shown() {
        let info = |total, used| Ok(MemoryInfo { free: 0, reserved: 0, total, used, version: 2 });
        assert_eq!(total_and_used(info(10, 4)), (Metric::Is(10), Metric::Is(4)));
        assert_eq!(
            total_and_used(info(10, 11)),
            (Metric::Is(10), Metric::Not("implausible: used exceeds total".into()))
        );
        assert_eq!(total_and_used(info(0, 0)).0.get(), None);
    }
}
