//! Collects evidence around an attempt and judges its end: the kernel log, the cgroup's counter, the
//! attempt's part of worker.log, and the probe's last word on the GPU.

use crate::protocol::cause::{Cause, KernelKind, KernelLine};
use crate::protocol::class::FailureClass;
use crate::protocol::exit::Exit;
use crate::protocol::probe::Reading;
use crate::protocol::worker::Failed;
use crate::triage::catalogue::Catalogue;
use crate::triage::cgroup;
use crate::triage::classify::{Evidence, classify};
use crate::triage::kernel::{KernelLog, is_same_gpu};
use crate::triage::scan::{Scan, scan};
use crate::untrusted::file::open;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;
use tokio::time::Instant;

/// Bytes examined at the end of an attempt's log.
const TAIL: u64 = 1 << 20;
/// Lines before the tail are counted only up to here.
const COUNTED: u64 = 64 << 20;
/// A kernel log line about a kill explains a death that follows within this time.
const JUST_NOW: Duration = Duration::from_secs(5);
/// Maximum number of kernel log lines kept per attempt.
const KEPT: usize = 200;

static CATALOGUE: OnceLock<Option<Catalogue>> = OnceLock::new();

/// Observes the worker's surroundings.
pub struct Witness {
    log: PathBuf,
    /// Where the attempt's part of the log begins, and the number of lines before it.
    begins: (u64, Option<u64>),
    kernel: KernelLog,
    seen: Vec<(Instant, KernelLine)>,
    oom_kills: Option<u64>,
    card: Card,
    stands: Vec<String>,
}

/// The probe's view of the GPU.
#[derive(Debug, Default)]
struct Card {
    pci: Option<String>,
    lost: Option<String>,
    xids: Vec<u32>,
}

/// The end of an attempt, as known to the keeper itself.
pub struct Ending<'a> {
    /// Exit of the process.
    pub exit: Exit,
    /// The process id.
    pub pid: Option<u32>,
    /// The worker's own report.
    pub failed: Option<&'a Failed>,
    /// The reason, if the keeper ended it.
    pub ended_for: Option<(FailureClass, String)>,
}

impl Witness {
    /// Creates a witness that reads this worker.log.
    pub fn new(log: PathBuf) -> Self {
        // Loads the catalogue early: that takes a moment, which should not be spent after a fault.
        thread::spawn(|| load_catalogue().is_some());
        Self {
            log,
            begins: (0, Some(0)),
            kernel: KernelLog::open(),
            seen: Vec::new(),
            oom_kills: None,
            card: Card::default(),
            stands: Vec::new(),
        }
    }

    /// Begins an attempt: earlier evidence does not count. Returns where its part of the log begins.
    pub fn begin_attempt(&mut self) -> u64 {
        let end = std::fs::metadata(&self.log).map_or(0, |log| log.len());
        self.continue_attempt(end);
        end
    }

    /// Continues with an attempt whose part of the log begins at this byte.
    pub fn continue_attempt(&mut self, end: u64) {
        self.begins = (end, lines_until(&self.log, self.begins, end));
        self.kernel.poll();
        self.seen.clear();
        self.card.xids.clear();
        self.stands.clear();
        self.oom_kills = cgroup::oom_kills();
    }

    /// Takes in a reading, and uses the occasion to read the kernel log. Returns its new lines.
    pub fn observe(&mut self, reading: &Reading) -> Vec<KernelLine> {
        match &reading.gpu {
            Ok(gpu) => {
                let why = gpu.vram_used_bytes.why().filter(|_| gpu.vram_used_bytes.is_lost());
                self.card.lost = why.map(str::to_owned);
                if let Some(pci) = gpu.more.pci.value() {
                    self.card.pci = Some(pci.clone());
                }
                let room = KEPT.saturating_sub(self.card.xids.len());
                self.card.xids.extend(gpu.more.xids.value().into_iter().flatten().take(room));
            }
            Err(_) => self.card.lost = None,
        }
        self.poll_kernel_log()
    }

    /// Takes in where a process of a hung worker stands.
    pub fn record_stand(&mut self, sentence: String) {
        if self.stands.len() < KEPT {
            self.stands.push(sentence);
        }
    }

    /// Reports whether a kernel log line about the GPU at this PCI address concerns the worker's GPU.
    pub fn is_our_card(&self, pci: &str) -> bool {
        self.card.pci.as_deref().is_none_or(|own| is_same_gpu(own, pci))
    }

    fn poll_kernel_log(&mut self) -> Vec<KernelLine> {
        let new = self.kernel.poll();
        let now = Instant::now();
        let room = KEPT.saturating_sub(self.seen.len());
        self.seen.extend(new.iter().take(room).map(|line| (now, line.clone())));
        new
    }

