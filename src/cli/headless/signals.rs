//! The signals on which a followed run stops.

use rustix::process::Signal;
use std::io;
use tokio::signal::unix::{self, SignalKind, signal};

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
