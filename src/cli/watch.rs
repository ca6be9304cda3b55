//! `watch`: monitors the GPU and the machine without a run. Here too the probe is a separate process, so
//! that a hanging driver is reported and nothing hangs with it.

mod ecc;
mod kernel;

use super::{Failure, Format, Outcome, line};
use crate::format::bytes;
use crate::protocol::line as protocol_line;
use crate::protocol::probe::{Gpu, Host, Metric, Reading, Throttle};
use clap::Args;
use ecc::EccTrend;
use kernel::{Counts, KernelSeen};
use serde::Serialize;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

/// Time limit for the probe to open the driver.
const FIRST: Duration = Duration::from_secs(20);
/// Time beyond its interval after which a silent probe counts as stuck.
const SILENCE: Duration = Duration::from_secs(3);
const LISTED: usize = 5;

/// Arguments of `watch`.
#[derive(Debug, Args)]
pub struct WatchArgs {
    /// Take one reading and exit
    #[arg(long)]
    once: bool,
    /// Seconds between two readings
    #[arg(long, default_value_t = 30.0, value_name = "SECONDS")]
    interval: f64,
    /// The GPU's NVML index
    #[arg(long, default_value_t = 0)]
    gpu: u32,
    /// Output format; json prints one object per line
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// The JSON output.
#[derive(Debug, Serialize)]
struct Seen<'a> {
    time: String,
    #[serde(flatten)]
    reading: &'a Reading,
    processes: Vec<Process>,
    kernel_log: &'a Counts,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Process {
    pid: u32,
    name: String,
    ram_bytes: u64,
}

pub fn watch(args: &WatchArgs, runs: &Path) -> Outcome {
    if !(0.1..=86_400.0).contains(&args.interval) {
        return Err(Failure::new(2, "--interval takes seconds from 0.1 to 86400"));
    }
    let interval = Duration::from_secs_f64(args.interval);
    let place = if runs.is_dir() { runs.to_owned() } else { PathBuf::from(".") };
    let (mut silent, mut kernel, mut ecc) = (0, KernelSeen::open(), EccTrend::default());
    loop {
        let (mut probe, readings) = start(args.gpu, args.once, &place, interval)?;
        let mut patience = FIRST;
        loop {
            match readings.recv_timeout(patience) {
                Ok(reading) if args.once && reading.is_opening() => {}
                Ok(reading) => {
                    (patience, silent) = (interval + SILENCE, 0);
                    kernel.look(reading.gpu.as_ref().ok().and_then(|gpu| gpu.more.pci.value()).map(String::as_str));
                    reading.gpu.iter().for_each(|gpu| ecc.look(gpu));
                    show(&reading, &kernel, &ecc, args)?;
                    if args.once {
                        end(&mut probe);
                        // A GPU that was selected by number and does not exist is an error.
                        return Ok(u8::from(args.gpu > 0 && reading.gpu.is_err()));
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    line!("no answer for {} s: the NVIDIA driver hangs", patience.as_secs());
                    silent += 1;
                    break;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    line!("the probe has ended: the NVIDIA library may have crashed it");
                    silent += 1;
                    break;
                }
            }
        }
        end(&mut probe);
        if args.once || silent >= LISTED {
            return Err(Failure::new(1, "the probe gives no readings; `downshift doctor` may say why"));
        }
    }
}

/// Takes one complete reading.
///
/// # Errors
/// Returns an error when the probe delivers no reading.
pub fn read_once(place: &Path, gpu: u32) -> Result<Reading, String> {
    let (mut probe, readings) =
        start(gpu, true, place, Duration::ZERO).map_err(|error| format!("the probe cannot be started: {error}"))?;
    let reading = loop {
        match readings.recv_timeout(FIRST) {
            Ok(reading) if reading.is_opening() => {}
            other => break other,
        }
    };
    end(&mut probe);
    reading.map_err(|why| match why {
        RecvTimeoutError::Timeout => format!("the NVIDIA driver does not answer for {} s", FIRST.as_secs()),
        RecvTimeoutError::Disconnected => "the NVIDIA library crashed the probe".to_owned(),
    })
}

/// Calls `look` with readings at this interval while it returns true; returns none if there is no probe.
pub fn each_reading(place: &Path, gpu: u32, interval: Duration, mut look: impl FnMut(Reading) -> bool) -> Option<()> {
    let (mut probe, readings) = start(gpu, false, place, interval).ok()?;
    while readings.recv_timeout(FIRST).is_ok_and(&mut look) {}
    end(&mut probe);
    Some(())
}

fn start(gpu: u32, once: bool, place: &Path, interval: Duration) -> std::io::Result<(Child, Receiver<Reading>)> {
    let mut child = Command::new("/proc/self/exe")
        .arg0("downshift-probe")
        .arg("probe")
        .arg("--run-dir")
        .arg(place)
        .args(["--gpu", &gpu.to_string(), "--interval-ms"])
        // CPU load is a difference: `--once` needs two readings for one line.
        .arg(if once { "200".to_owned() } else { interval.as_millis().to_string() })
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (tell, readings) = mpsc::channel();
    let skip = usize::from(once);
    if let Some(stdout) = child.stdout.take() {
        thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            for reading in lines.filter_map(|line| protocol_line::decode::<Reading>(&line)).skip(skip) {
                if tell.send(reading).is_err() {
                    break;
                }
            }
        });
    }
    Ok((child, readings))
}

