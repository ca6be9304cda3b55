//! GPU metrics beyond those always shown in the cockpit.

use super::nvml_convert::{implausible, percent_to_share, temperature_limit, to_metric};
use super::nvml_error::metric_reason;
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
pub fn query_metrics(device: &Device<'_>) -> GpuMore {
    GpuMore {
        pci: to_metric(device.pci_info(), |pci| Metric::Is(pci.bus_id)),
        memory_temperature_c: read_field(device, MEMORY_TEMPERATURE, |celsius| temperature_limit(celsius as u32)),
        max_c: to_metric(device.temperature_threshold(TemperatureThreshold::GpuMax), temperature_limit),
        shutdown_c: to_metric(device.temperature_threshold(TemperatureThreshold::Shutdown), temperature_limit),
        memory_utilisation: to_metric(device.utilization_rates(), |rates| percent_to_share(rates.memory)),
        memory_clock_mhz: to_metric(device.clock_info(Clock::Memory), Metric::Is),
        sm_clock_max_mhz: to_metric(device.max_clock_info(Clock::SM), Metric::Is),
        ecc: to_metric(read_ecc(device), Metric::Is),
        pcie: to_metric(read_pcie(device), Metric::Is),
        pcie_rx_bytes_s: to_metric(device.pcie_throughput(PcieUtilCounter::Receive), |kb| {
            Metric::Is(u64::from(kb) * 1000)
        }),
        pcie_tx_bytes_s: to_metric(device.pcie_throughput(PcieUtilCounter::Send), |kb| {
            Metric::Is(u64::from(kb) * 1000)
        }),
        pcie_replays: to_metric(device.pcie_replay_counter(), Metric::Is),
        recovery: read_field(device, RECOVERY, recovery_action),
        ..GpuMore::default()
    }
}

/// Marks every metric as unknown for the same reason.
pub fn all_unknown(why: &str) -> GpuMore {
    fn unknown<T>(why: &str) -> Metric<T> {
        Metric::Not(why.to_owned())
    }
    GpuMore {
        pci: unknown(why),
        cuda: unknown(why),
        vram_free_bytes: unknown(why),
        vram_others_bytes: unknown(why),
        memory_temperature_c: unknown(why),
        max_c: unknown(why),
        shutdown_c: unknown(why),
        memory_utilisation: unknown(why),
        memory_clock_mhz: unknown(why),
        sm_clock_max_mhz: unknown(why),
        ecc: unknown(why),
        pcie: unknown(why),
        pcie_rx_bytes_s: unknown(why),
        pcie_tx_bytes_s: unknown(why),
        pcie_replays: unknown(why),
        processes: unknown(why),
        recovery: unknown(why),
        xids: unknown(why),
    }
}

/// Returns the free bytes.
pub fn free_memory(answer: &Result<MemoryInfo, NvmlError>) -> Metric<u64> {
    match answer {
        Ok(info) if info.free > info.total => implausible("free exceeds total"),
        Ok(info) => Metric::Is(info.free),
        Err(error) => Metric::Not(metric_reason(error)),
    }
}

/// Returns the bytes used by everything except the worker; known only if both figures are.
pub fn others_memory(used: &Metric<u64>, worker: &Metric<u64>) -> Metric<u64> {
    match (used.get(), worker.get()) {
        (Some(used), Some(worker)) => Metric::Is(used.saturating_sub(worker)),
        (None, _) => used.clone(),
        (_, None) => worker.clone(),
    }
}

/// Returns the processes on the GPU.
pub fn list_processes(answer: Result<Vec<ProcessInfo>, NvmlError>) -> Metric<Vec<GpuProcess>> {
    let one = |process: ProcessInfo| GpuProcess {
        pid: process.pid,
        vram_bytes: match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Metric::Is(bytes),
            UsedGpuMemory::Unavailable => Metric::Not("not reported per process".to_owned()),
        },
    };
    to_metric(answer, |list| Metric::Is(list.into_iter().map(one).collect()))
}

fn read_ecc(device: &Device<'_>) -> Result<Ecc, NvmlError> {
    if !device.is_ecc_enabled()?.currently_enabled {
        return Err(NvmlError::NotSupported);
    }
    let count = |kind| device.total_ecc_errors(kind, EccCounter::Volatile);
    Ok(Ecc { corrected: count(MemoryError::Corrected)?, uncorrected: count(MemoryError::Uncorrected)? })
}

fn read_pcie(device: &Device<'_>) -> Result<Pcie, NvmlError> {
    Ok(Pcie {
        generation: device.current_pcie_link_gen()?,
        max_generation: device.max_pcie_link_gen()?,
        width: device.current_pcie_link_width()?,
        max_width: device.max_pcie_link_width()?,
    })
}

/// Returns the value of an NVML field, if it has one.
fn read_field<T>(device: &Device<'_>, number: u32, convert: impl FnOnce(u64) -> Metric<T>) -> Metric<T> {
    let answer = device.field_values_for(&[FieldId(number)]).and_then(|mut values| match values.pop() {
        Some(sample) => sample?.value,
        None => Err(NvmlError::NoData),
    });
    to_metric(answer, |value| match value {
        SampleValue::U32(value) => convert(value.into()),
        SampleValue::U64(value) => convert(value),
        SampleValue::I64(value) => u64::try_from(value).map_or_else(|_| implausible("negative"), convert),
        SampleValue::F64(_) => implausible("a fraction"),
    })
}

fn recovery_action(action: u64) -> Metric<String> {
    let words = match action {
        0 => "none",
        1 => "reset the GPU",
        2 => "restart the machine",
        3 => "drain peer-to-peer traffic",
        4 => "drain and reset the GPU",
        _ => return Metric::Not(format!("unknown action {action}")),
    };
    Metric::Is(words.to_owned())
}
