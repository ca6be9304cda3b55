//! Collects evidence around an attempt and judges its end: the kernel log, the cgroup's counter, the
//! attempt's part of worker.log, and the probe's last word on the GPU.

use crate::protocol::cause::{Cause, KernelKind, KernelLine};
use crate::protocol::class::FailureClass;
use crate::protocol::exit::Exit;
use crate::protocol::probe::Reading;
use crate::protocol::worker::Failed;
use crate::store::worker_log::LogFiles;
use crate::triage::catalogue::Catalogue;
use crate::triage::cgroup;
use crate::triage::classify::{Evidence, classify};
use crate::triage::kernel::{KernelLog, is_same_gpu};
use crate::triage::scan::{Scan, scan};
use crate::untrusted::file::open;
use crate::untrusted::thread;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
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
    begins: Beginning,
    kernel: KernelLog,
    seen: Vec<(Instant, KernelLine)>,
    oom_kills: Option<u64>,
    card: Card,
    stands: Vec<String>,
}

/// The beginning of the attempt's part of the output.
#[derive(Debug, Clone, Copy, Default)]
struct Beginning {
    position: u64,
    /// Where worker.log began then.
    begin_of_log: u64,
    /// The number of lines before it in worker.log; none if they are too many.
    lines: Option<u64>,
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
    /// Length of the log when the keeper or the harness began to end its processes; later lines follow from that.
    pub log_end: Option<u64>,
}

impl Witness {
    /// Creates a witness that reads this worker.log.
    pub fn new(log: PathBuf) -> Self {
        // Loads the catalogue early: that takes a moment, which should not be spent after a fault.
        let _ = thread::start("catalogue", || load_catalogue().is_some());
        Self {
            log,
            begins: Beginning { lines: Some(0), ..Beginning::default() },
            kernel: KernelLog::open(),
            seen: Vec::new(),
            oom_kills: None,
            card: Card::default(),
            stands: Vec::new(),
        }
    }

    /// Begins an attempt: earlier evidence does not count. Returns where its part of the log begins.
    pub fn begin_attempt(&mut self) -> u64 {
        let end = LogFiles::open(&self.log).map_or(0, |files| files.end());
        self.continue_attempt(end);
        end
    }

    /// Continues with an attempt whose part of the output begins at this byte.
    pub fn continue_attempt(&mut self, position: u64) {
        let begin_of_log = LogFiles::open(&self.log).map_or(0, |files| files.begin_of_newer());
        let lines = self.count_lines(begin_of_log, position);
        self.begins = Beginning { position, begin_of_log, lines };
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
        let log = load_catalogue().map(|catalogue| self.read_log(catalogue, ending.log_end)).unwrap_or_default();
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

    /// Counts the lines of worker.log before a position; none if that is in the file before it.
    fn count_lines(&self, begin_of_log: u64, position: u64) -> Option<u64> {
        let known = self.begins;
        let is_known = known.begin_of_log == begin_of_log && known.position >= begin_of_log;
        let (from, lines) = if is_known { (known.position, known.lines) } else { (begin_of_log, Some(0)) };
        position.checked_sub(begin_of_log)?;
        lines_until(&self.log, (from - begin_of_log, lines), position - begin_of_log)
    }

    /// Scans the end of the attempt's part of the log, up to `log_end`.
    fn read_log(&self, catalogue: &Catalogue, log_end: Option<u64>) -> Scan {
        let Ok(files) = LogFiles::open(&self.log) else { return Scan::default() };
        let end = log_end.map_or(files.end(), |log_end| log_end.min(files.end()));
        // Somebody removed output if the attempt began after its end.
        let begins = Some(self.begins.position).filter(|begins| *begins <= files.end()).unwrap_or(0);
        let from = begins.max(end.saturating_sub(TAIL)).max(files.start());
        let before = self.count_lines(files.begin_of_newer(), from);
        let Ok(part) = files.read(from, end) else { return Scan::default() };
        let mut scan = scan(&mut BufReader::new(part), catalogue).unwrap_or_default();
        let number = |line: u64| before.map_or(0, |before| before + line);
        scan.findings.iter_mut().for_each(|finding| finding.line = number(finding.line));
        scan.last_lines.iter_mut().for_each(|(line, _)| *line = number(*line));
        scan
    }
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
    use crate::store::worker_log::BoundedLog;
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
            witness.judge(&Ending {
                exit: Exit::with_code(1),
                pid: Some(1),
                failed: None,
                ended_for: None,
                log_end: None,
            })
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
        witness.begin_attempt();
        let mut log = OpenOptions::new().append(true).open(&path).unwrap();
        log.write_all(b"step 1 loss 2\n").unwrap();
        let log_end = Some(log.metadata().unwrap().len());
        log.write_all(b"RuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated.\n").unwrap();
        let mut judge = |log_end| {
            let exit = Exit::of_command(None, None);
            witness.judge(&Ending { exit, pid: Some(1), failed: None, ended_for: None, log_end }).class
        };
        assert_eq!((judge(None), judge(log_end)), (FailureClass::Data, FailureClass::Unknown), "ended by us");
        let line = 6 + 1 + (1 << 20) + 1;
        let flood = format!("{}No space left on device\n", "x\n".repeat(1 << 20));
        let third = verdict(&mut witness, &flood);
        assert!(third.evidence.iter().any(|words| words.starts_with(&format!("worker.log line {line}:"))), "{third:?}");
    }

