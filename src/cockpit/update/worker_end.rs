//! Stop, pause and restart: asked first where steps may be lost.

use super::actions::{open_box, refuse_action, send_request};
use super::message::Effect;
use crate::cockpit::overlays::preview::cost_now;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::{Mode, WorkerEnd};
use crate::config::command::cost::ShiftCost;
use crate::protocol::control::{Request, RunState};

/// Sends the request, or asks first: always before a stop, else where steps would be repeated.
pub fn request(state: &mut State, kind: WorkerEnd) -> Vec<Effect> {
    if let Some(why) = state.request_refusal() {
        return refuse_action(state, &why);
    }
    if kind == WorkerEnd::Stop || repeats_steps(state) {
        return open_box(state, Mode::WorkerEnd(kind));
    }
    send(state, kind)
}

/// Resumes a paused run, else requests a pause.
pub fn pause_or_resume(state: &mut State) -> Vec<Effect> {
    match state.run_state() {
        Some(RunState::Paused) => send_request(state, Request::Resume, "resume requested"),
        _ => request(state, WorkerEnd::Pause),
    }
}

/// Sends the request that the open box asks about.
pub fn confirm(state: &mut State, kind: WorkerEnd) -> Vec<Effect> {
    state.screen.mode = Mode::Normal;
    send(state, kind)
}

fn send(state: &mut State, kind: WorkerEnd) -> Vec<Effect> {
    match kind {
        WorkerEnd::Stop => send_request(state, Request::Stop, "stop requested"),
        WorkerEnd::Pause => send_request(state, Request::Pause, pause_notice(state)),
        WorkerEnd::Restart => send_request(state, Request::Restart, "restart requested"),
    }
}

fn pause_notice(state: &State) -> &'static str {
    match command_cost(state) {
        None | Some(ShiftCost::SavesFirst | ShiftCost::AtMostOneStep) => {
            "pause requested: saves first, then frees the memory"
        }
        Some(ShiftCost::BackTo { .. } | ShiftCost::Everything { .. }) => {
            "pause requested: ends the command and frees the memory"
        }
        Some(ShiftCost::Refused(_)) => "pause requested",
    }
}

/// Reports whether an end of the worker repeats steps. The keeper refuses one that would lose them for good.
fn repeats_steps(state: &State) -> bool {
    state.status().is_some_and(|status| status.state.is_moving())
        && matches!(command_cost(state), Some(ShiftCost::BackTo { .. } | ShiftCost::Everything { .. }))
}

/// Returns what an end of the command costs now; none for a built-in task, which saves first.
fn command_cost(state: &State) -> Option<ShiftCost> {
    state.command.as_ref().zip(state.status()).map(|(spec, status)| cost_now(spec, status))
}
