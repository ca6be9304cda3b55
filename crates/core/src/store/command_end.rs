//! How the command of an attempt ended, as its harness wrote it down before it told the keeper. A keeper reads it if the
//! harness died in between, or if the keeper before it died before it had stored the end.

use super::run_dir::RunDir;
use crate::protocol::worker::Event;
use crate::untrusted::file::{self, Limit};
use serde::{Deserialize, Serialize};
use std::{fs, io};

const FILE: &str = "command-end.json";

/// The end of a command that nobody asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CommandEnd {
    /// The token of its attempt.
    pub token: String,
    /// The newest step, and the last events of the attempt.
    pub events: Vec<Event>,
}

impl CommandEnd {
    /// Reads the end of the attempt with this token.
    #[must_use]
    pub fn of_attempt(run: &RunDir, token: &str) -> Option<Self> {
        let text = file::read(&run.file(FILE), Limit::Handwritten).ok()?;
        serde_json::from_slice::<Self>(&text).ok().filter(|end| end.token == token)
    }

    /// Writes the end into the directory of the run.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn record(&self, run: &RunDir) -> io::Result<()> {
        run.write_atomically(FILE, &serde_json::to_vec(self)?)
    }

    /// Takes back what was recorded too early.
    pub fn withdraw(run: &RunDir) {
        let _ = fs::remove_file(run.file(FILE));
    }
}

#[cfg(test)]
mod tests {
    use super::CommandEnd;
    use crate::protocol::worker::{CommandNews, DoneReason, Event};
    use crate::store::run_dir::RunDir;

    #[test]
    fn an_end_belongs_to_one_attempt() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("run.yaml"), "").unwrap();
        let run = RunDir::open(dir.path()).unwrap();
        assert_eq!(CommandEnd::of_attempt(&run, "a"), None);
        let ended = Event::Command { news: CommandNews::Ended { pid: 7, code: Some(0), signal: None, log_end: None } };
        let done = Event::Done { reason: DoneReason::Finished, step: 9 };
        let end = CommandEnd { token: "a".to_owned(), events: vec![ended, done] };
        end.record(&run).unwrap();
        assert_eq!(CommandEnd::of_attempt(&run, "b"), None);
        assert_eq!(CommandEnd::of_attempt(&run, "a"), Some(end));
        CommandEnd::withdraw(&run);
        assert_eq!(CommandEnd::of_attempt(&run, "a"), None);
    }
}
