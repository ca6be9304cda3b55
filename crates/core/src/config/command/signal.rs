//! The signals that may ask a script to save: those that a script can handle.

use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A signal that a script handles, such as USR1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SignalName {
    /// Free for any use; what most schedulers send before they end a job.
    #[serde(rename = "USR1", alias = "SIGUSR1")]
    Usr1,
    /// Free for any use.
    #[serde(rename = "USR2", alias = "SIGUSR2")]
    Usr2,
    /// The terminal is gone.
    #[serde(rename = "HUP", alias = "SIGHUP")]
    Hup,
    /// Ctrl-C.
    #[serde(rename = "INT", alias = "SIGINT")]
    Int,
    /// A request to end.
    #[serde(rename = "TERM", alias = "SIGTERM")]
    Term,
}

impl SignalName {
    /// Returns the signal to send.
    #[must_use]
    pub fn signal(self) -> Signal {
        match self {
            Self::Usr1 => Signal::USR1,
            Self::Usr2 => Signal::USR2,
            Self::Hup => Signal::HUP,
            Self::Int => Signal::INT,
            Self::Term => Signal::TERM,
        }
    }
}

impl fmt::Display for SignalName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Usr1 => "SIGUSR1",
            Self::Usr2 => "SIGUSR2",
            Self::Hup => "SIGHUP",
            Self::Int => "SIGINT",
            Self::Term => "SIGTERM",
        })
    }
}
