//! The fault that ended a worker, as far as the policy needs it: triage's class, a sentence, and a key that
//! identifies equal faults.

use super::response::is_outside;
use super::xid::{Answer, answer_xid};
use crate::protocol::cause::Cause;
use crate::protocol::exit::Exit;
use crate::protocol::worker::{Failed, FailureClass};

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
}

impl Fault {
    /// Creates a fault that the policy found itself.
    #[must_use]
    pub fn new(class: FailureClass, text: impl Into<String>) -> Self {
        Self { class, xid: None, text: text.into(), kind: Some(class.to_string()) }
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
        let (class, xid) = class_to_answer(failed, exit, cause);
        Self { class, xid, text, kind: fault_kind(class, exit) }
    }

    /// Returns triage's verdict in place of this fault if the GPU was the cause, or this fault.
    #[must_use]
    pub fn or_gpu_failure(self, exit: Exit, cause: &Cause) -> Self {
        match cause.class {
            FailureClass::Xid if !stops_run(cause) => self,
            FailureClass::Xid | FailureClass::GpuLost => Self::from_verdict(None, exit, cause),
            _ => self,
        }
    }
}

/// Reports whether no rung helps against the Xid of this verdict.
fn stops_run(cause: &Cause) -> bool {
    cause.xid.is_none_or(|xid| matches!(answer_xid(xid), Answer::Stop(_)))
}

/// Returns the class that decides the response, and the Xid if it does. A worker that reported its own failure is
/// answered by that report, unless the GPU is beyond help: many Xid errors only accompany a failure. A panic stays
/// one where its message looks final, because an external trainer may panic over something that passes.
fn class_to_answer(failed: Option<&Failed>, exit: Exit, cause: &Cause) -> (FailureClass, Option<u32>) {
    let reported =
        failed.map(|failed| failed.class).or_else(|| exit.contract_code().and_then(FailureClass::from_exit_code));
    match (cause.class, reported) {
        (FailureClass::Xid, _) if stops_run(cause) => (FailureClass::Xid, cause.xid),
        (FailureClass::Xid, Some(class)) if failed.is_some() => (class, None),
        (FailureClass::Xid, _) if cause.xid.map(answer_xid) == Some(Answer::Note) => {
            let class = match exit.signal {
                Some(_) if exit.is_crash() => FailureClass::Crash,
                Some(_) => FailureClass::Killed,
                None => reported.unwrap_or(FailureClass::Unknown),
            };
            (class, None)
        }
        (FailureClass::Config | FailureClass::Data | FailureClass::Checkpoint, Some(FailureClass::Panic)) => {
            (FailureClass::Panic, None)
        }
        (class, _) => (class, cause.xid),
    }
}

/// Returns the fault's key, or none for faults from outside the worker and for out-of-memory faults.
fn fault_kind(class: FailureClass, exit: Exit) -> Option<String> {
    match (class, exit) {
        (FailureClass::DeviceOutOfMemory, _) => None,
        (class, _) if is_outside(class) => None,
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
    fn an_xid_overrules_a_report_only_if_no_rung_helps() {
        use FailureClass::{Config, DeviceFault, DeviceOutOfMemory, Hang, Killed, Panic, Xid};
        let xid = |number| Cause { xid: Some(number), ..verdict(Xid, "seen") };
        let reported = |class, cause: &Cause| {
            let failed = Failed { class, message: String::new(), step: None, thread: None, injected: false };
            let fault = Fault::from_verdict(Some(&failed), Exit::with_code(11), cause);
            (fault.class, fault.xid)
        };
        for number in [31, 32, 61, 94, 9999] {
            assert_eq!(reported(DeviceFault, &xid(number)), (DeviceFault, None), "{number}");
            assert_eq!(reported(DeviceOutOfMemory, &xid(number)), (DeviceOutOfMemory, None), "{number}");
        }
        assert_eq!(reported(DeviceFault, &xid(79)), (Xid, Some(79)));
        let silent = |exit, number| Fault::from_verdict(None, exit, &xid(number)).class;
        assert_eq!(silent(Exit::by_signal(9), 9999), Killed);
        assert_eq!(silent(Exit::by_signal(9), 31), Xid);
        let hang = |number| Fault::new(Hang, "no progress").or_gpu_failure(Exit::by_signal(9), &xid(number)).class;
        assert_eq!((hang(61), hang(79)), (Hang, Xid));
        assert_eq!(reported(Panic, &verdict(Config, "seen")), (Panic, None));
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
