//! Reads everything once. A GPU that gives nothing is opened again, rarely: opening is expensive,
//! and a sick driver is best left alone.

use super::host::HostReader;
use super::nvml::{Session, answers};
use crate::protocol::probe::{Gpu, Reading};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time between two attempts to open a GPU that gives nothing.
pub const REOPEN: Duration = Duration::from_secs(30);

/// What to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The run directory, for the free space of its file system.
    pub run_dir: PathBuf,
    /// NVML's index of the GPU.
    pub gpu: u32,
    /// The NVML library, where it is not to be searched for.
    pub nvml_path: Option<PathBuf>,
}

/// Reads a GPU and the machine around it.
pub struct Reader {
    source: Source,
    host: HostReader,
    session: Option<Session>,
    /// Why there is no session.
    refusal: String,
    /// When to open the GPU next; none while it answers.
    open_at: Option<Instant>,
}

impl Reader {
    /// The run directory.
    #[must_use]
    pub fn run_dir(&self) -> &std::path::Path {
        &self.source.run_dir
    }

    /// A reader that opens NVML at the first reading from `now` on.
    #[must_use]
    pub fn new(source: Source, now: Instant) -> Self {
        let host = HostReader::new(source.run_dir.clone());
        Self { source, host, session: None, refusal: String::new(), open_at: Some(now) }
    }

    /// One reading, with the shares of `worker`. May hang as long as NVML hangs.
    pub fn read(&mut self, worker: Option<u32>, now: Instant) -> Reading {
        Reading { gpu: self.gpu(worker, now), host: self.host.read(worker) }
    }

    fn gpu(&mut self, worker: Option<u32>, now: Instant) -> Result<Gpu, String> {
        if self.open_at.is_some_and(|at| now >= at) {
            self.open();
            self.open_at = Some(now + REOPEN);
        }
        let Some(session) = &mut self.session else { return Err(self.refusal.clone()) };
        let gpu = session.read(worker, now);
        self.open_at = if answers(&gpu) { None } else { self.open_at.or(Some(now + REOPEN)) };
        Ok(gpu)
    }

    fn open(&mut self) {
        if let Some(old) = self.session.take() {
            old.close();
        }
        match Session::open(self.source.nvml_path.as_deref(), self.source.gpu) {
            Ok(session) => self.session = Some(session),
            Err(refusal) => self.refusal = refusal,
        }
    }
}
