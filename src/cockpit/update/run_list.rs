//! The table of runs: navigation, order, marks, opening.

use super::actions::refuse_action;
use super::menu;
use super::message::Effect;
use crate::cockpit::quantity::{Quantity, Source};
use crate::cockpit::state::State;
use crate::cockpit::state::requests::Refusal;
use crate::cockpit::state::runs::{MARKS, Sort};
use crate::protocol::claim::{Move, QueueChange};
use crate::store::run_summary::RunSummary;
use crate::store::run_summary::column::Column;

/// Stores the list of runs.
pub fn replace_list(state: &mut State, rows: Vec<RunSummary>) -> Vec<Effect> {
    let here = state.run_name().to_owned();
    state.runs.replace_list(rows, &here, state.now_ms);
    state.subject.is_listed = true;
    let mut effects = redraw_and_load(state);
    effects.extend(menu::perform_awaited(state));
    effects
}

/// Draws, and requests the config of the run under the cursor if it is not loaded yet.
pub fn redraw_and_load(state: &State) -> Vec<Effect> {
    let needed = state.runs.chosen().and_then(|row| {
        let known = row.name == state.run_name() || state.runs.read.contains_key(&row.name);
        (!known).then(|| Effect::LoadOther(row.name.clone(), false))
    });
    [Effect::Redraw].into_iter().chain(needed).collect()
}

/// Moves the cursor; positive is up.
pub fn move_cursor(state: &mut State, lines: isize) -> Vec<Effect> {
    let place = state.runs.cursor().saturating_add_signed(-lines);
    state.runs.move_cursor_to(place);
    redraw_and_load(state)
}

/// Sorts by a column; by the same column again, in reverse.
pub fn sort_by(state: &mut State, column: Column) -> Vec<Effect> {
    let now = state.runs.sort;
    let sort = Sort { column, reverse: now.column == column && !now.reverse };
    apply_sort(state, sort)
}

/// Sorts by the next column.
pub fn sort_by_next(state: &mut State) -> Vec<Effect> {
    let column = state.runs.sort.column.next();
    apply_sort(state, Sort { column, reverse: false })
}

/// Reverses the order.
pub fn reverse_sort(state: &mut State) -> Vec<Effect> {
    let Sort { column, reverse } = state.runs.sort;
    apply_sort(state, Sort { column, reverse: !reverse })
}

fn apply_sort(state: &mut State, sort: Sort) -> Vec<Effect> {
    state.runs.sort_by(sort, state.now_ms);
    vec![Effect::Redraw]
}

/// Moves the run under the cursor in the queue.
pub fn move_in_queue(state: &mut State, to: Move) -> Vec<Effect> {
    let Some(run) = state.runs.chosen() else { return Vec::new() };
    let why = state.read_only.then_some(Refusal::ReadOnly);
    match why.or_else(|| run.place.is_none().then_some(Refusal::NotQueued)) {
        Some(why) => refuse_action(state, &why),
        None => vec![Effect::ChangeQueue(run.name.clone(), QueueChange::Move(to))],
    }
}

/// Compares the next quantity, of those that runs can be compared by: measurements of steps and of evaluations.
pub fn next_compared(state: &mut State, direction: isize) -> Vec<Effect> {
    let is_compared = |quantity: &Quantity| {
        matches!(quantity.source(), Source::Steps(_) | Source::Named(_) | Source::Evaluations | Source::EvalNamed(_))
    };
    let all: Vec<Quantity> = state.shown().quantities().into_iter().filter(is_compared).collect();
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
