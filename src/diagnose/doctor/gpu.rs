//! Checks the GPU, its driver, the kernel compiler, and that the GPU computes.

use super::check::{Check, run_program};
use crate::faults::{self, xid};
use crate::format::{bytes, counted};
use crate::protocol::cause::KernelKind;
use crate::protocol::class::FailureClass;
use crate::protocol::gpu_error::GpuError;
use crate::protocol::probe::{Gpu, Metric, Reading};
use crate::triage::kernel::{KernelLog, is_same_gpu};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time limit of the self-test; the first computation compiles its kernels.
const SELF_TEST: Duration = Duration::from_mins(3);
/// How much later a self-test that does not end itself is killed.
const SELF_TEST_GRACE: Duration = Duration::from_secs(20);
/// Memory in use by other processes above which to warn.
const OTHERS_BYTES: u64 = 2 << 30;

/// Runs all GPU checks.
pub fn checks(reading: Result<&Reading, &String>, index: u32) -> Vec<Check> {
    let gpu = match reading.map(|reading| &reading.gpu) {
        Ok(Ok(gpu)) => gpu,
        Ok(Err(error)) => return vec![no_reading(error), computation("auto")],
        Err(why) => return vec![no_reading(&why.clone().into()), computation("auto")],
    };
    let mut checks = vec![card(gpu), driver(gpu), health(gpu), history(gpu), heat(gpu), other_users(gpu)];
    checks.extend(toolkit());
    checks.push(computation(&format!("cuda:{index}")));
    checks
}

/// Checks a machine without a readable GPU: a machine that has none is healthy. The computation then shows the device
/// that trains.
fn no_reading(error: &GpuError) -> Check {
    // A library that exists and fails means a broken driver, even if the machine shows no GPU.
    if error.problem.is_absence() && !is_nvidia_here() {
        return Check::ok("GPU", format!("none to watch ({error})"));
    }
    let fix = if error.fix.is_empty() { "check `nvidia-smi`" } else { &error.fix };
    Check::fail("GPU", error.problem.to_string(), fix)
}

/// Reports whether the machine has an NVIDIA GPU, with or without a driver.
fn is_nvidia_here() -> bool {
    let cards = std::fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    let read = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    // Class 03 is a display controller, 0302 a 3D controller; 10de is NVIDIA.
    let mut cards = cards.filter(|card| {
        read(card.path().join("vendor")).trim() == "0x10de" && read(card.path().join("class")).starts_with("0x03")
    });
    cards.next().is_some() || Path::new("/dev/dxg").exists()
}

fn card(gpu: &Gpu) -> Check {
    let total = gpu.vram_total_bytes.get().map_or_else(|| "memory unknown".to_owned(), bytes);
    match gpu.vram_used_bytes.why() {
        Some(why) if why.contains("lost") || why.contains("reset") => Check::fail(
            "GPU",
            format!("{}: {why}", gpu.name),
            "restart the machine (under WSL2, `wsl --shutdown` in Windows first)",
        ),
        _ => Check::ok("GPU", format!("{}, {total}", gpu.name)),
    }
}

fn driver(gpu: &Gpu) -> Check {
    let unknown = || "unknown".to_owned();
    let version = gpu.driver.value().cloned().unwrap_or_else(unknown);
    let cuda = gpu.more.cuda.value().cloned().unwrap_or_else(unknown);
    let loaded = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let text = format!("driver {version}, CUDA {cuda}");
    if !loaded.is_empty() && version != "unknown" && !loaded.contains(&version) {
        return Check::fail("driver", format!("{text}; the kernel has loaded another version"), "reboot");
    }
    match cuda.split('.').next().and_then(|major| major.parse::<u32>().ok()) {
        Some(major) if major < 12 => Check::fail("driver", text, "update the NVIDIA driver: CUDA 12 is needed"),
        _ => Check::ok("driver", text),
    }
}

fn health(gpu: &Gpu) -> Check {
    if let Some(action) = gpu.more.recovery.value().filter(|action| *action != "none") {
        return Check::fail("health", format!("the driver asks to {action}"), action.clone());
    }
    match &gpu.more.ecc {
        Metric::Is(ecc) if ecc.uncorrected > 0 => Check::fail(
            "health",
            format!("{} since the driver was loaded", counted(ecc.uncorrected, "uncorrected ECC error")),
            "drain and reset the GPU; if they return, replace it",
        ),
        Metric::Is(ecc) => Check::ok("health", format!("ECC: {}", counted(ecc.corrected, "corrected error"))),
        other => Check::ok("health", format!("ECC: {}", other.why().unwrap_or("unknown"))),
    }
}

/// Checks for Xid errors since the start of the kernel's log.
fn history(gpu: &Gpu) -> Check {
    let mut log = KernelLog::open_from_start();
    if let Some(error) = log.error() {
        return Check::warn("Xid history", "the kernel's log cannot be read", error.to_string());
    }
    let own = gpu.more.pci.value();
    let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
    for line in log.poll() {
        if let KernelKind::Xid { number, pci } = line.kind
            && own.is_none_or(|own| is_same_gpu(own, &pci))
        {
            *counts.entry(number).or_default() += 1;
        }
    }
    let source = log.path().display().to_string();
    if counts.is_empty() {
        return Check::ok("Xid history", format!("no error of this GPU in {source}"));
    }
    let words = counts.iter().map(|(number, count)| format!("{count} × Xid {number} ({})", xid::meaning(*number)));
    let text = words.collect::<Vec<_>>().join(", ");
    let gravest = counts.keys().find(|number| xid::respond(**number).ends_run());
    let number = gravest.or(counts.keys().next()).copied().unwrap_or(0);
    Check::warn("Xid history", text, faults::advice(FailureClass::Xid, Some(number)))
}

