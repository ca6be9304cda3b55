//! The mouse: a click focuses, reads a value or triggers the action under it; the wheel zooms charts
//! and scrolls lists; the right button opens the palette.

use super::actions::{close_box, perform_action, scroll_panel, scroll_rung};
use super::message::Effect;
use super::{charts, keys, menu, palette, run_list, samples};
use crate::cockpit::action::{Action, ChartAction};
use crate::cockpit::layout::lay_out_state;
use crate::cockpit::overlays::{self, ClickTarget};
use crate::cockpit::panels::{
    chart_bar, checkpoints, footer, header, journal, ladder, run_list as run_list_panel, tabs,
};
use crate::cockpit::state::State;
use crate::cockpit::state::opened::Opened;
use crate::cockpit::state::screen::{Mode, Panel};
use crossterm::event::{MouseButton, MouseEvent, MouseEventKind};
use ratatui::layout::Rect;

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
    match (event.kind, panel) {
        (MouseEventKind::Down(_), Panel::Chart(_)) if state.screen.focus == panel => {
            charts::place_cursor(state, event.column, panel)
        }
        (MouseEventKind::Drag(MouseButton::Left), Panel::Chart(_)) => charts::place_cursor(state, event.column, panel),
        (MouseEventKind::Down(_), _) => {
            let again = state.screen.focus == panel;
            state.screen.focus = panel;
            choose_in_panel(state, panel, area, at, again)
        }
        (MouseEventKind::ScrollUp, Panel::Chart(_)) => charts::zoom_at(state, event.column, panel, 0.5),
        (MouseEventKind::ScrollDown, Panel::Chart(_)) => charts::zoom_at(state, event.column, panel, 2.0),
        (MouseEventKind::ScrollUp, Panel::Rung) => scroll_rung(state, 3),
        (MouseEventKind::ScrollDown, Panel::Rung) => scroll_rung(state, -3),
        (MouseEventKind::ScrollUp, _) => scroll_panel(state, panel, 3),
        (MouseEventKind::ScrollDown, _) => scroll_panel(state, panel, -3),
        (MouseEventKind::ScrollLeft, Panel::Chart(_)) => perform_action(state, Action::Chart(ChartAction::Left)),
        (MouseEventKind::ScrollRight, Panel::Chart(_)) => perform_action(state, Action::Chart(ChartAction::Right)),
        _ => Vec::new(),
    }
}

/// Handles a click into a panel; `again` if it has the focus already.
fn choose_in_panel(state: &mut State, panel: Panel, area: Rect, at: (u16, u16), again: bool) -> Vec<Effect> {
    let row = usize::from(at.1.saturating_sub(area.y + 1));
    let below_heading = at.1 > area.y;
    match panel {
        Panel::RunList if row == 0 && below_heading => {
            let column = run_list_panel::column_at(state.shown(), at.0 - area.x);
            column.map_or_else(|| vec![Effect::Redraw], |column| run_list::sort_by(state, column))
        }
        Panel::RunList if below_heading => choose_run(state, area.height, row - 1),
        Panel::Checkpoints if below_heading => choose_checkpoint(state, area.height, row, again),
        Panel::Ladder if below_heading => choose_rung(state, area.height, row),
        Panel::Samples if below_heading => samples::click(state, at),
        Panel::Journal if below_heading => choose_entry(state, area, row, again),
        Panel::Gauges | Panel::Log if again && state.screen.view != panel.own_view() => {
            perform_action(state, Action::Confirm)
        }
        _ => vec![Effect::Redraw],
    }
}

/// Selects the clicked run; a second click opens it.
fn choose_run(state: &mut State, height: u16, row: usize) -> Vec<Effect> {
    let Some(place) = run_list_panel::run_at(state.shown(), height, row) else { return vec![Effect::Redraw] };
    if state.runs.click(place) {
        return perform_action(state, Action::Confirm);
    }
    run_list::redraw_and_load(state)
}

/// Selects the clicked checkpoint; a second click opens its menu.
fn choose_checkpoint(state: &mut State, height: u16, row: usize, again: bool) -> Vec<Effect> {
    let Some(place) = checkpoints::checkpoint_at(state.shown(), height, row) else { return vec![Effect::Redraw] };
    if again && place == state.screen.chosen_checkpoint {
        return menu::open_checkpoint_menu(state);
    }
    state.screen.chosen_checkpoint = place;
    vec![Effect::Redraw]
}

/// Selects the clicked entry of the journal. A fault opens at once, another entry opens the view of the log with
/// the second click.
fn choose_entry(state: &mut State, area: Rect, row: usize, again: bool) -> Vec<Effect> {
    let Some(back) = journal::entry_at(state.shown(), area, row) else { return vec![Effect::Redraw] };
    let same = std::mem::replace(&mut state.screen.journal_back, back) == back;
    state.refresh_past();
    let opens = match state.shown().opened_by_enter() {
        Ok(Opened::Fault(_)) => true,
        Ok(_) => same && again,
        Err(_) => false,
    };
    if opens { perform_action(state, Action::Confirm) } else { vec![Effect::Redraw] }
}

/// Selects the clicked rung; a second click opens the preview of a shift to it.
fn choose_rung(state: &mut State, height: u16, row: usize) -> Vec<Effect> {
    let Some(rung) = ladder::rung_at(state.shown(), height, row) else { return vec![Effect::Redraw] };
    if state.screen.chosen_rung == Some(rung) {
        return perform_action(state, Action::Confirm);
    }
    (state.screen.chosen_rung, state.screen.rung_from) = (Some(rung), 0);
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
