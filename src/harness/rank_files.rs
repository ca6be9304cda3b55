//! The files in which ranks record where they stand. The companion writes one at each change of phase, which wakes nobody;
//! the harness reads all of them at intervals, on other nodes by its helper there. The format is that of
//! `python/companion/downshift_cockpit/rank_file.py`.

use crate::process_tree::{Process, descendants, ticks_in_seconds};
use crate::protocol::node::{ProcessReading, RankReading};
use crate::protocol::ranks::{ProcessState, RankPhase};
use crate::untrusted::file;
use rustix::param::page_size;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Version of the format.
const VERSION: u64 = 1;
/// Numbers in a record, of eight bytes each.
const NUMBERS: usize = 23;
/// A rank that stands idle this long is watched with all that it has started: a compiler, say.
pub const STANDS: Duration = Duration::from_secs(2);
/// Attempts to read a record that is being written.
const ATTEMPTS: usize = 3;

/// The record of a rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Record {
    /// The last step that it took.
    pub step: u64,
    /// What it does.
    pub phase: RankPhase,
    /// When that began, on the clock of its node: [`monotonic_now`].
    pub since: Duration,
    /// Steps that this process took.
    pub steps: u64,
    /// Seconds spent in each phase before this one, in the order of [`RankPhase::ALL`].
    pub spent_s: [f64; 8],
    /// Its own losses that were finite.
    pub losses: Losses,
    /// The first step of late whose loss was NaN or infinite.
    pub bad_step: Option<u64>,
    /// Bytes of device memory: allocated, reserved.
    pub device_bytes: Option<(u64, u64)>,
    /// The index of its GPU.
    pub card: Option<u32>,
}

/// Sums over the losses of a rank.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Losses {
    /// Their number.
    pub count: u64,
    /// The newest.
    pub newest: f64,
    /// Their sum.
    pub sum: f64,
    /// The sum of their squares.
    pub squares: f64,
}

/// The file of a rank, open.
#[derive(Debug)]
pub struct RankFile {
    path: PathBuf,
    file: File,
}

impl RankFile {
    /// Opens the file that a companion named. Only a regular file beside the socket of this attempt is read, and no link.
    pub fn named(path: &Path, socket: &Path) -> Option<Self> {
        let name = path.as_os_str().as_encoded_bytes();
        let prefix = [socket.as_os_str().as_encoded_bytes(), b".rank-"].concat();
        let is_ours = name.strip_prefix(prefix.as_slice()).is_some_and(|rest| !rest.contains(&b'/'));
        let is_file = || fs::symlink_metadata(path).is_ok_and(|about| about.is_file());
        let file = (is_ours && is_file()).then(|| file::open(path).ok())??;
        Some(Self { path: path.to_owned(), file })
    }

    /// Reads the numbers of the record; none while it is being written, or if its format is another one.
    fn read_numbers(&self) -> Option<Vec<u64>> {
        (0..ATTEMPTS).find_map(|_| {
            let mut bytes = [0; NUMBERS * 8];
            self.file.read_exact_at(&mut bytes, 0).ok()?;
            let numbers = bytes.chunks_exact(8).filter_map(|bytes| bytes.try_into().ok().map(u64::from_le_bytes));
            let numbers: Vec<u64> = numbers.collect();
            Record::parse(&numbers).map(|_| numbers)
        })
    }

    /// Reads where a rank stands: its record and its process.
    pub fn read(&self, pid: u32) -> Option<RankReading> {
        let record = self.read_numbers()?;
        let process = read_process(pid).ok();
        Some(RankReading { pid, record, clock_s: monotonic_now().as_secs_f64(), process, helpers_cpu_s: None })
    }
}

/// Returns how long a rank has stood where it stands.
pub fn stands_for(reading: &RankReading, record: &Record) -> Duration {
    Duration::try_from_secs_f64(reading.clock_s).unwrap_or_default().saturating_sub(record.since)
}

/// Returns the processor time of all that a rank has started, in seconds.
pub fn helpers_cpu_s(pid: u32, all: &[Process]) -> f64 {
    let helpers = descendants(all, pid).into_iter().filter(|found| found.pid != pid);
    ticks_in_seconds(helpers.map(|found| found.cpu_ticks).sum())
}

impl Drop for RankFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes the files that an earlier attempt has left beside its socket.
pub fn remove_left_files(socket: &Path) {
    let Some((folder, name)) = socket.parent().zip(socket.file_name()) else { return };
    let prefix = [name.as_encoded_bytes(), b".rank-"].concat();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(&prefix) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

impl Record {
    /// Reads the numbers of a record.
    pub fn parse(words: &[u64]) -> Option<Self> {
        let [version, write, step, phase, since, steps, ..] = *words else { return None };
        if words.len() != NUMBERS || version != VERSION || write != words[NUMBERS - 1] {
            return None;
        }
        let real = |at: usize| Some(f64::from_bits(words[at])).filter(|value| value.is_finite());
        let mut spent_s = [0.0; 8];
        for (at, spent) in spent_s.iter_mut().enumerate() {
            *spent = real(6 + at)?.max(0.0);
        }
        let losses =
            Losses { count: words[14], newest: real(15).unwrap_or_default(), sum: real(16)?, squares: real(17)? };
        let card = u32::try_from(words[21].cast_signed()).ok();
        Some(Self {
            step,
            phase: *RankPhase::ALL.get(usize::try_from(phase).ok()?)?,
            since: Duration::try_from_secs_f64(f64::from_bits(since)).ok()?,
            steps,
            spent_s,
            losses,
            bad_step: Some(words[18]).filter(|step| *step > 0),
            device_bytes: card.map(|_| (words[19], words[20])),
            card,
        })
    }
}

/// Returns the time of the clock that Python's `time.monotonic` shows.
pub fn monotonic_now() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs().try_into().unwrap_or(0))
}

