//! The capability of a run's worker, from its run file.

use crate::config::command::{CommandSpec, RestartPolicy};
use crate::protocol::capability::{Capability, Resumption};

/// Returns what the worker of a run can do, as far as its run file tells. `spec`: its command, if it has one.
#[must_use]
pub fn capability_of(spec: Option<&CommandSpec>) -> Capability {
    let Some(spec) = spec else { return Capability::BUILT_IN };
    Capability {
        resumes: if spec.resumes() { Resumption::Checkpoints } else { Resumption::Nothing },
        saves_on_signal: spec.save.is_some(),
        may_start_over: spec.restart == RestartPolicy::FromStart,
        may_end: true,
    }
}