    #[test]
    fn evidence_in_a_log_that_began_anew_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("worker.log");
        let file = OpenOptions::new().append(true).create(true).open(&path).unwrap();
        let mut log = BoundedLog::with_limit(file, 1000);
        let judge = |witness: &mut Witness, log_end| {
            let exit = Exit::with_code(1);
            witness.judge(&Ending { exit, pid: Some(1), failed: None, ended_for: None, log_end })
        };
        log.write(b"OSError: [Errno 28] No space left on device\n");
        let mut witness = Witness::new(path.clone());
        let begins = witness.begin_attempt();
        let cause = judge(&mut witness, None);
        assert_eq!(cause.class, FailureClass::Unknown, "of the attempt before: {cause:?}");
        log.write("x\n".repeat(2000).as_bytes());
        log.write(b"RuntimeError: CUDA out of memory. Tried to allocate 1 MiB\n");
        let told_to_end = log.end();
        log.write("y\n".repeat(480).as_bytes());
        log.write(b"y\nOSError: [Errno 28] No space left on device\n");
        assert!(path.metadata().unwrap().len() < 1000 && path.with_file_name("worker.log.1").exists());
        let cause = judge(&mut witness, told_to_end);
        assert_eq!(cause.class, FailureClass::DeviceOutOfMemory, "{cause:?}");
        let evidence = "worker.log: RuntimeError: CUDA out of memory. Tried to allocate 1 MiB";
        assert!(cause.evidence.iter().any(|words| words == evidence), "{cause:?}");
        // Another keeper goes on with the attempt, whose beginning is gone.
        let mut witness = Witness::new(path.clone());
        witness.continue_attempt(begins);
        assert_eq!(judge(&mut witness, told_to_end).class, FailureClass::DeviceOutOfMemory);
        witness.begin_attempt();
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        log.write(b"z\nOSError: [Errno 28] No space left on device\n");
        let cause = judge(&mut witness, None);
        let place = format!("worker.log line {}:", lines + 2);
        assert!(cause.evidence.iter().any(|words| words.starts_with(&place)), "{place} {cause:?}");
        // Somebody removed the output before it.
        witness.begin_attempt();
        std::fs::remove_file(path.with_file_name("worker.log.1")).unwrap();
        assert_eq!(judge(&mut witness, None).class, FailureClass::DiskFull);
    }
}
