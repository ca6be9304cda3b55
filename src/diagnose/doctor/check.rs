//! One line of the doctor's report.

use crate::untrusted::child::wait_within;
use serde::Serialize;
use std::fmt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Fine, or not needed here.
    Ok,
    /// Training works, but something could be better.
    Warn,
    /// Training will fail, now or soon.
    Fail,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// The name of the check.
    pub name: &'static str,
    /// Its severity.
    pub verdict: Severity,
    /// The finding.
    pub text: String,
    /// The fix; empty if none is needed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fix: String,
}

impl Check {
    /// Creates a passed check.
    pub fn ok(name: &'static str, text: impl Into<String>) -> Self {
        Self { name, verdict: Severity::Ok, text: text.into(), fix: String::new() }
    }

    /// Creates a warning.
    pub fn warn(name: &'static str, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, verdict: Severity::Warn, text: text.into(), fix: fix.into() }
    }

    /// Creates a failure.
    pub fn fail(name: &'static str, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, verdict: Severity::Fail, text: text.into(), fix: fix.into() }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Severity::Ok => "ok  ",
            Severity::Warn => "warn",
            Severity::Fail => "fail",
        };
        write!(formatter, "{verdict}  {:<15} {}", self.name, self.text)?;
        if self.fix.is_empty() { Ok(()) } else { write!(formatter, "\n      {:<15} → {}", "", self.fix) }
    }
}

/// Runs a program with a time limit and returns its exit code and stdout; none if it cannot be started or
/// exceeds the limit.
pub fn run_program(command: &mut Command, limit: Duration) -> Option<(Option<i32>, String)> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let stdout = child.stdout.take();
    let reader = thread::spawn(move || stdout.map(std::io::read_to_string).and_then(Result::ok).unwrap_or_default());
    let status = wait_within(&mut child, limit).ok()??;
    Some((status.code(), reader.join().unwrap_or_default().trim().to_owned()))
}