    /// Judges why the attempt ended.
    pub fn judge(&mut self, ending: &Ending<'_>) -> Cause {
        self.poll_kernel_log();
        let about_memory = |line: &KernelLine| matches!(line.kind, KernelKind::OutOfMemory { .. });
        let killed_just_now = self.seen.iter().any(|(at, line)| about_memory(line) && at.elapsed() < JUST_NOW);
        let kills = cgroup::oom_kills().zip(self.oom_kills).map_or(0, |(now, before)| now.saturating_sub(before));
        let log = load_catalogue().map(|catalogue| self.read_log(catalogue)).unwrap_or_default();
        let evidence = Evidence {
            exit: ending.exit,
            pid: ending.pid,
            ended_for: ending.ended_for.clone(),
            failed: ending.failed.cloned(),
            frame: log.own_frame,
            log: log.findings,
            last_lines: log.last_lines,
            kernel: self.seen.iter().map(|(_, line)| line.clone()).collect(),
            killed_just_now,
            oom_kills: kills,
            lost: self.card.lost.clone(),
            xids: self.card.xids.clone(),
            pci: self.card.pci.clone(),
            stands: self.stands.clone(),
        };
        if let Some(catalogue) = load_catalogue() {
            return classify(&evidence, catalogue);
        }
        let class = ending.failed.map_or(FailureClass::Unknown, |failed| failed.class);
        Cause::new(class, vec!["the catalogue of causes cannot be read".to_owned()])
    }

    /// Scans the end of the attempt's part of the log.
    fn read_log(&self, catalogue: &Catalogue) -> Scan {
        let Ok(mut file) = open(&self.log) else { return Scan::default() };
        let end = file.metadata().map_or(0, |log| log.len());
        let from = self.begins.0.max(end.saturating_sub(TAIL));
        let before = lines_until(&self.log, self.begins, from);
        if file.seek(SeekFrom::Start(from)).is_err() {
            return Scan::default();
        }
        let mut scan = scan(&mut BufReader::new(file.take(TAIL)), catalogue).unwrap_or_default();
        let number = |line: u64| before.map_or(0, |before| before + line);
        scan.findings.iter_mut().for_each(|finding| finding.line = number(finding.line));
        scan.last_lines.iter_mut().for_each(|(line, _)| *line = number(*line));
        scan
    }
}

/// Returns the meaning of an NVIDIA Xid number, if a catalogue loads: the user's, or else the shipped one.
pub fn xid_meaning(number: u32) -> Option<&'static str> {
    load_catalogue()?.find_xid(number).map(|xid| xid.meaning.as_str())
}

fn load_catalogue() -> Option<&'static Catalogue> {
    CATALOGUE.get_or_init(|| Catalogue::load().or_else(|_| Catalogue::build(None)).ok()).as_ref()
}

/// Counts the lines up to `end`, given the count up to an earlier position if it is known.
fn lines_until(log: &Path, (from, lines): (u64, Option<u64>), end: u64) -> Option<u64> {
    if end < from || end - from > COUNTED {
        return None;
    }
    if end == from {
        // The log of the first attempt does not exist yet.
        return lines;
    }
    let mut file = open(log).ok()?;
    file.seek(SeekFrom::Start(from)).ok()?;
    let mut part = BufReader::with_capacity(1 << 16, file.take(end - from));
    let mut count = lines?;
    loop {
        let bytes = part.fill_buf().ok()?;
        if bytes.is_empty() {
            return Some(count);
        }
        count += bytes.split(|byte| *byte == b'\n').count() as u64 - 1;
        let used = bytes.len();
        part.consume(used);
    }
}

#[cfg(test)]
mod tests {
    use super::{Ending, Witness};
    use crate::protocol::class::FailureClass;
    use crate::protocol::exit::Exit;
    use std::fs::OpenOptions;
    use std::io::Write;

    #[test]
    fn only_the_attempts_own_lines_are_evidence_and_have_their_numbers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("worker.log");
        let mut witness = Witness::new(path.clone());
        let verdict = |witness: &mut Witness, words: &str| {
            witness.begin_attempt();
            let mut log = OpenOptions::new().append(true).create(true).open(&path).unwrap();
            log.write_all(words.as_bytes()).unwrap();
            witness.judge(&Ending { exit: Exit::with_code(1), pid: Some(1), failed: None, ended_for: None })
        };
        let first = verdict(&mut witness, "a\nRuntimeError: CUDA out of memory. Tried to allocate 1 MiB\n");
        assert_eq!(first.class, FailureClass::DeviceOutOfMemory);
        assert!(first.evidence.iter().any(|line| line.starts_with("worker.log line 2:")), "{first:?}");
        let second = verdict(&mut witness, "b\nOSError: [Errno 28] No space left on device\n");
        assert_eq!(second.class, FailureClass::DiskFull);
        assert!(second.evidence.iter().any(|line| line.starts_with("worker.log line 4:")), "{second:?}");
        let unknown = verdict(&mut witness, "nothing\n");
        assert_eq!(
            (unknown.class, unknown.evidence[1].as_str()),
            (FailureClass::Unknown, "worker.log line 5: nothing")
        );
        let flood = format!("{}No space left on device\n", "x\n".repeat(1 << 20));
        let third = verdict(&mut witness, &flood);
        let line = 5 + (1 << 20) + 1;
        assert!(third.evidence.iter().any(|words| words.starts_with(&format!("worker.log line {line}:"))), "{third:?}");
    }
}
