//! Reads the GPU and the machine. A GPU that returns nothing is reopened, but rarely: opening is
//! expensive, and a sick driver is best left alone.
//!
//! Any NVML call may hang. A separate thread calls it while the machine is read in parallel; while that
//! thread is stuck, its last values are stale, and later unknown.

use super::host::HostReader;
use super::last_values;
use super::nvml::{Session, is_answering};
use super::worker_processes::{Watched, WorkerProcesses};
use crate::protocol::gpu_error::{DRIVER_SILENT, GpuError, GpuProblem};
use crate::protocol::probe::{Gpu, Reading};
use crate::untrusted::thread;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

/// Time between two attempts to open a GPU that returns nothing.
pub const REOPEN: Duration = Duration::from_secs(30);
/// Time limit of a reading; a full reading of the GPU takes some 10 ms.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time limit for opening the driver.
const OPENING: Duration = Duration::from_secs(10);
/// Maximum age of a stale value that is still shown.
const KEPT: Duration = Duration::from_secs(30);

/// The sources to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The run directory, for the free space of its file system.
    pub run_dir: PathBuf,
    /// NVML's index of the GPU.
    pub gpu: u32,
    /// Path of the NVML library; searched for if absent.
    pub nvml_path: Option<PathBuf>,
}

/// Reads a GPU and its machine.
pub struct Reader {
    run_dir: PathBuf,
    host: HostReader,
    processes: WorkerProcesses,
    ask: Sender<(Watched, Instant)>,
    answers: Receiver<Result<Gpu, GpuError>>,
    /// When the pending request was sent.
    pending_since: Option<Instant>,
    /// The latest answer and when it arrived.
    last: Option<(Gpu, Instant)>,
    answered: bool,
}

impl Reader {
    /// Returns the run directory.
    #[must_use]
    pub fn run_dir(&self) -> &std::path::Path {
        &self.run_dir
    }

    /// Creates a reader that opens NVML at the first reading from `now` on.
    #[must_use]
    pub fn new(source: Source, now: Instant) -> Self {
        let run_dir = source.run_dir.clone();
        let host = HostReader::new(run_dir.clone());
        let (ask, asked) = mpsc::channel::<(Watched, Instant)>();
        let (answer, answers) = mpsc::channel();
        // Without it, there are no readings.
        let _ = thread::start("probe", move || {
            let mut slot =
                GpuSlot { source, session: None, refusal: GpuError::new(GpuProblem::Opening, ""), open_at: Some(now) };
            while let Ok((watched, now)) = asked.recv() {
                if answer.send(slot.read(&watched, now)).is_err() {
                    break;
                }
            }
        });
        Self {
            run_dir,
            host,
            processes: WorkerProcesses::default(),
            ask,
            answers,
            pending_since: None,
            last: None,
            answered: false,
        }
    }

    /// Takes one reading, with the shares of `worker`; returns within about a second, even if NVML hangs.
    pub fn read(&mut self, worker: Option<u32>, now: Instant) -> Reading {
        let watched = self.processes.find(worker, now).clone();
        let gpu = self.read_gpu(watched, now);
        let ram = self.processes.read_ram(now);
        Reading { gpu, host: self.host.read(ram, self.processes.largest()) }
    }

    /// Returns how long NVML has been stuck in a call.
    #[must_use]
    pub fn stuck_for(&self) -> Duration {
        self.pending_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn read_gpu(&mut self, watched: Watched, now: Instant) -> Result<Gpu, GpuError> {
        let patience = match (self.pending_since, self.answered) {
            (Some(_), _) => Duration::ZERO,
            // The first call also loads and starts the library.
            (None, false) => 2 * PATIENCE,
            (None, true) => PATIENCE,
        };
        if self.pending_since.is_none() && self.ask.send((watched, now)).is_ok() {
            self.pending_since = Some(Instant::now());
        }
        match self.answers.recv_timeout(patience) {
            Ok(gpu) => {
                (self.pending_since, self.answered) = (None, true);
                self.last = gpu.as_ref().ok().map(|gpu| (gpu.clone(), Instant::now()));
                gpu
            }
            Err(_) => self.last_known(),
        }
    }

    /// Returns the last known state while NVML is stuck.
    fn last_known(&self) -> Result<Gpu, GpuError> {
        if !self.answered && self.stuck_for() < OPENING {
            return Err(GpuError::new(GpuProblem::Opening, ""));
        }
        let fix = "if that lasts, restart the machine (under WSL2, run `wsl --shutdown` in Windows)";
        let silent = || GpuError::new(GpuProblem::Silent, fix);
        let (mut gpu, at) = self.last.clone().filter(|(_, at)| at.elapsed() < KEPT).ok_or_else(silent)?;
        last_values::mark_stale(&mut gpu, at.elapsed(), DRIVER_SILENT);
        Ok(gpu)
    }
}

/// The part that NVML may hang.
struct GpuSlot {
    source: Source,
    session: Option<Session>,
    /// The reason why there is no session.
    refusal: GpuError,
    /// When to open the GPU next; `None` while it answers.
    open_at: Option<Instant>,
}

impl GpuSlot {
    fn read(&mut self, watched: &Watched, now: Instant) -> Result<Gpu, GpuError> {
        if self.open_at.is_some_and(|at| now >= at) {
            self.reopen();
            self.open_at = Some(now + REOPEN);
        }
        let Some(session) = &mut self.session else { return Err(self.refusal.clone()) };
        let gpu = session.read(watched, now);
        self.open_at = if is_answering(&gpu) { None } else { self.open_at.or(Some(now + REOPEN)) };
        Ok(gpu)
    }

    fn reopen(&mut self) {
        if let Some(old) = self.session.take() {
            old.close();
        }
        match Session::open(self.source.nvml_path.as_deref(), self.source.gpu) {
            Ok(session) => self.session = Some(session),
            Err(refusal) => self.refusal = refusal,
        }
    }
}
