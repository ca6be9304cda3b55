//! Readings of the machine: memory, processors, the watched worker, the disk. The parsers are pure
//! functions of the text of /proc; each figure is read separately and may be missing.

use crate::protocol::probe::{Host, HostMore, Metric, RamProcess};
use crate::triage::cgroup;
use crate::triage::kernel::KernelLog;
use std::fs;
use std::path::PathBuf;

/// CPU time since boot, in ticks summed over all cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuTicks {
    /// Busy ticks.
    pub busy: u64,
    /// Busy plus idle ticks.
    pub total: u64,
}

/// Reads the machine; remembers the CPU time of the previous reading.
pub struct HostReader {
    run_dir: PathBuf,
    before: Option<CpuTicks>,
    kernel: KernelLog,
}

impl HostReader {
    /// Creates a reader for the file system of `run_dir`.
    #[must_use]
    pub fn new(run_dir: PathBuf) -> Self {
        Self { run_dir, before: None, kernel: KernelLog::open() }
    }

    /// Takes one reading; the memory of the worker is read elsewhere.
    pub fn read(&mut self, ram_worker_bytes: Metric<u64>, ram_processes: Metric<Vec<RamProcess>>) -> Host {
        let memory = fs::read_to_string("/proc/meminfo").ok();
        let (ram_total_bytes, ram_used_bytes) = match memory.as_deref().and_then(parse_ram) {
            Some((total, used)) => (Metric::Is(total), Metric::Is(used)),
            None => (unknown("not in /proc/meminfo"), unknown("not in /proc/meminfo")),
        };
        Host {
            ram_total_bytes,
            ram_used_bytes,
            ram_worker_bytes,
            cpu: self.read_cpu(),
            disk_free_bytes: self.read_disk(|disk| disk.f_bavail),
            more: HostMore { ram_processes, ..self.read_more(memory.as_deref()) },
        }
    }

    fn read_more(&mut self, memory: Option<&str>) -> HostMore {
        let (swap_total_bytes, swap_used_bytes) = match memory.and_then(parse_swap) {
            Some((total, used)) => (Metric::Is(total), Metric::Is(used)),
            None => (unknown("not in /proc/meminfo"), unknown("not in /proc/meminfo")),
        };
        let load = fs::read_to_string("/proc/loadavg").ok();
        let (lines, room) = (self.kernel.poll(), cgroup::room());
        let limit = |of: fn(cgroup::Room) -> u64| room.map_or_else(|| unknown("no limit"), |room| Metric::Is(of(room)));
        HostMore {
            ram_limit_bytes: limit(|room| room.limit),
            ram_limit_free_bytes: limit(|room| room.free),
            ram_processes: Metric::default(),
            swap_total_bytes,
            swap_used_bytes,
            load_1m: load
                .as_deref()
                .and_then(parse_load_1m)
                .map_or_else(|| unknown("not in /proc/loadavg"), Metric::Is),
            disk_total_bytes: self.read_disk(|disk| disk.f_blocks),
            oom_kills: cgroup::oom_kills().map_or_else(|| unknown("no cgroup counter"), Metric::Is),
            kernel: match self.kernel.error() {
                Some(error) => Metric::Not(error.to_string()),
                None => Metric::Is(lines),
            },
        }
    }

    fn read_cpu(&mut self) -> Metric<f64> {
        let now = fs::read_to_string("/proc/stat").ok().as_deref().and_then(parse_cpu_ticks);
        let before = std::mem::replace(&mut self.before, now);
        match (before, now) {
            (_, None) => unknown("not in /proc/stat"),
            (None, Some(_)) => unknown("first reading"),
            (Some(before), Some(now)) => cpu_share(before, now).map_or_else(|| unknown("no time passed"), Metric::Is),
        }
    }

    fn read_disk(&self, blocks: impl Fn(&rustix::fs::StatVfs) -> u64) -> Metric<u64> {
        match rustix::fs::statvfs(&self.run_dir) {
            Ok(disk) => Metric::Is(blocks(&disk).saturating_mul(disk.f_frsize)),
            Err(error) => Metric::Not(error.to_string()),
        }
    }
}

