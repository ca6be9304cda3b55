//! The kernel's log: the driver's Xid errors, the OOM killer, WSL's dxg lines. Only lines written after
//! [`KernelLog::open`] count, so that an old boot or run is not blamed.
//!
//! Reading never blocks: the device and pipes are opened non-blocking, and one call reads at most a few megabytes.

use crate::protocol::cause::{KernelKind, KernelLine};
use rustix::fs::OFlags;
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Environment variable with the path of a file that replaces the kernel's log.
pub const KERNEL_LOG_VARIABLE: &str = "DOWNSHIFT_KERNEL_LOG";
const DEVICE: &str = "/dev/kmsg";
const FILES: [&str; 2] = [DEVICE, "/var/log/kern.log"];
/// Maximum bytes read per call.
const MAX_READ: usize = 8 << 20;
/// Length at which a line is truncated.
const MAX_LINE: usize = 16 << 10;

/// An opened kernel log.
#[derive(Debug)]
pub struct KernelLog {
    path: PathBuf,
    file: Option<File>,
    /// Device and inode, to detect log rotation.
    identity: (u64, u64),
    place: u64,
    partial: Vec<u8>,
    /// The reason why nothing can be read.
    error: Option<KernelLogError>,
}

/// A kernel log that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum KernelLogError {
    /// This user may not read it.
    #[error(
        "no permission to read {}: to let downshift see Xid errors and OOM kills, run `sudo sysctl \
         kernel.dmesg_restrict=0` or join the group adm", .path.display()
    )]
    NoPermission {
        /// The log.
        path: PathBuf,
    },
    /// Opening it failed for another reason.
    #[error("cannot read {}: {error}", .path.display())]
    Unreadable {
        /// The log.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
}

/// Returns the files that may hold the kernel's log.
fn log_files() -> Vec<PathBuf> {
    match std::env::var_os(KERNEL_LOG_VARIABLE).filter(|path| !path.is_empty()) {
        Some(path) => vec![path.into()],
        None => FILES.map(PathBuf::from).to_vec(),
    }
}

impl KernelLog {
    /// Opens the kernel's log from now on.
    #[must_use]
    pub fn open() -> Self {
        Self::open_first(&log_files(), false)
    }

    /// Opens the kernel's log from its oldest line.
    #[must_use]
    pub fn open_from_start() -> Self {
        Self::open_first(&log_files(), true)
    }

    /// Opens the log in this file, from now on or from its start. A file that does not exist yet is read
    /// from its start once it does.
    #[must_use]
    pub fn open_file(path: &Path, from_start: bool) -> Self {
        let mut log =
            Self { path: path.to_owned(), file: None, identity: (0, 0), place: 0, partial: Vec::new(), error: None };
        log.reopen(!from_start);
        log
    }

    fn open_first(paths: &[PathBuf], from_start: bool) -> Self {
        let mut logs: VecDeque<Self> = paths.iter().map(|path| Self::open_file(path, from_start)).collect();
        let readable = logs.iter().position(|log| log.file.is_some()).unwrap_or(0);
        logs.remove(readable).unwrap_or_else(|| Self::open_file(Path::new(DEVICE), from_start))
    }

    /// Returns the reason why nothing can be read.
    #[must_use]
    pub fn error(&self) -> Option<&KernelLogError> {
        self.error.as_ref()
    }

    /// Returns the file's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the relevant lines written since the last call.
    pub fn poll(&mut self) -> Vec<KernelLine> {
        let mut found = Vec::new();
        for line in self.lines() {
            found.extend(read_line(&line));
        }
        found
    }

    fn lines(&mut self) -> Vec<String> {
        if self.rotated() {
            self.partial.clear();
            self.reopen(false);
        }
        let device = self.is_device();
        let Some(file) = &mut self.file else { return Vec::new() };
        let mut bytes = std::mem::take(&mut self.partial);
        let mut buffer = vec![0; 16 << 10];
        let mut lines = Vec::new();
        let mut read = 0;
        while read < MAX_READ {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) if device => {
                    // One record per call: `6,339,5140900,-;text`, then lines with its properties.
                    read += count;
                    let record = String::from_utf8_lossy(&buffer[..count]);
                    let first = record.lines().next().unwrap_or_default();
                    lines.push(first.split_once(';').map_or(first, |(_, text)| text).to_owned());
                }
                Ok(count) => {
                    read += count;
                    self.place += count as u64;
                    bytes.extend_from_slice(&buffer[..count]);
                    drain_lines(&mut bytes, &mut lines);
                }
                // Records were overwritten before they were read.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::PIPE.raw_os_error()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        self.partial = bytes;
        lines
    }

    fn is_device(&self) -> bool {
        self.path == Path::new(DEVICE)
    }

