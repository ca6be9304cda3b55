//! Signals that end a measurement: it ends what it has started and removes its folder first.

use super::Unmeasured;
use crate::cli::Failure;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The newest signal that asked this program to end.
pub struct Interruption(Arc<AtomicUsize>);

impl Interruption {
    /// Starts to listen, for the rest of this process.
    pub fn listen() -> io::Result<Self> {
        let asked = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register_usize(signal, Arc::clone(&asked), signal.unsigned_abs() as usize)?;
        }
        Ok(Self(asked))
    }

    /// Reports whether a signal has come.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Fails if a signal has come, with the exit code that a shell expects.
    pub fn check(&self) -> Result<(), Unmeasured> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => {
                let message = "interrupted; the command and everything it started is ended";
                Err(Unmeasured::Interrupted(Failure::new(128 + signal as u8, message)))
            }
        }
    }
}