/// Returns the host memory of these processes; memory that several share counts once. None if all have ended.
#[must_use]
pub fn resident_bytes(processes: &[u32]) -> Option<u64> {
    resident_of_each(processes).into_iter().map(|(_, bytes)| bytes).reduce(u64::saturating_add)
}

/// Returns the host memory of each of these processes that lives.
#[must_use]
pub fn resident_of_each(processes: &[u32]) -> Vec<(u32, u64)> {
    let share_of = |pid: u32| {
        let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).ok();
        let alone = || parse_kibibytes(&read("status")?, "VmRSS");
        if processes.len() == 1 {
            return alone();
        }
        read("smaps_rollup").and_then(|text| parse_kibibytes(&text, "Pss")).or_else(alone)
    };
    processes.iter().filter_map(|pid| Some((*pid, share_of(*pid)?))).collect()
}

/// Returns total and used bytes from /proc/meminfo, where used means not available.
#[must_use]
pub fn parse_ram(meminfo: &str) -> Option<(u64, u64)> {
    let total = parse_kibibytes(meminfo, "MemTotal")?;
    let available = parse_kibibytes(meminfo, "MemAvailable")?;
    Some((total, total.checked_sub(available)?))
}

/// Returns total and used bytes of swap; 0 on a machine without swap.
#[must_use]
pub fn parse_swap(meminfo: &str) -> Option<(u64, u64)> {
    let total = parse_kibibytes(meminfo, "SwapTotal")?;
    Some((total, total.checked_sub(parse_kibibytes(meminfo, "SwapFree")?)?))
}

/// Returns the load average of the last minute: the first figure of /proc/loadavg.
#[must_use]
pub fn parse_load_1m(loadavg: &str) -> Option<f64> {
    loadavg.split_whitespace().next()?.parse().ok().filter(|load: &f64| load.is_finite() && *load >= 0.0)
}

/// Returns the bytes of a line `key:   123 kB`.
#[must_use]
pub fn parse_kibibytes(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    value.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
}

/// Parses the line `cpu` of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal. User and
/// nice already contain the guest columns after them.
pub fn parse_cpu_ticks(stat: &str) -> Option<CpuTicks> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
    let idle = ticks.get(3)?.checked_add(ticks.get(4).copied().unwrap_or(0))?;
    let total = ticks.iter().try_fold(0_u64, |sum, more| sum.checked_add(*more))?;
    Some(CpuTicks { busy: total - idle, total })
}

/// Returns the busy share between two readings, 0 to 1. The kernel sometimes lets iowait run backwards.
#[must_use]
pub fn cpu_share(before: CpuTicks, now: CpuTicks) -> Option<f64> {
    let total = now.total.checked_sub(before.total).filter(|total| *total > 0)?;
    let busy = now.busy.saturating_sub(before.busy);
    Some((busy as f64 / total as f64).min(1.0))
}