fn end(probe: &mut Child) {
    let _ = probe.kill();
    let _ = probe.wait();
}

fn show(reading: &Reading, kernel: &KernelSeen, ecc: &EccTrend, args: &WatchArgs) -> Result<(), Failure> {
    let processes = largest(Path::new("/proc"));
    if args.format == Format::Json {
        let time = jiff::Timestamp::now().to_string();
        line!("{}", serde_json::to_string(&Seen { time, reading, processes, kernel_log: &kernel.counts })?);
        return Ok(());
    }
    if args.format == Format::Tmux {
        line!("{}", tmux(reading));
        return Ok(());
    }
    let now = jiff::Zoned::now().strftime("%Y-%m-%d %H:%M:%S").to_string();
    line!("{now}");
    for row in text(reading, kernel, ecc, &processes) {
        line!("  {row}");
    }
    Ok(())
}

/// Formats one short styled line for tmux: the GPU, its memory and temperature, and the machine's memory.
fn tmux(reading: &Reading) -> String {
    let size = |value: &u64| bytes(*value);
    let mut parts = match &reading.gpu {
        Ok(gpu) => {
            let hot = gpu.temperature_c.get().zip(gpu.slowdown_c.get()).is_some_and(|(now, limit)| now > limit - 5.0);
            let colour = if hot { "red" } else { "green" };
            vec![
                format!("#[fg={colour}]●#[default] {}", words(&gpu.temperature_c, |value| format!("{value:.0} °C"))),
                format!("VRAM {}/{}", words(&gpu.vram_used_bytes, size), words(&gpu.vram_total_bytes, size)),
            ]
        }
        Err(_) => vec!["#[fg=yellow]●#[default] no GPU".to_owned()],
    };
    let host = &reading.host;
    parts.push(format!("RAM {}/{}", words(&host.ram_used_bytes, size), words(&host.ram_total_bytes, size)));
    parts.join(" ")
}

/// Returns the largest processes by resident memory.
fn largest(proc: &Path) -> Vec<Process> {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let mut found: Vec<Process> = entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let status = fs::read_to_string(entry.path().join("status")).ok()?;
            let ram_bytes = crate::probe::host::kibibytes(&status, "VmRSS")?;
            let mut name = status.lines().find_map(|line| line.strip_prefix("Name:"))?.trim().to_owned();
            if name == "exe" {
                // All downshift processes start via /proc/self/exe, so the command line is more informative.
                let words = fs::read(entry.path().join("cmdline")).ok()?;
                name = String::from_utf8_lossy(words.split(|byte| *byte == 0).next()?).into_owned();
            }
            Some(Process { pid, name, ram_bytes })
        })
        .collect();
    found.sort_by_key(|process| std::cmp::Reverse(process.ram_bytes));
    found.truncate(LISTED);
    found
}

