//! Stop, pause and restart: asked first where steps may be lost.

use super::actions::{open_box, refuse_action, send_request};
use super::message::Effect;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::{Mode, WorkerEnd};
use crate::protocol::control::{Request, RunState};

/// Sends the request, or asks first: always before a stop, else where steps would be repeated.
pub fn request(state: &mut State, kind: WorkerEnd) -> Vec<Effect> {
    match state.check_request(&kind.request()) {
        Err(why) => refuse_action(state, &why),
        Ok(cost) if kind == WorkerEnd::Stop || state.is_moving() && cost.is_some_and(|cost| !cost.saves_first()) => {
            open_box(state, Mode::WorkerEnd(kind))
        }
        Ok(_) => send(state, kind),
    }
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
    let notice = match kind {
        WorkerEnd::Stop => "stop requested",
        WorkerEnd::Restart => "restart requested",
        WorkerEnd::Pause if state.capability().saves_on_request() => {
            "pause requested: saves first, then frees the memory"
        }
        WorkerEnd::Pause => "pause requested: ends the command and frees the memory",
    };
    send_request(state, kind.request(), notice)
}
