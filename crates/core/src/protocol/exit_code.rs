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

/// All codes with their meanings, for the manual page.
pub const MEANINGS: [(u8, &str); 14] = [
    (FINISHED, "finished"),
    (FAILURE, "any other failure"),
    (USAGE, "wrong usage, or another run is on the device"),
    (STOPPED, "the run was stopped on request"),
    (NEEDS_PERSON, "the run needs attention: restarts used up, disk full"),
    (10, "out of device memory, if no restart is allowed"),
    (11, "device fault, if no restart is allowed"),
    (12, "more non-finite steps than the guard allows, if no restart is allowed"),
    (CONFIG, "invalid or unapproved configuration, or no usable device"),
    (CHECKPOINT, "no usable checkpoint"),
    (DATA, "unusable data"),
    (INTERRUPTED, "with --job: interrupted by a signal; start the job again"),
    (101, "panic, if no restart is allowed"),
    (TIMED_OUT, "the time that wait --timeout allows is over, and the run is not"),
];

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

#[cfg(test)]
mod tests {
    use super::MEANINGS;
    use crate::protocol::class::FailureClass;

    #[test]
    fn every_code_has_a_meaning_and_stands_in_the_book() {
        assert!(MEANINGS.is_sorted_by(|(before, _), (after, _)| before < after));
        for class in FailureClass::ALL {
            assert!(MEANINGS.iter().any(|(code, _)| *code == class.exit_code()), "{class}");
        }
        let book = include_str!("../../../../docs/src/exit-codes.md");
        for (code, meaning) in MEANINGS {
            let named = [format!("| {code} |"), format!("with {code} after")];
            assert!(named.iter().any(|words| book.contains(words)), "{code}: {meaning}");
        }
    }
}
