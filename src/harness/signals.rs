//! The signals that a harness handles.

use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that a harness handles.
pub struct Signals {
    /// A child has exited.
    pub child: Signal,
    /// The harness is to end.
    pub terminate: Signal,
    /// The harness is to end.
    pub interrupt: Signal,
    /// A terminal is gone; nothing happens.
    pub hangup: Signal,
}

impl Signals {
    /// Starts to listen.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            child: signal(SignalKind::child())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits until a signal asks the harness to end.
    pub async fn asked_to_end(terminate: &mut Signal, interrupt: &mut Signal) {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    }
}
