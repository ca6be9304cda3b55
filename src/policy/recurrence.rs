//! Failures that end the run once they come back: mistakes in the script, and causes that a restart seldom helps but that
//! may pass, such as a network that fails for a moment.

use super::fault::Fault;
use super::machine::Policy;
use crate::faults::response::Response;
use crate::protocol::worker::FailureClass;
use serde::{Deserialize, Serialize};

/// Such a failure of the last worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recurring {
    /// The text of an exception, or else the class.
    pub text: String,
    /// The newest step; 0 before the first.
    pub step: u64,
    /// The checkpoint that the worker had loaded.
    pub loaded: Option<u64>,
    /// The newest checkpoint.
    #[serde(default)]
    pub durable: Option<u64>,
}

impl Recurring {
    /// Reports whether this failure is the one before, once more. An exception, and a checkpoint that cannot be read, must
    /// also come back after another checkpoint: the one that was loaded may be to blame.
    fn is_same(&self, before: &Self, class: FailureClass) -> bool {
        let is_at_begin = self.step == 0 && self.loaded.is_none();
        let is_certain = match class {
            FailureClass::Exception | FailureClass::Checkpoint => is_at_begin || self.loaded != before.loaded,
            _ => self.durable <= before.durable,
        };
        self.text == before.text && self.step == before.step && is_certain
    }
}

impl Policy {
    /// Records a failure that ends the run once it comes back. Reports whether it has come back.
    pub(super) fn comes_back(&mut self, fault: &Fault) -> bool {
        let text = match fault.class {
            FailureClass::Exception => Some(fault.text.clone()),
            class => fault.may_pass.then(|| class.to_string()),
        };
        let (step, position) = (self.position.step.unwrap_or(0), &self.position);
        let now = text.map(|text| Recurring { text, step, loaded: position.loaded, durable: position.durable });
        let before = std::mem::replace(&mut self.ledger.recurring, now);
        self.ledger.recurring.as_ref().zip(before).is_some_and(|(now, before)| now.is_same(&before, fault.class))
    }
}

/// Returns the response to a cause that may pass: one restart, before the response of its class.
pub(super) fn response_in_time(response: Response, fault: &Fault, comes_back: bool) -> Response {
    if response.ends_run() && fault.may_pass && !comes_back { Response::Again } else { response }
}

#[cfg(test)]
mod tests {
    use super::response_in_time;
    use crate::faults::response;
    use crate::policy::fault::Fault;
    use crate::protocol::worker::FailureClass;

    #[test]
    fn every_class_that_ends_a_run_does_so_at_once_unless_it_may_pass() {
        use FailureClass::{Checkpoint, Config, Data, DiskFull, Driver, GpuLost};
        for class in FailureClass::ALL {
            let answer = response(class, None, None);
            let ends = |may_pass: bool, comes_back: bool| {
                let fault = Fault { may_pass, ..Fault::new(class, "x") };
                response_in_time(answer, &fault, comes_back).ends_run()
            };
            let is_final = matches!(class, Checkpoint | Config | Data | DiskFull | Driver | GpuLost);
            assert_eq!(ends(false, false), is_final, "{class}: at its first occurrence");
            assert!(!ends(true, false), "{class}: if it may pass");
            assert_eq!(ends(true, true), is_final, "{class}: once it comes back");
        }
    }
}
