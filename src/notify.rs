//! Notifies the user: the bell, the desktop, webhooks.
//!
//! ```text
//! keeper ─ raise(key, message) ─▶ Limit ─▶ queue ─▶ outbox thread ─▶ bell, desktop, webhooks
//!        ◀─ troubles ──────────────────────────────┘
//! ```
//! The keeper never waits for a channel. A channel that fails is reported once, and the others continue.
//! Secrets are read when the outbox starts and appear in no message.

mod bell;
mod desktop;
mod http;
mod limit;
mod outbox;
pub mod secret;
mod webhook;

pub use limit::Limit;
pub use outbox::{Outbox, channels};

use crate::config::around::{Least, Notify};
use crate::protocol::worker::Level;
use crate::untrusted::file;
use crate::untrusted::text;
use std::path::PathBuf;

/// A notification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The run's name, or `downshift` itself.
    pub run: String,
    /// Its severity.
    pub level: Level,
    /// A short title.
    pub title: String,
    /// One or two sentences.
    pub text: String,
}

impl Message {
    /// Returns the message without control characters that a terminal or a desktop would interpret.
    fn printable(&self) -> Self {
        let line = |words: &str| text::line(words).into_owned();
        let text = text::lines(&self.text).into_owned();
        Self { run: line(&self.run), level: self.level, title: line(&self.title), text }
    }

    /// Reports whether the message reaches this level.
    #[must_use]
    pub fn reaches(&self, least: Least) -> bool {
        let rank = match self.level {
            Level::Info => Least::Info,
            Level::Warn => Least::Warn,
            Level::Error => Least::Error,
        };
        rank >= least
    }
}

/// Returns the path of the user's settings for all runs: `~/.config/downshift/notify.yaml`.
#[must_use]
pub fn user_file() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = named("XDG_CONFIG_HOME").or_else(|| Some(named("HOME")?.join(".config")))?;
    Some(base.join("downshift/notify.yaml"))
}

/// Returns the settings of a run: its own, else the user's for all runs, else the shipped ones.
///
/// # Errors
/// Returns an error when the user's file is invalid: every mistake in it.
pub fn settings(of_run: Option<&Notify>) -> Result<Notify, String> {
    if let Some(own) = of_run {
        return Ok(own.clone());
    }
    let Some(path) = user_file() else { return Ok(Notify::default()) };
    match file::read_text(&path, file::Limit::Handwritten) {
        Ok(text) => Notify::read(&path.display().to_string(), &text).map_err(|lines| lines.join("\n")),
        Err(error) if error.is_missing() => Ok(Notify::default()),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}
