//! GPU metrics beyond those always shown in the cockpit.

use super::nvml::{metric, not_plausible, share, threshold};
use crate::protocol::probe::{Ecc, GpuMore, GpuProcess, Metric, Pcie};
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, PcieUtilCounter, TemperatureThreshold};
use nvml_wrapper::enums::device::{SampleValue, UsedGpuMemory};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::{MemoryInfo, ProcessInfo};
use nvml_wrapper::structs::device::FieldId;

/// NVML field id of the memory temperature.
const MEMORY_TEMPERATURE: u32 = 82;
/// NVML field id of the recovery action the driver asks for.
const RECOVERY: u32 = 230;

/// Queries every metric that needs only the device; the rest stays `not read`.
pub fn ask(device: &Device<'_>) -> GpuMore {
    GpuMore {
        pci: metric(device.pci_info(), |pci| Metric::Is(pci.bus_id)),
        memory_temperature_c: field(device, MEMORY_TEMPERATURE, |celsius| threshold(celsius as u32)),
        max_c: metric(device.temperature_threshold(TemperatureThreshold::GpuMax), threshold),
        shutdown_c: metric(device.temperature_threshold(TemperatureThreshold::Shutdown), threshold),
        memory_utilisation: metric(device.utilization_rates(), |rates| share(rates.memory)),
        memory_clock_mhz: metric(device.clock_info(Clock::Memory), Metric::Is),
        sm_clock_max_mhz: metric(device.max_clock_info(Clock::SM), Metric::Is),
        ecc: metric(ecc(device), Metric::Is),
        pcie: metric(pcie(device), Metric::Is),
        pcie_rx_bytes_s: metric(device.pcie_throughput(PcieUtilCounter::Receive), |kb| {
            Metric::Is(u64::from(kb) * 1000)
        }),
        pcie_tx_bytes_s: metric(device.pcie_throughput(PcieUtilCounter::Send), |kb| Metric::Is(u64::from(kb) * 1000)),
        pcie_replays: metric(device.pcie_replay_counter(), Metric::Is),
        recovery: field(device, RECOVERY, recovery),
        ..GpuMore::default()
    }
}

/// Marks every metric as unknown for the same reason.
pub fn unread(why: &str) -> GpuMore {
    fn not<T>(why: &str) -> Metric<T> {
        Metric::Not(why.to_owned())
    }
    GpuMore {
        pci: not(why),
        cuda: not(why),
        vram_free_bytes: not(why),
        vram_others_bytes: not(why),
        memory_temperature_c: not(why),
        max_c: not(why),
        shutdown_c: not(why),
        memory_utilisation: not(why),
        memory_clock_mhz: not(why),
        sm_clock_max_mhz: not(why),
        ecc: not(why),
        pcie: not(why),
        pcie_rx_bytes_s: not(why),
        pcie_tx_bytes_s: not(why),
        pcie_replays: not(why),
        processes: not(why),
        recovery: not(why),
        xids: not(why),
    }
}

/// Returns the free bytes.
pub fn free(answer: &Result<MemoryInfo, NvmlError>) -> Metric<u64> {
    match answer {
        Ok(info) if info.free > info.total => not_plausible("more than there is"),
        Ok(info) => Metric::Is(info.free),
        Err(error) => Metric::Not(super::explain::reason(error)),
    }
}

/// Returns the bytes used by everything except the worker; known only if both figures are.
pub fn others(used: &Metric<u64>, worker: &Metric<u64>) -> Metric<u64> {
    match (used.get(), worker.get()) {
        (Some(used), Some(worker)) => Metric::Is(used.saturating_sub(worker)),
        (None, _) => used.clone(),
        (_, None) => worker.clone(),
    }
}

/// Returns the processes on the GPU.
pub fn processes(answer: Result<Vec<ProcessInfo>, NvmlError>) -> Metric<Vec<GpuProcess>> {
    let one = |process: ProcessInfo| GpuProcess {
        pid: process.pid,
        vram_bytes: match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Metric::Is(bytes),
            UsedGpuMemory::Unavailable => Metric::Not("not told per process".to_owned()),
        },
    };
    metric(answer, |list| Metric::Is(list.into_iter().map(one).collect()))
}

fn ecc(device: &Device<'_>) -> Result<Ecc, NvmlError> {
    if !device.is_ecc_enabled()?.currently_enabled {
        return Err(NvmlError::NotSupported);
    }
    let count = |kind| device.total_ecc_errors(kind, EccCounter::Volatile);
    Ok(Ecc { corrected: count(MemoryError::Corrected)?, uncorrected: count(MemoryError::Uncorrected)? })
}

fn pcie(device: &Device<'_>) -> Result<Pcie, NvmlError> {
    Ok(Pcie {
        generation: device.current_pcie_link_gen()?,
        max_generation: device.max_pcie_link_gen()?,
        width: device.current_pcie_link_width()?,
        max_width: device.max_pcie_link_width()?,
    })
}

/// Returns the value of an NVML field, if it has one.
fn field<T>(device: &Device<'_>, number: u32, convert: impl FnOnce(u64) -> Metric<T>) -> Metric<T> {
    let answer = device.field_values_for(&[FieldId(number)]).and_then(|mut values| match values.pop() {
        Some(sample) => sample?.value,
        None => Err(NvmlError::NoData),
    });
    metric(answer, |value| match value {
        SampleValue::U32(value) => convert(value.into()),
        SampleValue::U64(value) => convert(value),
        SampleValue::I64(value) => u64::try_from(value).map_or_else(|_| not_plausible("negative"), convert),
        SampleValue::F64(_) => not_plausible("a fraction"),
    })
}

fn recovery(action: u64) -> Metric<String> {
    let words = match action {
        0 => "none",
        1 => "reset the GPU",
        2 => "restart the machine",
        3 => "drain peer-to-peer traffic",
        4 => "drain and reset the GPU",
        _ => return Metric::Not(format!("action {action}")),
    };
    Metric::Is(words.to_owned())
}
