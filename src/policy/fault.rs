//! The fault that ended a worker, as far as the policy needs it: triage's class, a sentence, and a key that
//! identifies equal faults.

use crate::faults;
use crate::faults::response::Response;
use crate::protocol::cause::{Cause, Damage};
use crate::protocol::exit::Exit;
use crate::protocol::worker::{Failed, FailureClass};
use std::fmt;

/// The fault that ended a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// Its class.
    pub class: FailureClass,
    /// Xid number.
    pub xid: Option<u32>,
    /// The event, as a sentence.
    pub text: String,
    /// Key that identifies equal faults; none for faults that say nothing about the loaded checkpoint.
    pub kind: Option<String>,
    /// Damage that no restart repairs.
    pub damage: Option<Damage>,
    /// Advice for the user.
    pub advice: String,
    /// Its first occurrence may be transient, although a restart helps few failures of its class.
    pub may_pass: bool,
    /// The user ended the worker at its terminal.
    pub by_user: bool,
}

impl Fault {
    /// Creates a fault that the policy found itself.
    #[must_use]
    pub fn new(class: FailureClass, text: impl Into<String>) -> Self {
        Self {
            class,
            xid: None,
            text: text.into(),
            kind: Some(class.to_string()),
            damage: None,
            advice: faults::advice(class, None).to_owned(),
            may_pass: false,
            by_user: false,
        }
    }

    /// Creates the fault of a worker that ended unasked, from triage's verdict. The text is the worker's own
    /// report, if there is one.
    #[must_use]
    pub fn from_verdict(failed: Option<&Failed>, exit: Exit, cause: &Cause) -> Self {
        let text = match failed {
            Some(failed) => {
                let injected = if failed.injected { " (injected)" } else { "" };
                let text = format!("{}{injected}: {}", failed.class, failed.message);
                if failed.class == cause.class { text } else { format!("{} after {text}", cause.summary()) }
            }
            None => cause.summary(),
        };
        let known = Some(&cause.advice).filter(|advice| !advice.is_empty());
        Self {
            xid: cause.xid,
            text,
            kind: fault_kind(cause.class, exit),
            damage: cause.damage,
            advice: known.cloned().unwrap_or_else(|| faults::advice(cause.class, cause.xid).to_owned()),
            may_pass: cause.may_pass,
            by_user: cause.by_user,
            ..Self::new(cause.class, "")
        }
    }

    /// Returns the response to the fault.
    #[must_use]
    pub fn response(&self) -> Response {
        faults::response(self.class, self.xid, self.damage)
    }

    /// Returns triage's verdict in place of this fault if the GPU was the cause, or this fault.
    #[must_use]
    pub fn or_gpu_failure(self, exit: Exit, cause: &Cause) -> Self {
        match cause.class {
            FailureClass::Xid | FailureClass::GpuLost => Self::from_verdict(None, exit, cause),
            _ => self,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// Returns the fault's key, or none for faults from outside the worker and for out-of-memory faults.
fn fault_kind(class: FailureClass, exit: Exit) -> Option<String> {
    match (class, exit) {
        (FailureClass::DeviceOutOfMemory, _) => None,
        (class, _) if faults::of_class(class).outside => None,
        (FailureClass::Crash, Exit { signal: Some(signal), .. }) => Some(format!("signal {signal}")),
        (FailureClass::Unknown | FailureClass::EarlyExit, Exit { code: Some(code), .. }) => {
            Some(format!("exit code {code}"))
        }
        (class, _) => Some(class.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::Fault;
    use crate::protocol::cause::Cause;
    use crate::protocol::exit::Exit;
    use crate::protocol::worker::{Failed, FailureClass};

    fn verdict(class: FailureClass, evidence: &str) -> Cause {
        Cause::new(class, vec![evidence.to_owned()])
    }

    #[test]
    fn the_verdict_names_the_class_and_the_worker_words_it() {
        let (class, message) = (FailureClass::DeviceFault, "an illegal memory access".to_owned());
        let failed = Failed { class, message, step: None, thread: None, injected: true };
        let text = |failed, cause: &Cause| Fault::from_verdict(failed, Exit::with_code(11), cause).text;
        let agreed = text(Some(&failed), &verdict(FailureClass::DeviceFault, "seen"));
        assert_eq!(agreed, "device fault (injected): an illegal memory access");
        let refined = text(Some(&failed), &verdict(FailureClass::Xid, "Xid 79: gone"));
        assert_eq!(refined, "driver error (Xid): Xid 79: gone after device fault (injected): an illegal memory access");
        assert_eq!(text(None, &verdict(FailureClass::Killed, "killed by SIGKILL")), "killed by SIGKILL");
        assert_eq!(text(None, &verdict(FailureClass::DiskFull, "exit code 1")), "disk full: exit code 1");
    }

    #[test]
    fn a_hang_stays_one_unless_the_gpu_failed() {
        let hang = Fault::new(FailureClass::Hang, "no progress");
        let after = |class| hang.clone().or_gpu_failure(Exit::by_signal(9), &verdict(class, "seen")).class;
        assert_eq!(after(FailureClass::Killed), FailureClass::Hang);
        assert_eq!(after(FailureClass::Xid), FailureClass::Xid);
    }

    #[test]
    fn faults_from_outside_do_not_implicate_the_checkpoint() {
        let kind = |class, exit| Fault::from_verdict(None, exit, &verdict(class, "seen")).kind;
        assert_eq!(kind(FailureClass::Killed, Exit::by_signal(9)), None);
        assert_eq!(kind(FailureClass::HostOutOfMemory, Exit::by_signal(9)), None);
        assert_eq!(kind(FailureClass::DeviceOutOfMemory, Exit::with_code(10)), None);
        assert_eq!(kind(FailureClass::Crash, Exit::by_signal(11)).as_deref(), Some("signal 11"));
        assert_eq!(kind(FailureClass::Panic, Exit::with_code(101)).as_deref(), Some("panic"));
        assert_eq!(kind(FailureClass::Unknown, Exit::with_code(77)).as_deref(), Some("exit code 77"));
    }
}