fn heat(gpu: &Gpu) -> Check {
    let (Some(now), limit) = (gpu.temperature_c.get(), gpu.slowdown_c.get()) else {
        return Check::ok("heat", format!("temperature: {}", gpu.temperature_c.why().unwrap_or("unknown")));
    };
    let held = gpu.throttle.value().is_some_and(|throttle| throttle.thermal);
    let text = format!("{now:.0} °C{}", limit.map_or_else(String::new, |limit| format!(", slows down at {limit:.0}")));
    if held || limit.is_some_and(|limit| now > limit - 5.0) || now >= 85.0 {
        return Check::warn("heat", text, "clean the fans, improve airflow, or lower the power limit");
    }
    Check::ok("heat", text)
}

/// Checks how much of the GPU is in use, and by which processes.
pub fn other_users(gpu: &Gpu) -> Check {
    let (Some(used), Some(total)) = (gpu.vram_used_bytes.get(), gpu.vram_total_bytes.get()) else {
        return Check::ok("others", format!("memory in use: {}", gpu.vram_used_bytes.why().unwrap_or("unknown")));
    };
    let text = format!("{} of {} in use", bytes(used), bytes(total));
    let pids: Vec<String> =
        gpu.more.processes.value().into_iter().flatten().map(|process| process.pid.to_string()).collect();
    if used > OTHERS_BYTES {
        let who = if pids.is_empty() { String::new() } else { format!(" by processes {}", pids.join(", ")) };
        return Check::warn(
            "others",
            format!("{text}{who}"),
            "end other GPU processes, or plan with the remaining memory",
        );
    }
    Check::ok("others", text)
}

/// Checks the kernel compiler: NVRTC and the CUDA headers.
fn toolkit() -> Vec<Check> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let homes: Vec<PathBuf> = ["CUDA_PATH", "CUDA_HOME"].iter().filter_map(|name| set(name)).collect();
    let mut checks = Vec::new();
    if let Some(wrong) = homes.iter().find(|home| !home.is_dir()) {
        let text = format!("CUDA_PATH or CUDA_HOME names {}, which is not a folder", wrong.display());
        checks.push(Check::warn("CUDA folder", text, "correct the variable or unset it"));
    }
    let mut roots = homes;
    roots.extend(["/usr/local/cuda", "/usr", "/opt/cuda"].map(PathBuf::from));
    let header = roots.iter().map(|root| root.join("include/cuda_runtime.h")).find(|path| path.is_file());
    checks.push(match header {
        Some(path) if !path.with_file_name("crt").join("mma.h").is_file() => Check::warn(
            "CUDA headers",
            format!(
                "{} has no crt/mma.h beside it, which kernels for compute capability 7.0 and above include",
                path.display()
            ),
            "install the toolkit's package cuda-crt (from PyPI: nvidia-cuda-nvcc of the same version)",
        ),
        Some(path) => Check::ok("CUDA headers", path.display().to_string()),
        None => Check::fail(
            "CUDA headers",
            "include/cuda_runtime.h was not found",
            "install the CUDA toolkit and set CUDA_PATH to its folder",
        ),
    });
    checks.push(match nvrtc(&roots) {
        Some(path) => Check::ok("NVRTC", path),
        None => Check::fail(
            "NVRTC",
            "libnvrtc.so, which compiles the kernels, was not found",
            "install the CUDA toolkit or its package cuda-nvrtc (under WSL2, inside WSL)",
        ),
    });
    checks
}

fn nvrtc(roots: &[PathBuf]) -> Option<String> {
    let listed = run_program(Command::new("ldconfig").arg("-p"), Duration::from_secs(5)).map(|(_, text)| text);
    let by_cache = listed.iter().flat_map(|text| text.lines()).find(|line| line.contains("libnvrtc.so"));
    if let Some((_, path)) = by_cache.and_then(|line| line.split_once("=> ")) {
        return Some(path.to_owned());
    }
    let named = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let named = named.split(':').filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let below = roots.iter().flat_map(|root| {
        ["lib64", "lib", "lib/x86_64-linux-gnu", "targets/x86_64-linux/lib"].map(|folder| root.join(folder))
    });
    named.chain(below).find_map(|folder| {
        let files = std::fs::read_dir(folder).ok()?.flatten();
        let found = files
            .map(|file| file.path())
            .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libnvrtc.so")))?;
        Some(found.display().to_string())
    })
}

/// Runs an allocation and a matrix product on the device, in a child process that may hang or crash.
fn computation(device: &str) -> Check {
    let mut command = Command::new("/proc/self/exe");
    let limit = SELF_TEST.as_secs();
    command.args(["self-test", "--device", device, "--limit", &limit.to_string()]);
    match run_program(&mut command, SELF_TEST + SELF_TEST_GRACE) {
        Some((Some(0), words)) => Check::ok("computation", words),
        Some((Some(13), why)) => Check::ok("computation", format!("not tested: {why}")),
        Some((code, why)) => Check::fail(
            "computation",
            if why.is_empty() { format!("{device}: the test ended with {code:?}") } else { why },
            "train with --device cpu until this works; `downshift triage` explains messages",
        ),
        None => Check::fail(
            "computation",
            format!("{device} did not finish a matrix product in {limit} s"),
            "restart the machine (under WSL2, `wsl --shutdown` in Windows)",
        ),
    }
}
