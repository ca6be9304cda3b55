//! The exit codes of downshift, of workers and of runs. docs/src/exit-codes.md describes them.
//! [`FailureClass::exit_code`](super::class::FailureClass::exit_code) has those of faults.

use super::control::RunState;

/// The run is finished, or the command did what it was asked to.
pub const FINISHED: u8 = 0;
/// Any other failure.
pub const FAILURE: u8 = 1;
/// The command line is wrong, or another run is on the device.
pub const USAGE: u8 = 2;
/// The run, or its worker, was stopped on request.
pub const STOPPED: u8 = 3;
/// The run needs attention.
pub const NEEDS_PERSON: u8 = 4;
/// The run file is invalid or not approved, or no device is usable.
pub const CONFIG: u8 = 13;
/// No checkpoint is usable.
pub const CHECKPOINT: u8 = 14;
/// The data is unusable.
pub const DATA: u8 = 15;
/// A signal interrupted the run of a job: the next start of the job continues it.
pub const INTERRUPTED: u8 = 75;
/// The time to wait is over, as of `timeout`.
pub const TIMED_OUT: u8 = 124;

/// Returns the exit code of a run that is over in this state; `recorded` is the code that its keeper or its keeper's parent
/// recorded.
#[must_use]
pub fn of_state(state: RunState, recorded: Option<u8>) -> u8 {
    match state {
        RunState::Finished => FINISHED,
        RunState::Stopped => recorded.unwrap_or(STOPPED),
        RunState::NeedsPerson => recorded.unwrap_or(NEEDS_PERSON),
        RunState::Failed => recorded.unwrap_or(FAILURE),
        // No process was left to record how it ended; a recorded code is of an earlier end.
        _ => FAILURE,
    }
}

/// Returns the state of a run whose keeper's parent ended with this code.
#[must_use]
pub fn state_of(code: u8) -> RunState {
    match code {
        STOPPED => RunState::Stopped,
        CONFIG => RunState::Failed,
        _ => RunState::NeedsPerson,
    }
}
