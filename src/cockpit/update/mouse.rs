//! The mouse: a click focuses, reads a value or triggers the action under it; the wheel zooms charts
//! and scrolls lists; the right button opens the palette.

use super::actions::{close_box, perform_action, scroll_panel};
use super::message::Effect;
use super::{charts, keys, palette, run_list};
use crate::cockpit::action::Action;
use crate::cockpit::layout::lay_out_state;
use crate::cockpit::overlays::{self, ClickTarget};
use crate::cockpit::panels::{footer, ladder, run_list as run_list_panel};
use crate::cockpit::state::State;
use crate::cockpit::state::screen::{Mode, Panel};
use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};

/// Handles a mouse event.
pub fn handle_mouse(state: &mut State, event: MouseEvent) -> Vec<Effect> {
    let at = (event.column, event.row);
    if !matches!(state.screen.mode, Mode::Normal | Mode::Filter) {
        return handle_mouse_in_box(state, event.kind, at);
    }
    if event.kind == MouseEventKind::Down(MouseButton::Right) {
        return perform_action(state, Action::Palette);
    }
    let places = lay_out_state(state);
    if let MouseEventKind::Down(MouseButton::Left) = event.kind
        && places.footer.contains(at.into())
    {
        return footer::action_at(state, places.footer, event.column)
            .map_or_else(Vec::new, |action| perform_action(state, action));
    }
    let Some(panel) = places.panel_at(event.column, event.row) else { return Vec::new() };
    let area = places.area_of(panel).unwrap_or_default();
    match (event.kind, panel) {
        (MouseEventKind::Down(_), Panel::Chart(_)) if state.screen.focus == panel => {
            charts::place_cursor(state, event.column, panel)
        }
        (MouseEventKind::Drag(MouseButton::Left), Panel::Chart(_)) => charts::place_cursor(state, event.column, panel),
        (MouseEventKind::Down(_), _) => {
            let again = state.screen.focus == panel;
            state.screen.focus = panel;
            let row = usize::from(event.row.saturating_sub(area.y + 1));
            match panel {
                Panel::RunList if event.row > area.y => choose_run(state, row),
                Panel::Ladder if event.row > area.y => choose_rung(state, area.height, row),
                Panel::Gauges | Panel::Journal | Panel::Log if again => perform_action(state, Action::Confirm),
                _ => vec![Effect::Redraw],
            }
        }
        (MouseEventKind::ScrollUp, Panel::Chart(_)) => charts::zoom_at(state, event.column, panel, 0.5),
        (MouseEventKind::ScrollDown, Panel::Chart(_)) => charts::zoom_at(state, event.column, panel, 2.0),
        (MouseEventKind::ScrollUp, _) => scroll_panel(state, panel, 3),
        (MouseEventKind::ScrollDown, _) => scroll_panel(state, panel, -3),
        (MouseEventKind::ScrollLeft, Panel::Chart(_)) => perform_action(state, Action::Left),
        (MouseEventKind::ScrollRight, Panel::Chart(_)) => perform_action(state, Action::Right),
        _ => Vec::new(),
    }
}

/// Selects the clicked run; a second click opens it.
fn choose_run(state: &mut State, row: usize) -> Vec<Effect> {
    let row = row + run_list_panel::first_visible(state);
    let known = state.runs.rows.as_ref().map_or(0, Vec::len);
    if row >= known {
        return vec![Effect::Redraw];
    }
    if row == state.runs.chosen {
        return run_list::open_chosen_run(state);
    }
    let up = state.runs.chosen.cast_signed() - row.cast_signed();
    run_list::move_cursor(state, up)
}

/// Selects the clicked rung; a second click opens the preview of a shift to it.
fn choose_rung(state: &mut State, height: u16, row: usize) -> Vec<Effect> {
    let Some(rung) = ladder::rung_at(state, height, row) else { return vec![Effect::Redraw] };
    if state.screen.chosen_rung == Some(rung) {
        return perform_action(state, Action::Confirm);
    }
    state.screen.chosen_rung = Some(rung);
    vec![Effect::Redraw]
}

/// Handles the mouse while a box is open: a click on a label triggers its action, the wheel scrolls, a
/// click outside closes the box.
fn handle_mouse_in_box(state: &mut State, kind: MouseEventKind, at: (u16, u16)) -> Vec<Effect> {
    match (kind, state.screen.mode) {
        (MouseEventKind::Down(_), mode) => match overlays::click_target(state, at) {
            ClickTarget::Outside => close_box(state),
            ClickTarget::Action(action) => keys::press_action(state, action),
            ClickTarget::Row(row) => match mode {
                Mode::Palette { .. } => palette::perform_match(state, row),
                _ => Vec::new(),
            },
            ClickTarget::Nothing => Vec::new(),
        },
        (MouseEventKind::ScrollUp, _) => keys::press_action(state, Action::Up),
        (MouseEventKind::ScrollDown, _) => keys::press_action(state, Action::Down),
        _ => Vec::new(),
    }
}
