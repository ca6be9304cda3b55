//! One line of the doctor's report.

use serde::Serialize;
use std::fmt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be, or not needed here.
    Ok,
    /// Training works; something will be worse than it could be.
    Warn,
    /// Training will not work, or not for long.
    Fail,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What.
    pub name: &'static str,
    /// How bad it is.
    pub verdict: Verdict,
    /// What was seen.
    pub text: String,
    /// What to do; empty where nothing is to be done.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fix: String,
}

impl Check {
    /// All is well.
    pub fn ok(name: &'static str, text: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, text: text.into(), fix: String::new() }
    }

    /// Could be better.
    pub fn warn(name: &'static str, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Warn, text: text.into(), fix: fix.into() }
    }

    /// Will not work.
    pub fn fail(name: &'static str, text: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Fail, text: text.into(), fix: fix.into() }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = match self.verdict {
            Verdict::Ok => "ok  ",
            Verdict::Warn => "warn",
            Verdict::Fail => "fail",
        };
        write!(formatter, "{verdict}  {:<15} {}", self.name, self.text)?;
        if self.fix.is_empty() { Ok(()) } else { write!(formatter, "\n      {:<15} → {}", "", self.fix) }
    }
}

/// Runs a program within a bound: its exit code and what it printed on stdout; none where it cannot
/// be started or takes longer.
pub fn run(command: &mut Command, limit: Duration) -> Option<(Option<i32>, String)> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let stdout = child.stdout.take();
    let reader = thread::spawn(move || stdout.map(std::io::read_to_string).and_then(Result::ok).unwrap_or_default());
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some((status.code(), reader.join().unwrap_or_default().trim().to_owned())),
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(10)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
}
