//! The mouse: a click focuses, reads a value or triggers the action under it; the wheel zooms charts
//! and scrolls lists; the right button opens the palette.

use super::{Effect, act, charts, others, palette};
use crate::cockpit::action::Action;
use crate::cockpit::layout::places_of;
use crate::cockpit::overlays;
use crate::cockpit::panels::footer;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::{Mode, Panel};
use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};

/// Handles a mouse event.
pub fn mouse(state: &mut State, event: MouseEvent) -> Vec<Effect> {
    let at = (event.column, event.row);
    if !matches!(state.screen.mode, Mode::Normal | Mode::Filter) {
        return in_box(state, event.kind, at);
    }
    if event.kind == MouseEventKind::Down(MouseButton::Right) {
        return act::act(state, Action::Palette);
    }
    let places = places_of(state);
    if let MouseEventKind::Down(MouseButton::Left) = event.kind
        && places.footer.contains(at.into())
    {
        return footer::action_at(state, places.footer, event.column)
            .map_or_else(Vec::new, |action| act::act(state, action));
    }
    let Some(panel) = places.panel_at(event.column, event.row) else { return Vec::new() };
    let area = places.area_of(panel).unwrap_or_default();
    match (event.kind, panel) {
        (MouseEventKind::Down(_), Panel::Chart(_)) if state.screen.focus == panel => {
            charts::read_at(state, event.column, panel)
        }
        (MouseEventKind::Drag(MouseButton::Left), Panel::Chart(_)) => charts::read_at(state, event.column, panel),
        (MouseEventKind::Down(_), _) => {
            let again = state.screen.focus == panel;
            state.screen.focus = panel;
            let row = usize::from(event.row.saturating_sub(area.y + 1));
            match panel {
                Panel::RunList if event.row > area.y => choose_run(state, row),
                Panel::Ladder if event.row > area.y => choose_rung(state, area.height, row),
                Panel::Gauges | Panel::Journal | Panel::Log if again => act::act(state, Action::Confirm),
                _ => vec![Effect::Redraw],
            }
        }
        (MouseEventKind::ScrollUp, Panel::Chart(_)) => charts::zoom_at(state, event.column, panel, 0.5),
        (MouseEventKind::ScrollDown, Panel::Chart(_)) => charts::zoom_at(state, event.column, panel, 2.0),
        (MouseEventKind::ScrollUp, _) => act::scroll(state, panel, 3),
        (MouseEventKind::ScrollDown, _) => act::scroll(state, panel, -3),
        (MouseEventKind::ScrollLeft, Panel::Chart(_)) => act::act(state, Action::Left),
        (MouseEventKind::ScrollRight, Panel::Chart(_)) => act::act(state, Action::Right),
        _ => Vec::new(),
    }
}

/// Selects the clicked run; a second click opens it.
fn choose_run(state: &mut State, row: usize) -> Vec<Effect> {
    let row = row + crate::cockpit::panels::run_list::first_shown(state);
    let known = state.runs.rows.as_ref().map_or(0, Vec::len);
    if row >= known {
        return vec![Effect::Redraw];
    }
    if row == state.runs.chosen {
        return others::open(state);
    }
    let up = state.runs.chosen.cast_signed() - row.cast_signed();
    others::scroll(state, up)
}

/// Selects the clicked rung; a second click opens the preview of a shift to it.
fn choose_rung(state: &mut State, height: u16, row: usize) -> Vec<Effect> {
    let Some(rung) = crate::cockpit::panels::ladder::rung_at(state, height, row) else { return vec![Effect::Redraw] };
    if state.screen.chosen_rung == Some(rung) {
        return act::act(state, Action::Confirm);
    }
    state.screen.chosen_rung = Some(rung);
    vec![Effect::Redraw]
}

/// Handles the mouse while a box is open: a click on a label triggers its action, the wheel scrolls, a
/// click outside closes the box.
fn in_box(state: &mut State, kind: MouseEventKind, at: (u16, u16)) -> Vec<Effect> {
    match (kind, state.screen.mode) {
        (MouseEventKind::Down(_), mode) => match overlays::hit(state, at) {
            overlays::Hit::Outside => super::keys::close(state),
            overlays::Hit::Action(action) => super::keys::press_action(state, action),
            overlays::Hit::Row(row) => match mode {
                Mode::Palette { .. } => palette::take(state, row),
                _ => Vec::new(),
            },
            overlays::Hit::Nothing => Vec::new(),
        },
        (MouseEventKind::ScrollUp, _) => super::keys::press_action(state, Action::Up),
        (MouseEventKind::ScrollDown, _) => super::keys::press_action(state, Action::Down),
        _ => Vec::new(),
    }
}