    /// Reports whether the path now leads to another file, or the file was truncated.
    fn rotated(&self) -> bool {
        match fs::metadata(&self.path) {
            Ok(now) if self.file.is_none() => !now.is_dir(),
            Ok(now) => now.is_file() && ((now.dev(), now.ino()) != self.identity || now.len() < self.place),
            Err(_) => false,
        }
    }

    fn reopen(&mut self, at_end: bool) {
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags((OFlags::NONBLOCK | OFlags::CLOEXEC).bits().cast_signed())
            .open(&self.path)
            .and_then(|file| Ok((file.metadata()?, file)));
        match opened {
            Ok((is, mut file)) => {
                self.identity = (is.dev(), is.ino());
                self.place = 0;
                if at_end && !is.file_type().is_fifo() {
                    self.place = file.seek(SeekFrom::End(0)).unwrap_or(0);
                }
                self.file = Some(file);
                self.error = None;
            }
            Err(error) => {
                self.file = None;
                let path = self.path.clone();
                self.error = Some(match error.kind() {
                    io::ErrorKind::PermissionDenied => KernelLogError::NoPermission { path },
                    _ => KernelLogError::Unreadable { path, error },
                });
            }
        }
    }
}

fn drain_lines(bytes: &mut Vec<u8>, lines: &mut Vec<String>) {
    while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
        lines.push(String::from_utf8_lossy(&bytes[..end.min(MAX_LINE)]).into_owned());
        bytes.drain(..=end);
    }
    if bytes.len() > MAX_LINE {
        bytes.truncate(MAX_LINE);
    }
}

/// Classifies a line of the kernel's log, if it is relevant.
#[must_use]
pub fn read_line(line: &str) -> Option<KernelLine> {
    let kind = if let Some((pci, number)) = parse_xid(line) {
        KernelKind::Xid { number, pci }
    } else if let Some(kind) = parse_oom_kill(line) {
        kind
    } else if line.contains("NVRM:") && line.contains("fallen off the bus") || is_channel_broken(line) {
        KernelKind::GpuLost
    } else if line.contains("dxg") && line.contains("make_resident") && line.trim_end().ends_with("-12") {
        KernelKind::DeviceOutOfMemory
    } else {
        return None;
    };
    Some(KernelLine { kind, text: line.trim().chars().take(300).collect() })
}

/// Parses GPU and number of `NVRM: Xid (PCI:0000:01:00): 79, …`.
#[must_use]
pub fn parse_xid(line: &str) -> Option<(String, u32)> {
    let (_, rest) = line.split_once("Xid (PCI:")?;
    let (pci, rest) = rest.split_once("):")?;
    let rest = rest.trim_start();
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let plausible = !pci.is_empty() && pci.chars().all(|c| c.is_ascii_hexdigit() || ":.".contains(c));
    Some((pci.to_owned(), rest[..digits].parse().ok().filter(|_| plausible)?))
}

/// Parses `Out of memory: Killed process 123 (python) total-vm:…`, also of a cgroup.
fn parse_oom_kill(line: &str) -> Option<KernelKind> {
    let (_, rest) = line.split_once("Killed process ").or_else(|| line.split_once("Kill process "))?;
    let memory = ["out of memory", "total-vm", "anon-rss", "score "];
    let lower = line.to_lowercase();
    if !memory.iter().any(|word| lower.contains(word)) {
        return None;
    }
    let pid = rest.split([' ', ',']).next().and_then(|pid| pid.parse().ok());
    let name = rest.split_once('(').and_then(|(_, rest)| rest.split_once(')')).map(|(name, _)| name.to_owned());
    Some(KernelKind::OutOfMemory { pid, name })
}

/// Reports whether WSL's channel to Windows is broken. Other dxg failures also occur on healthy boots.
fn is_channel_broken(line: &str) -> bool {
    line.contains("dxg") && line.contains("create_process") && line.trim_end().ends_with("-75")
        || line.contains("WARNING") && line.contains("dxgvmbus")
}

/// Reports whether two PCI addresses name the same GPU: the kernel writes `0000:01:00`, NVML
/// `00000000:01:00.0`. An unreadable address matches nothing.
#[must_use]
pub fn is_same_gpu(one: &str, other: &str) -> bool {
    parse_pci_address(one).is_some_and(|place| Some(place) == parse_pci_address(other))
}

fn parse_pci_address(text: &str) -> Option<(u32, u32, u32)> {
    let hex = |part: &str| u32::from_str_radix(part, 16).ok();
    let parts: Vec<&str> = text.trim().split(':').collect();
    let [domain, bus, device] = parts.as_slice() else { return None };
    Some((hex(domain)?, hex(bus)?, hex(device.split('.').next()?)?))
}

