//! The list of runs: navigation, marking, opening.

use super::message::Effect;
use crate::cockpit::quantity::{Quantity, Source};
use crate::cockpit::state::State;
use crate::cockpit::state::runs::{MARKS, RunRow};

/// Stores the list of runs.
pub fn replace_list(state: &mut State, rows: Vec<RunRow>) -> Vec<Effect> {
    let here = state.run_name().to_owned();
    state.runs.replace_list(rows, &here);
    let mut effects = vec![Effect::Redraw];
    effects.extend(load_chosen_run(state));
    effects
}

/// Requests the config of the run under the cursor if it is not loaded yet.
fn load_chosen_run(state: &State) -> Option<Effect> {
    let row = state.runs.chosen()?;
    let known = row.name == state.run_name() || state.runs.read.contains_key(&row.name);
    (!known).then(|| Effect::LoadOther(row.name.clone(), false))
}

/// Moves the cursor; positive is up.
pub fn move_cursor(state: &mut State, lines: isize) -> Vec<Effect> {
    let most = state.runs.rows.as_ref().map_or(0, Vec::len).saturating_sub(1);
    state.runs.chosen = state.runs.chosen.saturating_add_signed(-lines).min(most);
    let mut effects = vec![Effect::Redraw];
    effects.extend(load_chosen_run(state));
    effects
}

/// Compares the next quantity, of those that runs can be compared by: measurements of steps and of evaluations.
pub fn next_compared(state: &mut State, direction: isize) -> Vec<Effect> {
    let is_compared = |quantity: &Quantity| {
        matches!(quantity.source(), Source::Steps(_) | Source::Named(_) | Source::Evaluations | Source::EvalNamed(_))
    };
    let all: Vec<Quantity> = state.quantities().into_iter().filter(is_compared).collect();
    let here = all.iter().position(|quantity| *quantity == state.screen.compared).unwrap_or(0);
    state.screen.compared = all[here.saturating_add_signed(direction).min(all.len() - 1)];
    vec![Effect::Redraw]
}

/// Marks or unmarks the run under the cursor.
pub fn toggle_mark(state: &mut State) -> Vec<Effect> {
    let Some(name) = state.runs.chosen().map(|row| row.name.clone()) else { return Vec::new() };
    if name == state.run_name() {
        state.show_notice("this run is already on the chart; mark another one", true);
        return vec![Effect::Redraw];
    }
    if state.runs.marked.len() >= MARKS && !state.runs.marked.contains(&name) {
        state.show_notice(format!("at most {MARKS} runs can be marked; unmark one first"), true);
        return vec![Effect::Redraw];
    }
    let needed = state.runs.toggle_mark(&name);
    let mut effects = vec![Effect::Redraw];
    effects.extend(needed.then_some(Effect::LoadOther(name, true)));
    effects
}

/// Opens the run under the cursor.
pub fn open_chosen_run(state: &mut State) -> Vec<Effect> {
    match state.runs.chosen() {
        Some(row) if row.name == state.run_name() => {
            state.show_notice("this run is already open", false);
            vec![Effect::Redraw]
        }
        Some(row) if row.status.is_none() => {
            let text = format!("{} never started; there is nothing to show", row.name);
            state.show_notice(text, true);
            vec![Effect::Redraw]
        }
        Some(row) => vec![Effect::Open(row.name.clone())],
        None => Vec::new(),
    }
}
