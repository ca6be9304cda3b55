//! Moves the focus between the panels on the screen.

use super::message::Effect;
use crate::cockpit::layout::lay_out_state;
use crate::cockpit::state::State;

/// Moves the focus to the first panel if the focused one is not on the screen.
pub fn focus_visible_panel(state: &mut State) {
    // The view may have just changed.
    state.refresh_past();
    let panels = lay_out_state(state.shown()).panels;
    if !panels.iter().any(|(panel, _)| *panel == state.screen.focus) {
        state.screen.focus = panels.first().map_or(state.screen.focus, |(panel, _)| *panel);
    }
}

/// Focuses the next (1) or the previous (-1) panel.
pub fn move_focus(state: &mut State, direction: isize) -> Vec<Effect> {
    let panels = lay_out_state(state.shown()).panels;
    let here = panels.iter().position(|(panel, _)| *panel == state.screen.focus);
    let next = here.map_or(Some(0), |here| here.checked_add_signed(direction)).and_then(|next| panels.get(next));
    // Wrap around at either end.
    let other_end = if direction > 0 { panels.first() } else { panels.last() };
    if let Some((panel, _)) = next.or(other_end) {
        state.screen.focus = *panel;
    }
    vec![Effect::Redraw]
}
