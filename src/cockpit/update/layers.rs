//! Handles keys in the layers view, and requests its rows.

use super::message::Effect;
use crate::cockpit::action::{Action, ChartAction};
use crate::cockpit::state::State;
use crate::cockpit::state::screen::View;

/// Requests the state of the layers if it is on the screen and was not read yet.
pub fn request_missing_layers(state: &mut State) -> Option<Effect> {
    (state.screen.view == View::Layers && state.layers.take_missing()).then_some(Effect::LoadLayers)
}

/// Performs an action in the layers view; returns `None` if it has its usual meaning.
pub fn perform_layer_action(state: &mut State, action: Action) -> Option<Vec<Effect>> {
    let evaluations = state.layer_history().map_or(0, |history| history.rows_until(state.shown().moment).count());
    let cursor = &mut state.screen.layers;
    match action {
        Action::Chart(ChartAction::Left) => cursor.back = (cursor.back + 1).min(evaluations.saturating_sub(1)),
        Action::Chart(ChartAction::Right) => cursor.back = cursor.back.saturating_sub(1),
        Action::Chart(ChartAction::Fit | ChartAction::Follow) => cursor.back = 0,
        Action::Toggle | Action::Confirm => cursor.measure = cursor.measure.cycle(1),
        Action::Up => return Some(move_layer(state, -1)),
        Action::Down => return Some(move_layer(state, 1)),
        Action::PageUp => return Some(move_layer(state, -10)),
        Action::PageDown => return Some(move_layer(state, 10)),
        Action::Back if cursor.back > 0 => cursor.back = 0,
        _ => return None,
    }
    Some(vec![Effect::Redraw])
}

/// Moves the cursor to another layer: positive is down.
pub fn move_layer(state: &mut State, by: isize) -> Vec<Effect> {
    let layers = state.layer_history().map_or(0, |history| history.names().len());
    let cursor = &mut state.screen.layers;
    cursor.layer = cursor.layer.saturating_add_signed(by).min(layers.saturating_sub(1));
    vec![Effect::Redraw]
}
