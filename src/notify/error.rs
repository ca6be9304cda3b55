//! Why a message was not delivered. No variant holds a secret or a whole URL.

use std::io;
use std::path::{Path, PathBuf};

/// Why a message was not delivered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotifyError {
    /// The bell needs a tmux pane.
    #[error("the run was not started inside tmux")]
    NotInTmux,
    /// The pane is gone.
    #[error("the tmux pane of the run is closed")]
    PaneClosed,
    /// The pane's device is not a terminal.
    #[error("{} is not a terminal", .0.display())]
    NotATerminal(PathBuf),
    /// A program is missing.
    #[error("{0} is not installed")]
    ProgramMissing(&'static str),
    /// A program ended with an error.
    #[error("{program} failed ({status}); is there a desktop?")]
    ProgramFailed {
        /// The program.
        program: &'static str,
        /// Its exit status.
        status: String,
    },
    /// A program did not end in time.
    #[error("{program} did not answer within {seconds} s")]
    ProgramSilent {
        /// The program.
        program: &'static str,
        /// The limit.
        seconds: u64,
    },
    /// The operating system refused something.
    #[error("{subject}: {error}")]
    System {
        /// The file or program.
        subject: String,
        /// The system's error.
        error: String,
    },
    /// The server refused the message.
    #[error("the server answered {0}")]
    Refused(u16),
    /// The server redirects to another address: this server, or the same one if it is empty.
    #[error(
        "the server redirects to {}, which was not contacted; write the final address as `url:`",
        if .0.is_empty() { "another path" } else { .0 }
    )]
    Redirected(String),
    /// The server was not reached.
    #[error("{0}")]
    Unreachable(Unreachable),
    /// The variable that holds a secret is missing.
    #[error("the environment variable {0} is not set")]
    VariableMissing(String),
    /// The file that holds a secret is readable by others.
    #[error("others can read {path}: `chmod 600 {path}`", path = .0.display())]
    SecretReadable(PathBuf),
    /// The file that holds a secret holds something else.
    #[error("{} must hold one line, the secret", .0.display())]
    SecretFormat(PathBuf),
    /// A webhook cannot be used.
    #[error("{kind}: {error}")]
    Webhook {
        /// Its kind.
        kind: &'static str,
        /// The reason.
        error: Box<NotifyError>,
    },
}

impl NotifyError {
    /// Creates the error of the operating system about a program or a device.
    pub fn from_io(subject: impl Into<String>, error: &io::Error) -> Self {
        Self::System { subject: subject.into(), error: error.to_string() }
    }

    /// Creates the error of a file.
    pub fn from_file(path: &Path, error: &impl ToString) -> Self {
        Self::System { subject: path.display().to_string(), error: error.to_string() }
    }
}

/// Why a server was not reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unreachable {
    /// It did not answer in time.
    #[error("no answer in time")]
    Timeout,
    /// Its name is unknown.
    #[error("the host was not found")]
    HostNotFound,
    /// It refused the connection, or the network is down.
    #[error("no connection")]
    NoConnection,
    /// The connection broke.
    #[error("no connection ({0})")]
    Broken(io::ErrorKind),
    /// The URL is malformed.
    #[error("the URL is invalid")]
    BadUrl,
    /// Encryption failed.
    #[error("the connection is not secure")]
    NotSecure,
    /// Anything else.
    #[error("the request failed")]
    Other,
}

/// Why the user's settings cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Every mistake in the file, with its position.
    #[error("{}", .0.join("\n"))]
    Invalid(Vec<String>),
    /// The file cannot be read.
    #[error("{path}: {error}", path = .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: String,
    },
}