fn unknown<T>(why: &str) -> Metric<T> {
    Metric::Not(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ram_is_a_number_or_unknown() {
        let cases = [
            ("MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:    4096 kB\n", Some((16384 * 1024, 12288 * 1024))),
            ("MemAvailable: 0 kB\nMemTotal: 8 kB\n", Some((8192, 8192))),
            ("MemTotal: 8 kB\n", None),
            ("MemTotal: 8 kB\nMemAvailable: 9 kB\n", None),
            ("MemTotal: eight kB\nMemAvailable: 1 kB\n", None),
            ("MemTotal: -8 kB\nMemAvailable: 1 kB\n", None),
            ("MemTotal: 8 MB\nMemAvailable: 1 kB\n", None),
            ("MemTotal: 18446744073709551615 kB\nMemAvailable: 1 kB\n", None),
            ("MemTotalX: 8 kB\nMemAvailable: 1 kB\n", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_ram(text), expected, "{text:?}");
        }
    }

    #[test]
    fn swap_and_load_are_read_or_unknown() {
        assert_eq!(parse_swap("SwapTotal: 8 kB\nSwapFree: 2 kB\n"), Some((8192, 6144)));
        assert_eq!(parse_swap("SwapTotal: 0 kB\nSwapFree: 0 kB\n"), Some((0, 0)));
        assert_eq!(parse_swap("SwapTotal: 1 kB\nSwapFree: 2 kB\n"), None);
        assert_eq!(parse_load_1m("0.52 0.58 0.59 1/389 12345\n"), Some(0.52));
        assert_eq!(
            [parse_load_1m(""), parse_load_1m("x 1 2"), parse_load_1m("nan 1"), parse_load_1m("-1 0")],
            [None; 4]
        );
    }

    #[test]
    fn the_resident_size_is_found_among_others() {
        let status = "Name:\tVmRSS: 5 kB\nVmHWM:\t  900 kB\nVmRSS:\t  800 kB\nThreads:\t3\n";
        assert_eq!(parse_kibibytes(status, "VmRSS"), Some(800 * 1024));
        assert_eq!(parse_kibibytes("State:\tZ (zombie)\n", "VmRSS"), None);
    }

    #[test]
    fn cpu_ticks_are_read_or_unknown() {
        let ticks = |busy, total| Some(CpuTicks { busy, total });
        let cases = [
            ("cpu  10 1 9 70 10 0 0 0 500 500\ncpu0 1 1 1 1\n", ticks(20, 100)),
            ("intr 5\ncpu 1 2 3 4\n", ticks(6, 10)),
            ("cpu 1 2 3\n", None),
            ("cpu 1 2 x 4 5\n", None),
            ("cpu0 1 2 3 4 5\n", None),
            ("cpu 18446744073709551615 2 3 4 5\n", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_cpu_ticks(text), expected, "{text:?}");
        }
    }

    #[test]
    fn cpu_share_is_of_the_time_between() {
        let at = |busy, total| CpuTicks { busy, total };
        assert_eq!(cpu_share(at(20, 100), at(70, 200)), Some(0.5));
        assert_eq!(cpu_share(at(20, 100), at(20, 200)), Some(0.0));
        assert_eq!(cpu_share(at(20, 100), at(20, 100)), None);
        assert_eq!(cpu_share(at(20, 100), at(10, 90)), None);
        assert_eq!(cpu_share(at(20, 100), at(10, 200)), Some(0.0));
        assert_eq!(cpu_share(at(0, 100), at(150, 200)), Some(1.0));
    }

    #[test]
    fn this_machine_can_be_read() {
        let mut reader = HostReader::new(std::env::temp_dir());
        let own = resident_bytes(&[std::process::id()]).unwrap();
        let host = reader.read(Metric::Is(own), Metric::default());
        let total = host.ram_total_bytes.get().unwrap();
        assert!(total > host.ram_used_bytes.get().unwrap());
        assert!(own > 100 * 1024 && own < total, "{own}");
        assert!(host.disk_free_bytes.get().is_some());
        assert_eq!(host.cpu, Metric::Not("first reading".into()));
        assert_eq!(resident_bytes(&[u32::MAX]), None);
    }

    #[test]
    fn a_missing_run_directory_hides_nothing_else() {
        let host = HostReader::new("/nonexistent/run".into()).read(unknown("no worker"), Metric::default());
        assert_eq!(host.disk_free_bytes.get(), None);
        assert_eq!(host.ram_worker_bytes, Metric::Not("no worker".into()));
        assert!(host.ram_total_bytes.get().is_some());
    }

    proptest! {
        #[test]
        fn no_text_brings_a_parser_down(text in ".{0,200}", head in "(cpu |MemTotal:|MemAvailable:)") {
            let text = format!("{head}{text}");
            let _ = (parse_ram(&text), parse_kibibytes(&text, "VmRSS"));
            if let Some(ticks) = parse_cpu_ticks(&text) {
                prop_assert!(ticks.busy <= ticks.total);
            }
        }

        #[test]
        fn a_share_stays_between_zero_and_one(a: u64, b: u64, c: u64, d: u64) {
            if let Some(share) = cpu_share(CpuTicks { busy: a, total: b }, CpuTicks { busy: c, total: d }) {
                prop_assert!((0.0..=1.0).contains(&share));
            }
        }
    }
}