/// Formats one row per item; unknown metrics are grouped at the end.
fn text(reading: &Reading, kernel: &KernelSeen, ecc: &EccTrend, processes: &[Process]) -> Vec<String> {
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

/// Formats a metric: its value, its last value with its age, or a dash that is explained later.
fn words<T>(metric: &Metric<T>, show: impl Fn(&T) -> String) -> String {
    match metric {
        Metric::Is(value) => show(value),
        Metric::Stale { value, for_s, .. } => format!("{} ({for_s} s ago)", show(value)),
        Metric::Not(_) => "–".to_owned(),
    }
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
            words(&gpu.driver, Clone::clone),
            words(&more.cuda, Clone::clone),
            words(&more.pci, Clone::clone)
        ),
        format!(
            "VRAM         {} of {} in use, {} free",
            words(&gpu.vram_used_bytes, size),
            words(&gpu.vram_total_bytes, size),
            words(&more.vram_free_bytes, size)
        ),
        format!(
            "temperature  {} (slows down at {}, turns off at {}), memory {}",
            words(&gpu.temperature_c, degrees),
            words(&gpu.slowdown_c, degrees),
            words(&more.shutdown_c, degrees),
            words(&more.memory_temperature_c, degrees)
        ),
        format!(
            "utilisation  {}, memory {}",
            words(&gpu.utilisation, percent),
            words(&more.memory_utilisation, percent)
        ),
        format!(
            "power        {} of {}",
            words(&gpu.power_w, |watts| format!("{watts:.0} W")),
            words(&gpu.power_limit_w, |watts| format!("{watts:.0} W"))
        ),
    ];
    rows.extend(inner_rows(gpu, ecc));
    if let Some(list) = more.processes.value().filter(|list| !list.is_empty()) {
        let each = list.iter().map(|process| format!("{} {}", process.pid, words(&process.vram_bytes, size)));
        rows.push(format!("on the GPU   {}", each.collect::<Vec<_>>().join(", ")));
    }
    rows.extend(unknown(gpu));
    rows
}

/// Formats clocks, the link, and the GPU's health.
fn inner_rows(gpu: &Gpu, ecc: &EccTrend) -> Vec<String> {
    let more = &gpu.more;
    vec![
        format!(
            "clocks       {} of {} MHz, memory {} MHz{}",
            words(&gpu.sm_clock_mhz, u32::to_string),
            words(&more.sm_clock_max_mhz, u32::to_string),
            words(&more.memory_clock_mhz, u32::to_string),
            gpu.throttle.get().map_or("", throttled)
        ),
        format!(
            "PCIe         {}, {} in, {} out, {} replays",
            words(&more.pcie, |link| format!(
                "gen {} of {}, x{} of x{}",
                link.generation, link.max_generation, link.width, link.max_width
            )),
            words(&more.pcie_rx_bytes_s, |rate| format!("{}/s", bytes(*rate))),
            words(&more.pcie_tx_bytes_s, |rate| format!("{}/s", bytes(*rate))),
            words(&more.pcie_replays, u32::to_string)
        ),
        format!(
            "health       ECC {}, asked for: {}, Xid {}",
            words(&more.ecc, |now| ecc.words(now)),
            words(&more.recovery, Clone::clone),
            words(&more.xids, |list| if list.is_empty() { "none since this began".to_owned() } else { counted(list) })
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
fn unknown(gpu: &Gpu) -> Vec<String> {
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
        Throttle { thermal: true, .. } => ", held back by heat",
        Throttle { power: true, .. } => ", held back by the power limit",
        Throttle { hardware: true, .. } => ", held back by the hardware",
        _ => "",
    }
}

fn host_rows(host: &Host) -> Vec<String> {
    let size = |value: &u64| bytes(*value);
    let more = &host.more;
    vec![
        format!(
            "RAM          {} of {}, swap {} of {}",
            words(&host.ram_used_bytes, size),
            words(&host.ram_total_bytes, size),
            words(&more.swap_used_bytes, size),
            words(&more.swap_total_bytes, size)
        ),
        format!(
            "CPU          {}, load {}",
            words(&host.cpu, |share| format!("{:.0} %", share * 100.0)),
            words(&more.load_1m, |load| format!("{load:.2}"))
        ),
        format!("disk         {} of {} free", words(&host.disk_free_bytes, size), words(&more.disk_total_bytes, size)),
        format!("killed here  {} by the cgroup for want of memory", words(&more.oom_kills, u64::to_string)),
    ]
}