#[cfg(test)]
mod tests {
    use super::{KernelLog, KernelLogError, is_same_gpu, parse_xid, read_line};
    use crate::protocol::cause::KernelKind;
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    #[test]
    fn relevant_lines_are_distinguished_from_others() {
        let kind = |line: &str| read_line(line).map(|line| line.kind);
        let xid_of = |number, pci: &str| Some(KernelKind::Xid { number, pci: pci.to_owned() });
        let oom = |pid, name: &str| Some(KernelKind::OutOfMemory { pid: Some(pid), name: Some(name.to_owned()) });
        let cases = [
            (
                "[ 12.3] NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
                xid_of(79, "0000:01:00"),
            ),
            (
                "NVRM: Xid (PCI:0000:c1:00): 31, pid=2, name=python, Ch 00000010, intr 00000000. MMU Fault",
                xid_of(31, "0000:c1:00"),
            ),
            ("Out of memory: Killed process 4242 (exe) total-vm:1kB, anon-rss:2kB", oom(4242, "exe")),
            ("Memory cgroup out of memory: Killed process 7 (python3) total-vm:1kB", oom(7, "python3")),
            ("Killed process 3 (python), UID 1000, total-vm:44kB, anon-rss:33kB", oom(3, "python")),
            ("misc dxg: dxgk: dxgvmb_send_make_resident: Ioctl failed: -12", Some(KernelKind::DeviceOutOfMemory)),
            ("misc dxg: dxgk: dxgkio_create_process: Ioctl failed: -75", Some(KernelKind::GpuLost)),
            ("WARNING: CPU: 3 PID: 812 at drivers/hv/dxgkrnl/dxgvmbus.c:371", Some(KernelKind::GpuLost)),
            ("NVRM: GPU 0000:01:00.0: GPU has fallen off the bus.", Some(KernelKind::GpuLost)),
            ("misc dxg: dxgk: dxgkio_query_adapter_info: Ioctl failed: -22", None),
            ("misc dxg: dxgk: dxgkio_query_adapter_info: Ioctl failed: -2", None),
            ("NVRM: loading NVIDIA UNIX x86_64 Kernel Module", None),
            ("systemd: Killed process 12 of the session", None),
            ("postgres: xid (PCI slot): none", None),
            ("oom_score_adj of 99 set", None),
        ];
        for (line, expected) in cases {
            assert_eq!(kind(line), expected, "{line}");
        }
        assert_eq!(parse_xid("Xid (PCI:0000:01:00): x"), None);
    }

    #[test]
    fn a_card_is_known_in_both_spellings() {
        assert!(is_same_gpu("0000:01:00", "00000000:01:00.0"));
        assert!(is_same_gpu("0000:C1:00", "00000000:c1:00.0"));
        assert!(!is_same_gpu("0000:02:00", "00000000:01:00.0"));
        assert!(!is_same_gpu("", "") && !is_same_gpu("x", "x"));
    }

    const LINE: &str = "NVRM: Xid (PCI:0000:01:00): 13, pid=1\n";

    #[test]
    fn only_what_comes_later_counts_and_a_rotated_log_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kern.log");
        fs::write(&path, LINE).unwrap();
        let mut log = KernelLog::open_file(&path, false);
        assert_eq!(log.poll(), [], "the line is older");
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(&LINE.as_bytes()[..9]).unwrap();
        assert_eq!(log.poll(), [], "half a line");
        file.write_all(&LINE.as_bytes()[9..]).unwrap();
        assert_eq!(log.poll().len(), 1);
        assert_eq!(log.poll(), []);

        fs::rename(&path, dir.path().join("kern.log.1")).unwrap();
        fs::write(&path, LINE).unwrap();
        assert_eq!(log.poll().len(), 1, "rotated");
        fs::write(&path, "").unwrap();
        log.poll();
        fs::write(&path, LINE).unwrap();
        assert_eq!(log.poll().len(), 1, "truncated and rewritten");
        assert_eq!(KernelLog::open_file(&path, true).poll().len(), 1, "from its start");
    }

    #[test]
    fn a_missing_log_is_reported_and_read_once_it_exists() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kern.log");
        let mut log = KernelLog::open_file(&path, false);
        let error = log.error().unwrap();
        assert!(matches!(error, KernelLogError::Unreadable { path: missing, .. } if *missing == path), "{error}");
        assert_eq!(log.poll(), []);
        fs::write(&path, LINE).unwrap();
        assert_eq!(log.poll().len(), 1);
        assert!(log.error().is_none());
    }

    #[test]
    fn a_pipe_without_a_writer_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let mut log = KernelLog::open_file(&path, false);
        assert_eq!(log.poll(), []);
        let mut writer = OpenOptions::new().write(true).open(&path).unwrap();
        writer.write_all(LINE.as_bytes()).unwrap();
        assert_eq!(log.poll().len(), 1);
    }
}
