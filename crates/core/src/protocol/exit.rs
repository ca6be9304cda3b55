//! How a process ended, and its description.

use std::borrow::Cow;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// How a process ended. Both fields are none when unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exit {
    /// Exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// The code is a command's own, and has no meaning in the worker contract.
    pub of_command: bool,
}

impl Exit {
    /// Creates the exit with a code.
    #[must_use]
    pub const fn with_code(code: i32) -> Self {
        Self { code: Some(code), signal: None, of_command: false }
    }

    /// Creates the exit by a signal.
    #[must_use]
    pub const fn by_signal(signal: i32) -> Self {
        Self { code: None, signal: Some(signal), of_command: false }
    }

    /// Creates the exit of a command. A shell that runs the program reports the signal that ended it as 128 + its
    /// number.
    #[must_use]
    pub fn of_command(code: Option<i32>, signal: Option<i32>) -> Self {
        let passed_on = code.map(|code| code - 128).filter(|number| (1..=31).contains(number));
        let code = code.filter(|_| passed_on.is_none());
        Self { code, signal: signal.or(passed_on), of_command: true }
    }

    /// Returns the code, if it has a meaning in the worker contract.
    #[must_use]
    pub fn contract_code(self) -> Option<i32> {
        self.code.filter(|code| !self.of_command || *code == 0)
    }

    /// Reports whether the program raised the signal by an error of its own.
    #[must_use]
    pub fn is_crash(self) -> bool {
        self.signal.is_some_and(|signal| crash_meaning(signal).is_some())
    }
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Self {
        Self { code: status.code(), signal: status.signal(), of_command: false }
    }
}

/// Describes the end of a worker that was not asked to end: 0 and 3 are codes of a worker that ends as intended.
impl fmt::Display for Exit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.signal, self.code) {
            (Some(9), _) => formatter.write_str("killed by SIGKILL"),
            (Some(signal), _) => match crash_meaning(signal) {
                Some(meaning) => write!(formatter, "crashed with {} ({meaning})", signal_name(signal)),
                None => write!(formatter, "ended by {}", signal_name(signal)),
            },
            (None, Some(code)) if matches!(self.contract_code(), Some(0 | 3)) => {
                write!(formatter, "exit code {code} before the last step")
            }
            (None, Some(code)) => write!(formatter, "exit code {code}"),
            (None, None) if self.of_command => formatter.write_str("gone, with an unknown exit code"),
            (None, None) => formatter.write_str("unknown exit"),
        }
    }
}

/// Returns the name of a signal.
#[must_use]
pub fn signal_name(signal: i32) -> Cow<'static, str> {
    Cow::Borrowed(match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return Cow::Owned(format!("signal {signal}")),
    })
}

/// Returns the meaning of a signal that a program raises by an error of its own.
fn crash_meaning(signal: i32) -> Option<&'static str> {
    Some(match signal {
        4 => "illegal instruction",
        5 => "breakpoint or failed check",
        6 => "aborted itself",
        7 => "bad memory access",
        8 => "arithmetic error",
        11 => "invalid memory access",
        31 => "forbidden system call",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::Exit;

    #[test]
    fn every_exit_has_its_words() {
        for (exit, words, is_crash) in [
            (Exit::by_signal(9), "killed by SIGKILL", false),
            (Exit::by_signal(15), "ended by SIGTERM", false),
            (Exit::by_signal(11), "crashed with SIGSEGV (invalid memory access)", true),
            (Exit::by_signal(31), "crashed with SIGSYS (forbidden system call)", true),
            (Exit::by_signal(64), "ended by signal 64", false),
            (Exit::with_code(0), "exit code 0 before the last step", false),
            (Exit::with_code(77), "exit code 77", false),
            (Exit::of_command(Some(137), None), "killed by SIGKILL", false),
            (Exit::of_command(Some(0), None), "exit code 0 before the last step", false),
            (Exit::of_command(Some(3), None), "exit code 3", false),
            (Exit::default(), "unknown exit", false),
        ] {
            assert_eq!((exit.to_string().as_str(), exit.is_crash()), (words, is_crash));
        }
    }
}
