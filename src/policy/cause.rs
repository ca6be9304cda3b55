//! Why a worker ended: one class, and a sentence with the evidence.
//!
//! The worker's own report counts more than its exit code, and the exit code more than outside
//! evidence. One exception: a lost or broken GPU is the cause of everything else.

use super::event::{Evidence, Exit};
use super::response::{Response, is_outside, response};
use crate::protocol::worker::{Failed, FailureClass};

/// Why a worker ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Its class.
    pub class: FailureClass,
    /// Xid number.
    pub number: Option<u32>,
    /// Evidence, as a sentence.
    pub text: String,
    /// Key that identifies equal faults; none for faults that say nothing about the loaded checkpoint.
    pub kind: Option<String>,
}

impl Cause {
    /// Creates a cause found by other means than an exit.
    #[must_use]
    pub fn new(class: FailureClass, text: impl Into<String>) -> Self {
        Self { class, number: None, text: text.into(), kind: Some(class.to_string()) }
    }

    /// Derives the cause from the worker's report, its exit and the evidence seen meanwhile.
    #[must_use]
    pub fn of(failure: Option<&Failed>, exit: Exit, evidence: Option<&Evidence>) -> Self {
        let said = failure.map(|failed| failed.class).or_else(|| FailureClass::from_exit_code(exit.code?));
        let grave = |evidence: &&Evidence| matches!(response(evidence.class, evidence.number), Response::Stop(_));
        let mut text = describe(failure, said, exit);
        if let Some(evidence) = evidence {
            text = format!("{text} ({})", evidence.text);
        }
        if let Some(seen) = evidence.filter(grave).or(evidence.filter(|_| said.is_none())) {
            let outside = is_outside(seen.class);
            let kind = Some(seen.class.to_string()).filter(|_| !outside);
            return Self { class: seen.class, number: seen.number, text, kind };
        }
        let class = said.unwrap_or(match exit {
            Exit { signal: Some(4 | 6 | 7 | 8 | 11), .. } => FailureClass::Crash,
            Exit { signal: Some(_), .. } => FailureClass::Killed,
            Exit { code: Some(0 | 3), .. } => FailureClass::EarlyExit,
            Exit { .. } => FailureClass::Unknown,
        });
        Self { class, number: None, text, kind: kind(class, exit) }
    }
}

/// Returns the fault's key, or none for faults from outside the worker and for out-of-memory faults.
fn kind(class: FailureClass, exit: Exit) -> Option<String> {
    match (class, exit) {
        (FailureClass::DeviceOutOfMemory | FailureClass::Killed, _) => None,
        (FailureClass::Crash, Exit { signal: Some(signal), .. }) => Some(format!("signal {signal}")),
        (FailureClass::Unknown | FailureClass::EarlyExit, Exit { code: Some(code), .. }) => {
            Some(format!("exit code {code}"))
        }
        (class, _) => Some(class.to_string()),
    }
}

fn describe(failure: Option<&Failed>, class: Option<FailureClass>, exit: Exit) -> String {
    match (failure, class, exit) {
        (Some(failed), ..) => {
            let asked = if failed.injected { " (injected)" } else { "" };
            format!("{}{asked}: {}", failed.class, failed.message)
        }
        (None, Some(class), _) => format!("{class} (exit code {})", class.exit_code()),
        (None, None, Exit { signal: Some(9), .. }) => "killed by SIGKILL".to_owned(),
        (None, None, Exit { signal: Some(signal @ (4 | 6 | 7 | 8 | 11)), .. }) => format!("crash: {}", name(signal)),
        (None, None, Exit { signal: Some(signal), .. }) => format!("ended by signal {signal}"),
        (None, None, Exit { code: Some(0 | 3), .. }) => "it ended before the last step, unasked".to_owned(),
        (None, None, Exit { code, .. }) => format!("exit code {}", code.unwrap_or(-1)),
    }
}

/// Returns the name of a signal that a program raises through its own actions.
fn name(signal: i32) -> &'static str {
    match signal {
        4 => "SIGILL, an illegal instruction",
        6 => "SIGABRT, it gave up",
        7 => "SIGBUS, a bad memory access",
        8 => "SIGFPE, an arithmetic error",
        _ => "SIGSEGV, an illegal memory access",
    }
}

#[cfg(test)]
mod tests {
    use super::Cause;
    use crate::policy::event::{Evidence, Exit};
    use crate::protocol::worker::{Failed, FailureClass};

    fn told(class: FailureClass) -> Failed {
        Failed { class, message: "m".to_owned(), step: None, thread: None, injected: false }
    }

    fn noted(class: FailureClass, number: Option<u32>) -> Evidence {
        Evidence { class, number, text: "seen".to_owned() }
    }

    #[test]
    fn the_strongest_evidence_names_the_class() {
        use FailureClass::{
            Crash, DeviceFault, DeviceOutOfMemory, EarlyExit, GpuLost, HostOutOfMemory, Killed, Unknown, Xid,
        };
        let code = |code| Exit { code: Some(code), signal: None };
        let signal = |signal| Exit { code: None, signal: Some(signal) };
        let (said, seen) = (|class| Some(told(class)), |class, number| Some(noted(class, number)));
        for (failure, exit, evidence, wanted) in [
            (said(DeviceOutOfMemory), code(10), None, DeviceOutOfMemory),
            (said(DeviceOutOfMemory), signal(9), None, DeviceOutOfMemory),
            (None, code(10), None, DeviceOutOfMemory),
            (None, signal(9), None, Killed),
            (None, signal(15), None, Killed),
            (None, signal(9), seen(HostOutOfMemory, None), HostOutOfMemory),
            (None, signal(11), None, Crash),
            (None, signal(6), None, Crash),
            (None, code(0), None, EarlyExit),
            (None, code(77), None, Unknown),
            (None, code(77), seen(Xid, Some(31)), Xid),
            (said(DeviceFault), code(11), seen(Xid, Some(31)), DeviceFault),
            (said(DeviceFault), code(11), seen(Xid, Some(79)), Xid),
            (said(DeviceFault), code(11), seen(GpuLost, None), GpuLost),
        ] {
            let cause = Cause::of(failure.as_ref(), exit, evidence.as_ref());
            assert_eq!(cause.class, wanted, "{cause:?}");
            assert_eq!(cause.text.contains("seen"), evidence.is_some(), "{cause:?}");
        }
    }

    #[test]
    fn what_comes_from_outside_says_nothing_about_what_was_loaded() {
        let kind = |exit| Cause::of(None, exit, None).kind;
        assert_eq!(kind(Exit { code: None, signal: Some(9) }), None);
        assert_eq!(kind(Exit { code: Some(10), signal: None }), None);
        assert_eq!(kind(Exit { code: None, signal: Some(11) }), Some("signal 11".to_owned()));
        assert_eq!(kind(Exit { code: Some(101), signal: None }), Some("panic".to_owned()));
        assert_eq!(kind(Exit { code: Some(77), signal: None }), Some("exit code 77".to_owned()));
    }
}
