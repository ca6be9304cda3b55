//! One row per item: the GPU, the host, the kernel's log, the largest processes.

use super::{EccTrend, KernelSeen, Process, metric_text};
use crate::format::bytes;
use crate::protocol::probe::{Gpu, Host, Reading, Throttle};

/// Formats one row per item; unknown metrics are grouped at the end.
pub fn text_rows(reading: &Reading, kernel: &KernelSeen, ecc: &EccTrend, processes: &[Process]) -> Vec<String> {
    let mut rows = Vec::new();
    match &reading.gpu {
        Ok(gpu) => rows.extend(gpu_rows(gpu, ecc)),
        Err(why) => rows.push(format!("GPU          {why}")),
    }
    rows.extend(host_rows(&reading.host));
    rows.extend(kernel.rows());
    let list = processes.iter().map(|process| format!("{} {} {}", process.name, process.pid, bytes(process.ram_bytes)));
    rows.push(format!("processes    {}", list.collect::<Vec<_>>().join(", ")));
    rows
}

fn gpu_rows(gpu: &Gpu, ecc: &EccTrend) -> Vec<String> {
    let more = &gpu.more;
    let size = |value: &u64| bytes(*value);
    let degrees = |value: &f64| format!("{value:.0} °C");
    let percent = |value: &f64| format!("{:.0} %", value * 100.0);
    let mut rows = vec![
        format!(
            "GPU {}        {}, driver {}, CUDA {}, at {}",
            gpu.index,
            gpu.name,
            metric_text(&gpu.driver, Clone::clone),
            metric_text(&more.cuda, Clone::clone),
            metric_text(&more.pci, Clone::clone)
        ),
        format!(
            "VRAM         {} of {} in use, {} free",
            metric_text(&gpu.vram_used_bytes, size),
            metric_text(&gpu.vram_total_bytes, size),
            metric_text(&more.vram_free_bytes, size)
        ),
        format!(
            "temperature  {} (slows down at {}, turns off at {}), memory {}",
            metric_text(&gpu.temperature_c, degrees),
            metric_text(&gpu.slowdown_c, degrees),
            metric_text(&more.shutdown_c, degrees),
            metric_text(&more.memory_temperature_c, degrees)
        ),
        format!(
            "utilisation  {}, memory {}",
            metric_text(&gpu.utilisation, percent),
            metric_text(&more.memory_utilisation, percent)
        ),
        format!(
            "power        {} of {}",
            metric_text(&gpu.power_w, |watts| format!("{watts:.0} W")),
            metric_text(&gpu.power_limit_w, |watts| format!("{watts:.0} W"))
        ),
    ];
    rows.extend(inner_rows(gpu, ecc));
    if let Some(list) = more.processes.value().filter(|list| !list.is_empty()) {
        let each = list.iter().map(|process| format!("{} {}", process.pid, metric_text(&process.vram_bytes, size)));
        rows.push(format!("on the GPU   {}", each.collect::<Vec<_>>().join(", ")));
    }
    rows.extend(unknown_metrics(gpu));
    rows
}

/// Formats clocks, the link, and the GPU's health.
fn inner_rows(gpu: &Gpu, ecc: &EccTrend) -> Vec<String> {
    let more = &gpu.more;
    vec![
        format!(
            "clocks       {} of {} MHz, memory {} MHz{}",
            metric_text(&gpu.sm_clock_mhz, u32::to_string),
            metric_text(&more.sm_clock_max_mhz, u32::to_string),
            metric_text(&more.memory_clock_mhz, u32::to_string),
            gpu.throttle.get().map_or("", throttled)
        ),
        format!(
            "PCIe         {}, {} in, {} out, {} replays",
            metric_text(&more.pcie, |link| format!(
                "gen {} of {}, x{} of x{}",
                link.generation, link.max_generation, link.width, link.max_width
            )),
            metric_text(&more.pcie_rx_bytes_s, |rate| format!("{}/s", bytes(*rate))),
            metric_text(&more.pcie_tx_bytes_s, |rate| format!("{}/s", bytes(*rate))),
            metric_text(&more.pcie_replays, u32::to_string)
        ),
        format!(
            "health       ECC {}, recovery action {}, Xid {}",
            metric_text(&more.ecc, |now| ecc.describe(now)),
            metric_text(&more.recovery, Clone::clone),
            metric_text(&more.xids, |list| if list.is_empty() { "none so far".to_owned() } else { counted(list) })
        ),
    ]
}

/// Formats numbers with their counts: `64 × 79`.
fn counted(list: &[u32]) -> String {
    let mut counts: std::collections::BTreeMap<u32, usize> = std::collections::BTreeMap::new();
    for number in list {
        *counts.entry(*number).or_default() += 1;
    }
    let each = counts.iter().map(|(number, count)| match count {
        1 => number.to_string(),
        count => format!("{count} × {number}"),
    });
    each.collect::<Vec<_>>().join(", ")
}

/// Lists why metrics are unknown, one row per reason.
fn unknown_metrics(gpu: &Gpu) -> Vec<String> {
    let more = &gpu.more;
    let all: [(&str, Option<&str>); 16] = [
        ("VRAM", gpu.vram_used_bytes.why()),
        ("temperature", gpu.temperature_c.why()),
        ("slowdown limit", gpu.slowdown_c.why()),
        ("memory temperature", more.memory_temperature_c.why()),
        ("utilisation", gpu.utilisation.why()),
        ("power", gpu.power_w.why()),
        ("power limit", gpu.power_limit_w.why()),
        ("clocks", gpu.sm_clock_mhz.why()),
        ("throttle reasons", gpu.throttle.why()),
        ("PCIe", more.pcie.why()),
        ("PCIe traffic", more.pcie_rx_bytes_s.why()),
        ("PCIe replays", more.pcie_replays.why()),
        ("ECC", more.ecc.why()),
        ("processes", more.processes.why()),
        ("recovery action", more.recovery.why()),
        ("Xid events", more.xids.why()),
    ];
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for (name, why) in all {
        let Some(why) = why else { continue };
        match reasons.iter_mut().find(|(known, _)| *known == why) {
            Some((_, names)) => names.push(name),
            None => reasons.push((why, vec![name])),
        }
    }
    reasons.into_iter().map(|(why, names)| format!("unknown      {}: {why}", names.join(", "))).collect()
}

fn throttled(throttle: Throttle) -> &'static str {
    match throttle {
        Throttle { thermal: true, .. } => ", throttled by heat",
        Throttle { power: true, .. } => ", throttled by the power limit",
        Throttle { hardware: true, .. } => ", throttled by the hardware",
        _ => "",
    }
}

fn host_rows(host: &Host) -> Vec<String> {
    let size = |value: &u64| bytes(*value);
    let more = &host.more;
    vec![
        format!(
            "RAM          {} of {}, swap {} of {}",
            metric_text(&host.ram_used_bytes, size),
            metric_text(&host.ram_total_bytes, size),
            metric_text(&more.swap_used_bytes, size),
            metric_text(&more.swap_total_bytes, size)
        ),
        format!(
            "CPU          {}, load {}",
            metric_text(&host.cpu, |share| format!("{:.0} %", share * 100.0)),
            metric_text(&more.load_1m, |load| format!("{load:.2}"))
        ),
        format!(
            "disk         {} of {} free",
            metric_text(&host.disk_free_bytes, size),
            metric_text(&more.disk_total_bytes, size)
        ),
        format!("OOM kills    {} in this cgroup", metric_text(&more.oom_kills, u64::to_string)),
    ]
}
