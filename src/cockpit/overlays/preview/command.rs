//! The consequences of a shift for a command: its script resumes only as well as it can itself.

use crate::config::command::{CommandSpec, Level};
use crate::protocol::control::{RunState, Status};
use crate::recipe::class::Class;

/// Returns the consequences in one line.
pub fn short_sentence(spec: &CommandSpec, status: &Status) -> String {
    format!("{}: {}", spec.level(), spec.shift_cost(status.step, status.durable_step))
}

/// Returns what the shift does to the experiment, what it costs, and whether that deserves a warning.
pub fn sentences(spec: &CommandSpec, status: &Status, class: Class) -> (String, String, bool) {
    let meaning = match (class, spec.level()) {
        (_, Level::Command) => "The command starts again with other settings.",
        (Class::A, _) => "Same problem: the script continues with settings that keep its numbers, up to rounding.",
        (Class::B | Class::C, _) => {
            "Different trajectory: the script continues with other settings; the loss curve may bend."
        }
    };
    let cost = spec.shift_cost(status.step, status.durable_step);
    let when = match status.state {
        RunState::Paused => "; takes effect on resume",
        RunState::BackingOff | RunState::AwaitingCard | RunState::AwaitingVram => "; takes effect at the next start",
        _ => "",
    };
    let when = if cost.is_possible() { when } else { "" };
    let warns = !cost.is_possible() || spec.level() == Level::Command;
    (meaning.to_owned(), format!("{}: {cost}{when}.", spec.level()), warns)
}
