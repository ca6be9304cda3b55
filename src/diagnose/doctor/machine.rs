//! Checks memory, disk, limits, and the user's settings.

use super::check::Check;
use crate::format::bytes;
use crate::notify;
use crate::protocol::probe::{Metric, Reading};
use crate::triage::catalogue::Catalogue;
use crate::untrusted::text;
use std::fs;
use std::path::{Path, PathBuf};

const LITTLE_RAM: u64 = 2 << 30;
const LITTLE_DISK: u64 = 5 << 30;
const NO_DISK: u64 = 512 << 20;
/// Minimum limit of open files; a loader with many files needs more than the old default of 1024.
const FILES: u64 = 1024;

/// Returns the folder, or its nearest existing parent.
pub fn nearest_folder(runs: &Path) -> PathBuf {
    let absolute = std::path::absolute(runs).unwrap_or_else(|_| PathBuf::from("."));
    absolute.ancestors().find(|folder| folder.is_dir()).map_or_else(|| PathBuf::from("."), Path::to_owned)
}

/// Runs all machine checks.
pub fn checks(reading: Option<&Reading>, place: &Path) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Some(reading) = reading {
        let host = &reading.host;
        let used = host.ram_used_bytes.get();
        checks.push(check_ram(host.ram_total_bytes.get(), used, container_limit()));
        if let Metric::Is(kills @ 1..) = host.more.oom_kills {
            checks.push(Check::warn(
                "OOM killer",
                match kills {
                    1 => "the kernel killed a process of this cgroup to free memory".to_owned(),
                    _ => format!("the kernel killed {kills} processes of this cgroup to free memory"),
                },
                "use fewer loader threads and less prefetch, or raise the memory limit of the cgroup",
            ));
        }
        checks.push(check_disk(host.disk_free_bytes.get(), place));
    }
    checks.push(files());
    checks
}

fn check_ram(total: Option<u64>, used: Option<u64>, limit: Option<u64>) -> Check {
    let (Some(total), Some(used)) = (total, used) else { return Check::warn("RAM", "unknown", "mount /proc") };
    let free = total.saturating_sub(used).min(limit.unwrap_or(u64::MAX));
    let within = limit
        .filter(|limit| *limit < total)
        .map_or_else(String::new, |limit| format!("; this container may use {}", bytes(limit)));
    let text = format!("{} free of {}{within}", bytes(free), bytes(total));
    if free < LITTLE_RAM {
        return Check::warn("RAM", text, "end other programs, or use fewer loader threads and less prefetch");
    }
    Check::ok("RAM", text)
}

/// Returns the cgroup's memory limit.
fn container_limit() -> Option<u64> {
    let files = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    files.iter().find_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok())
}

fn check_disk(free: Option<u64>, place: &Path) -> Check {
    let shown = text::path(place);
    let probe = place.join(format!(".downshift-{}", std::process::id()));
    if let Err(error) = fs::write(&probe, b"x").and_then(|()| fs::remove_file(&probe)) {
        return Check::fail("disk", format!("{shown} is not writable: {error}"), "choose another with --runs-dir");
    }
    match free {
        Some(free) if free < NO_DISK => Check::fail(
            "disk",
            format!("{} free in {shown}", bytes(free)),
            "delete old checkpoints, or choose another --runs-dir",
        ),
        Some(free) if free < LITTLE_DISK => Check::warn(
            "disk",
            format!("{} free in {shown}", bytes(free)),
            "delete old checkpoints, or choose another --runs-dir",
        ),
        Some(free) => Check::ok("disk", format!("{} free in {shown}", bytes(free))),
        None => Check::warn("disk", format!("free space in {shown} is unknown"), "see `df`"),
    }
}

fn files() -> Check {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    match limit {
        Some(limit) if limit < FILES => {
            Check::warn("open files", format!("at most {limit}"), "raise the limit: `ulimit -n 65536`")
        }
        Some(limit) => Check::ok("open files", format!("at most {limit}")),
        None => Check::ok("open files", "no limit"),
    }
}

/// Checks the user's configuration files.
pub fn settings() -> Vec<Check> {
    let catalogue = match Catalogue::load() {
        Ok(catalogue) => Check::ok("catalogue", format!("{} causes", catalogue.entries().len())),
        Err(wrong) => {
            Check::fail("catalogue", wrong.to_string(), "fix the file; runs use the shipped catalogue until then")
        }
    };
    let told = match notify::read_settings(None) {
        Ok(settings) => {
            let channels = notify::build_channels(&settings);
            let names = channels.iter().map(|channel| match channel.missing_requirement() {
                Some(why) => format!("no {} ({why})", channel.name()),
                None => channel.name().to_owned(),
            });
            let text = names.collect::<Vec<_>>().join(", ");
            if channels.is_empty() {
                let fix = "no notifications are sent; turn one on, or add a webhook under `notify:`";
                Check::warn("notifications", "bell and desktop are off, and no webhook is set", fix)
            } else if channels.iter().any(|channel| channel.missing_requirement().is_none()) {
                Check::ok("notifications", format!("{text}; `downshift notify test` tries them"))
            } else {
                Check::warn("notifications", text, "no notifications are sent; add a webhook under `notify:`")
            }
        }
        Err(wrong) => Check::fail("notifications", wrong.to_string(), "fix the file"),
    };
    vec![catalogue, told]
}

#[cfg(test)]
mod tests {
    use super::{check_ram, nearest_folder};
    use crate::diagnose::doctor::check::Severity;
    use std::path::Path;

    #[test]
    fn memory_is_judged_by_what_may_be_used() {
        let gib = |count: u64| Some(count << 30);
        assert_eq!(check_ram(gib(64), gib(10), None).verdict, Severity::Ok);
        assert_eq!(check_ram(gib(64), gib(63), None).verdict, Severity::Warn);
        assert_eq!(check_ram(gib(64), gib(10), gib(1)).verdict, Severity::Warn, "a small container");
        assert_eq!(check_ram(gib(64), gib(10), Some(u64::MAX)).verdict, Severity::Ok);
        assert_eq!(check_ram(None, gib(1), None).verdict, Severity::Warn);
    }

    #[test]
    fn a_folder_that_is_not_there_yet_is_judged_by_the_one_above() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(nearest_folder(&dir.path().join("a/b")), dir.path());
        assert!(nearest_folder(Path::new("runs")).is_dir());
    }
}
