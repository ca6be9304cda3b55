//! The signals on which a followed run stops.

use rustix::process::Signal;
use std::io;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::time::timeout;

/// The signals on which a followed run stops.
pub struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
    /// A batch scheduler's notice ahead of the time limit.
    notice: Option<unix::Signal>,
}

impl Signals {
    /// Starts to listen; for a scheduler's notice only in a job, since SIGUSR1 otherwise ends a process.
    pub fn listen(in_job: bool) -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            notice: in_job.then(|| signal(SignalKind::user_defined1())).transpose()?,
        })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) -> Signal {
        let notice = async {
            match &mut self.notice {
                Some(notice) => notice.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Signal::INT,
            _ = self.terminate.recv() => Signal::TERM,
            _ = notice => Signal::USR1,
        }
    }
}

/// The signals to the process of a job, from its beginning on: before this process listens, the notice of a scheduler would
/// end it, and the first process of a container ignores SIGTERM.
pub struct JobSignals {
    pub(super) runtime: Runtime,
    pub(super) signals: Signals,
}

impl JobSignals {
    /// Starts to listen.
    pub fn listen() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let signals = {
            let _entered = runtime.enter();
            Signals::listen(true)?
        };
        Ok(Self { runtime, signals })
    }

    /// Returns a signal that has arrived.
    pub fn arrived(&mut self) -> Option<Signal> {
        // The runtime looks for signals while it sleeps.
        self.next_within(Duration::from_millis(1))
    }

    /// Sleeps until a signal arrives, for this time at most.
    pub fn next_within(&mut self, limit: Duration) -> Option<Signal> {
        let Self { runtime, signals } = self;
        runtime.block_on(async { timeout(limit, signals.next()).await.ok() })
    }
}
