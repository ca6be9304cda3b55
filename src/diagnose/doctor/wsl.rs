//! WSL2 checks, and the file system of the runs.

use super::check::Check;
use crate::format::bytes;
use crate::protocol::probe::Reading;
use crate::untrusted::text;
use std::fs;
use std::path::Path;

const WINDOWS_LIBRARIES: &str = "/usr/lib/wsl/lib";
/// Folders where a Linux driver installs libraries that shadow those of Windows.
const LINUX_LIBRARIES: [&str; 3] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/lib/x86_64-linux-gnu"];

/// Runs the WSL2 checks; the file system check runs everywhere.
pub fn checks(reading: Option<&Reading>, place: &Path) -> Vec<Check> {
    let version = fs::read_to_string("/proc/version").unwrap_or_default();
    let mut checks = vec![file_system(place)];
    if !version.to_lowercase().contains("microsoft") && !Path::new("/dev/dxg").exists() {
        return checks;
    }
    let kernel = version.split_whitespace().nth(2).unwrap_or("unknown").to_owned();
    checks.push(if Path::new("/dev/dxg").exists() {
        Check::ok("WSL2", format!("kernel {kernel}, GPU device /dev/dxg"))
    } else {
        Check::fail(
            "WSL2",
            format!("kernel {kernel}, no GPU device /dev/dxg"),
            "run `wsl --update` in Windows, install the NVIDIA driver there, then `wsl --shutdown`",
        )
    });
    checks.push(shadowing(&LINUX_LIBRARIES.map(Path::new)));
    checks.push(Check::warn(
        "WSL2 idle",
        "Windows stops an idle WSL without an open console, including its runs",
        "keep a terminal or tmux open during runs, or set instanceIdleTimeout=-1 under [general] in .wslconfig",
    ));
    checks.push(Check::ok(
        "WSL2 memory",
        "pinned host memory is limited to about 1 GB; `nvidia-smi` shows the whole GPU, including Windows",
    ));
    checks.push(Check::ok(
        "WSL2 spill",
        "with GPU memory full, Windows moves pages to the host and steps become 10 to 100 times slower; to get an error \
         instead, set CUDA - Sysmem Fallback Policy to Prefer No Sysmem Fallback in the NVIDIA Control Panel (not readable \
         from WSL)",
    ));
    checks.push(Check::ok(
        "WSL2 faults",
        "if GPU faults repeat: update the driver in Windows, train in a container (`docker run --gpus all`), or boot \
         native Linux",
    ));
    let vram = reading.and_then(|reading| reading.gpu.as_ref().ok()?.vram_total_bytes.get());
    let ram = reading.and_then(|reading| reading.host.ram_total_bytes.get());
    if let Some((vram, ram)) = vram.zip(ram).filter(|(vram, ram)| vram > ram) {
        checks.push(Check::warn(
            "WSL2 RAM",
            format!("{} of RAM is less than the GPU's {}", bytes(ram), bytes(vram)),
            "give WSL more with `memory=` under [wsl2] in .wslconfig: GPU use may fail otherwise",
        ));
    }
    checks
}

/// Checks for a Linux driver inside WSL that shadows the Windows driver.
fn shadowing(folders: &[&Path]) -> Check {
    let names = ["libnvidia-ml.so.1", "libcuda.so.1"];
    let hides = |path: &Path| {
        let target = fs::canonicalize(path).unwrap_or_default();
        !target.as_os_str().is_empty() && !target.starts_with("/usr/lib/wsl")
    };
    let found = folders.iter().flat_map(|folder| names.map(|name| folder.join(name))).find(|path| hides(path));
    match found {
        Some(path) => Check::fail(
            "WSL2 libraries",
            format!("{} shadows the Windows driver library in {WINDOWS_LIBRARIES}", text::path(&path)),
            "remove the Linux driver: `sudo apt purge 'libnvidia-*' 'nvidia-driver-*'`",
        ),
        None => Check::ok("WSL2 libraries", "no Linux driver shadows the Windows driver"),
    }
}

/// Checks the file system: a database and durable checkpoints need a Linux file system on a local disk.
fn file_system(place: &Path) -> Check {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let place = fs::canonicalize(place).unwrap_or_else(|_| place.to_owned());
    let kind = kind_of(&mounts, &place).unwrap_or_else(|| "unknown".to_owned());
    let text = format!("{kind} at {}", text::path(&place));
    let slow = ["9p", "drvfs", "v9fs", "nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "vboxsf"];
    if slow.contains(&kind.as_str()) {
        return Check::warn("file system", text, "keep runs on a local Linux file system: --runs-dir ~/runs");
    }
    if kind == "tmpfs" || kind == "ramfs" {
        return Check::warn("file system", text, "a reboot deletes it: keep runs on a persistent disk");
    }
    Check::ok("file system", text)
}

/// Returns the type of the file system that contains a path, from the text of /proc/self/mountinfo.
fn kind_of(mounts: &str, path: &Path) -> Option<String> {
    let entry = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let point = before.split_whitespace().nth(4)?.replace("\\040", " ");
        let kind = after.split_whitespace().next()?.to_owned();
        path.starts_with(&point).then_some((point.len(), kind))
    };
    // Among equal mount points the later mount covers the earlier one.
    mounts.lines().filter_map(entry).max_by_key(|(length, _)| *length).map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::{kind_of, shadowing};
    use crate::diagnose::doctor::check::Severity;
    use std::path::Path;

    #[test]
    fn the_innermost_mount_counts() {
        let mounts = "22 1 8:1 / / rw - ext4 /dev/sda rw\n30 22 0:5 / /mnt/c rw shared:1 - 9p C: rw\n\
                      31 30 0:6 / /mnt/c/a\\040b rw - tmpfs t rw\nrubbish\n";
        let kind = |path: &str| kind_of(mounts, Path::new(path));
        assert_eq!(kind("/home/x").as_deref(), Some("ext4"));
        assert_eq!(kind("/mnt/c/runs").as_deref(), Some("9p"));
        assert_eq!(kind("/mnt/c/a b/r").as_deref(), Some("tmpfs"));
        assert_eq!(kind("/mnt/cc").as_deref(), Some("ext4"), "no part of a name");
        assert_eq!(kind_of("", Path::new("/")), None);
    }

    #[test]
    fn a_linux_driver_inside_wsl_is_found() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(shadowing(&[dir.path()]).verdict, Severity::Ok);
        std::fs::write(dir.path().join("libcuda.so.1"), "").unwrap();
        let check = shadowing(&[dir.path()]);
        assert!(check.verdict == Severity::Fail && check.text.contains("libcuda.so.1"));
    }
}