/// Reads a process.
///
/// # Errors
/// Returns the system's error.
pub fn read_process(pid: u32) -> io::Result<ProcessReading> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    parse_stat(&stat).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn parse_stat(stat: &str) -> Option<ProcessReading> {
    // The name in parentheses may contain anything, also parentheses.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(ProcessReading {
        state: ProcessState::of_letter(fields.first()?)?,
        cpu_s: ticks_in_seconds(number(11)?.saturating_add(number(12)?)),
        resident_bytes: number(21)?.saturating_mul(page_size() as u64),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::{
        NUMBERS, ProcessReading, RankFile, Record, monotonic_now, parse_stat, read_process, remove_left_files,
    };
    use crate::process_tree::ticks_in_seconds;
    use crate::protocol::ranks::{ProcessState, RankPhase};
    use rustix::param::page_size;
    use std::path::Path;

    /// Returns the bytes of a rank in a phase after a step, as a companion writes them.
    pub fn bytes_of(step: u64, phase: RankPhase, losses: &[f64], bad_step: u64, card: i64) -> [u8; NUMBERS * 8] {
        let index = RankPhase::ALL.iter().position(|known| *known == phase).unwrap() as u64;
        let mut words = [0_u64; NUMBERS];
        words[..6].copy_from_slice(&[1, 9, step, index, monotonic_now().as_secs_f64().to_bits(), step]);
        let (count, sum) = (losses.len() as u64, losses.iter().sum::<f64>());
        let squares = losses.iter().map(|loss| loss * loss).sum::<f64>();
        words[14] = count;
        for (at, value) in [(15, losses.last().copied().unwrap_or(f64::NAN)), (16, sum), (17, squares)] {
            words[at] = value.to_bits();
        }
        words[18..].copy_from_slice(&[bad_step, 5, 6, card.cast_unsigned(), 9]);
        let mut bytes = [0; NUMBERS * 8];
        for (bytes, word) in bytes.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Record> {
        let words = bytes.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
        Record::parse(&words.collect::<Vec<u64>>())
    }

    #[test]
    fn a_record_is_read_whole_or_not_at_all() {
        let mut bytes = bytes_of(12, RankPhase::Reduction, &[2.0, 4.0], 0, -1);
        let Record { step, phase, losses, bad_step, card, device_bytes, .. } = parse(&bytes).unwrap();
        assert_eq!((step, phase, bad_step, card, device_bytes), (12, RankPhase::Reduction, None, None, None));
        assert_eq!((losses.count, losses.newest, losses.sum, losses.squares), (2, 4.0, 6.0, 20.0));
        let on_card = parse(&bytes_of(12, RankPhase::Data, &[], 7, 3)).unwrap();
        assert_eq!((on_card.card, on_card.device_bytes, on_card.bad_step), (Some(3), Some((5, 6)), Some(7)));
        for at in [0, 8, 24] {
            let before = bytes[at];
            bytes[at] = 77;
            assert_eq!(parse(&bytes), None, "byte {at}");
            bytes[at] = before;
        }
    }

    #[test]
    fn only_a_file_beside_the_socket_is_read_and_none_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("a.sock");
        let (own, strange) = (dir.path().join("a.sock.rank-1.7"), dir.path().join("b.sock.rank-1.7"));
        for path in [&own, &strange] {
            std::fs::write(path, bytes_of(3, RankPhase::Data, &[], 0, -1)).unwrap();
        }
        assert!(RankFile::named(&strange, &socket).is_none());
        assert!(RankFile::named(Path::new("/etc/passwd"), &socket).is_none());
        let (link, pipe) = (dir.path().join("a.sock.rank-2.7"), dir.path().join("a.sock.rank-3.7"));
        std::os::unix::fs::symlink(&strange, &link).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        assert!(RankFile::named(&link, &socket).is_none() && RankFile::named(&pipe, &socket).is_none());
        let file = RankFile::named(&own, &socket).unwrap();
        let reading = file.read(std::process::id()).unwrap();
        assert_eq!(Record::parse(&reading.record).map(|record| record.step), Some(3));
        assert!(reading.process.is_some());
        drop(file);
        assert!(!own.exists() && strange.exists());
        std::fs::write(&own, "").unwrap();
        remove_left_files(&socket);
        assert!(!own.exists() && strange.exists());
    }

    #[test]
    fn the_kernel_names_the_state_of_a_process() {
        let line = "12 (a ) R 3) T 7 1 1 0 -1 0 0 0 0 0 250 50 0 0 20 0 1 0 98765 0 10";
        let reading = ProcessReading {
            state: ProcessState::Stopped,
            cpu_s: ticks_in_seconds(300),
            resident_bytes: 10 * page_size() as u64,
        };
        assert_eq!(parse_stat(line), Some(reading));
        assert_eq!(parse_stat("garbage"), None);
        assert!(read_process(std::process::id()).is_ok_and(|own| own.resident_bytes > 0));
    }
}
