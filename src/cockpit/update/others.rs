//! The list of runs: navigation, marking, opening.

use super::{Effect, say};
use crate::cockpit::state::State;
use crate::cockpit::state::runs::{MARKS, RunRow};

/// Stores the list of runs.
pub fn listed(state: &mut State, rows: Vec<RunRow>) -> Vec<Effect> {
    let here = state.run_name().to_owned();
    state.runs.list(rows, &here);
    let mut effects = vec![Effect::Redraw];
    effects.extend(wanted(state));
    effects
}

/// Requests the config of the run under the cursor if it is not loaded yet.
fn wanted(state: &State) -> Option<Effect> {
    let row = state.runs.chosen()?;
    let known = row.name == state.run_name() || state.runs.read.contains_key(&row.name);
    (!known).then(|| Effect::LoadOther(row.name.clone(), false))
}

/// Moves the cursor; positive is up.
pub fn scroll(state: &mut State, lines: isize) -> Vec<Effect> {
    let most = state.runs.rows.as_ref().map_or(0, Vec::len).saturating_sub(1);
    state.runs.chosen = state.runs.chosen.saturating_add_signed(-lines).min(most);
    let mut effects = vec![Effect::Redraw];
    effects.extend(wanted(state));
    effects
}

/// Marks the run under the cursor.
pub fn mark(state: &mut State) -> Vec<Effect> {
    let Some(name) = state.runs.chosen().map(|row| row.name.clone()) else { return Vec::new() };
    if name == state.run_name() {
        say(state, "this run is on the chart already; mark another one", true);
        return vec![Effect::Redraw];
    }
    if state.runs.marked.len() >= MARKS && !state.runs.marked.contains(&name) {
        say(state, format!("{MARKS} runs are marked already; take a mark away first"), true);
        return vec![Effect::Redraw];
    }
    let needed = state.runs.toggle(&name);
    let mut effects = vec![Effect::Redraw];
    effects.extend(needed.then_some(Effect::LoadOther(name, true)));
    effects
}

/// Opens the run under the cursor.
pub fn open(state: &mut State) -> Vec<Effect> {
    match state.runs.chosen() {
        Some(row) if row.name == state.run_name() => {
            say(state, "this is the run you are looking at", false);
            vec![Effect::Redraw]
        }
        Some(row) if row.status.is_none() => {
            let text = format!("{} never began; there is nothing to look at", row.name);
            say(state, text, true);
            vec![Effect::Redraw]
        }
        Some(row) => vec![Effect::Open(row.name.clone())],
        None => Vec::new(),
    }
}
