//! The mouse: a click focuses, reads a value or triggers the action under it; the wheel zooms charts
//! and scrolls lists; the right button opens the palette.

use super::actions::{close_box, perform_action};
use super::message::Effect;
use super::{charts, keys, menu, palette};
use crate::cockpit::action::{Action, ChartAction};
use crate::cockpit::layout::lay_out_state;
use crate::cockpit::overlays::{self, ClickTarget};
use crate::cockpit::panels::component::Click;
use crate::cockpit::panels::{chart_bar, footer, header, tabs};
use crate::cockpit::state::State;
use crate::cockpit::state::screen::{Mode, Panel};
use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};

/// Handles a mouse event.
pub fn handle_mouse(state: &mut State, event: MouseEvent) -> Vec<Effect> {
    let at = (event.column, event.row);
    if !matches!(state.screen.mode, Mode::Normal | Mode::Filter | Mode::Prompt(_)) {
        return handle_mouse_in_box(state, event.kind, at);
    }
    if event.kind == MouseEventKind::Down(MouseButton::Right) {
        return perform_action(state, Action::Palette);
    }
    let places = lay_out_state(state.shown());
    if event.kind == MouseEventKind::Down(MouseButton::Left) {
        let tab = || tabs::view_at(state.shown(), places.tabs, event.column).map(Action::View);
        let action = match at.into() {
            at if places.tabs.contains(at) => tab(),
            at if places.header.contains(at) && header::is_alert_at(state.shown(), places.header, event.column) => {
                Some(Action::Alerts)
            }
            at if places.footer.contains(at) => footer::action_at(state.shown(), places.footer, event.column),
            _ => None,
        };
        if let Some(action) = action {
            return perform_action(state, action);
        }
    }
    if event.kind == MouseEventKind::Down(MouseButton::Left) && places.chart_bar.contains(at.into()) {
        return chart_bar::group_at(state.shown(), places.chart_bar, event.column)
            .map_or_else(Vec::new, |first| charts::show_group(state, first));
    }
    let Some(panel) = places.panel_at(event.column, event.row) else { return Vec::new() };
    let area = places.area_of(panel).unwrap_or_default();
    let component = panel.component();
    match event.kind {
        MouseEventKind::Down(_) => {
            let again = state.screen.focus == panel;
            state.screen.focus = panel;
            component.click(state, Click { area, at, again })
        }
        MouseEventKind::Drag(MouseButton::Left) => component.drag(state, event.column),
        MouseEventKind::ScrollUp => component.wheel(state, event.column, 3),
        MouseEventKind::ScrollDown => component.wheel(state, event.column, -3),
        MouseEventKind::ScrollLeft if is_chart(panel) => perform_action(state, Action::Chart(ChartAction::Left)),
        MouseEventKind::ScrollRight if is_chart(panel) => perform_action(state, Action::Chart(ChartAction::Right)),
        _ => Vec::new(),
    }
}

fn is_chart(panel: Panel) -> bool {
    matches!(panel, Panel::Chart(_))
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
                Mode::Menu { .. } => menu::perform_item(state, row),
                _ => Vec::new(),
            },
            ClickTarget::Nothing => Vec::new(),
        },
        (MouseEventKind::ScrollUp, _) => keys::press_action(state, Action::Up),
        (MouseEventKind::ScrollDown, _) => keys::press_action(state, Action::Down),
        _ => Vec::new(),
    }
}
