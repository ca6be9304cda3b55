//! Boxes above the screen, one file each. The user opens some of them. Others appear automatically
//! while something is under way or wrong; those capture no keys except the one that closes them.

pub mod alerts;
pub mod delete;
pub mod failed;
pub mod fault;
pub mod help;
pub mod menu;
pub mod no_keeper;
pub mod palette;
pub mod preview;
pub mod shift_progress;
pub mod worker_end;

use super::action::Action;
use super::layout::SMALLEST;
use super::state::State;
use super::state::screen::Mode;
use super::ui;
use crate::theme::Theme;
use ratatui::{Frame, layout::Rect};

/// Returns the area available for boxes: between the first and the last line.
fn box_room(screen: Rect) -> Rect {
    Rect { y: screen.height.min(1), height: screen.height.saturating_sub(2), ..screen }
}

/// Reports whether a box is open.
#[must_use]
pub fn is_open(state: &State) -> bool {
    let automatic = || {
        let trouble = (state.is_orphaned() || state.is_broken()) && !state.screen.trouble_hidden;
        trouble || state.shift_progress.is_shown(state.now_ms)
    };
    match state.screen.mode {
        // The replay has no automatic boxes.
        Mode::Normal | Mode::Filter => state.moment.is_none() && state.replay.is_none() && automatic(),
        Mode::Prompt(_) => false,
        _ => true,
    }
}

/// Draws the open box, if any; one opened by the user takes precedence.
pub fn render(frame: &mut Frame<'_>, screen: Rect, state: &State, theme: &Theme) {
    if screen.width < SMALLEST.0 || screen.height < SMALLEST.1 {
        return;
    }
    let within = box_room(screen);
    match state.screen.mode {
        Mode::Help { from } => help::render(frame, within, from, state, theme),
        Mode::Palette { chosen } => palette::render(frame, within, chosen, state, theme),
        Mode::Preview { to } => preview::render(frame, within, to, state, theme),
        Mode::WorkerEnd(kind) => worker_end::render(frame, within, kind, state, theme),
        Mode::Alerts { from } => alerts::render(frame, within, from, state, theme),
        Mode::Fault { id, from } => fault::render(frame, within, (id, from), state.shown(), theme),
        Mode::Menu { chosen } => menu::render(frame, within, chosen, state, theme),
        Mode::Delete => delete::render(frame, within, state, theme),
        Mode::Normal | Mode::Filter if !is_open(state) => {}
        Mode::Normal | Mode::Filter if state.is_orphaned() && !state.screen.trouble_hidden => {
            no_keeper::render(frame, within, state, theme);
        }
        Mode::Normal | Mode::Filter if state.is_broken() && !state.screen.trouble_hidden => {
            failed::render(frame, within, state, theme);
        }
        Mode::Normal | Mode::Filter => shift_progress::render(frame, within, state, theme),
        Mode::Prompt(_) => {}
    }
}

/// Target of a click while a box is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClickTarget {
    /// Inert area.
    Nothing,
    /// Screen outside the box.
    Outside,
    /// Text that triggers an action.
    Action(Action),
    /// A row of a list.
    Row(usize),
}

/// Returns the click target under the mouse.
#[must_use]
pub fn click_target(state: &State, at: (u16, u16)) -> ClickTarget {
    let (width, height) = state.screen.size;
    let within = box_room(Rect::new(0, 0, width, height));
    let keys_at = |area: Rect, keys: &ui::KeyLine| {
        let inner = ui::popup_inner(within, area, ui::Stand::Middle);
        if !area.contains(at.into()) {
            return ClickTarget::Outside;
        }
        let on_keys = at.1 + 1 == inner.bottom() && at.0 >= inner.x;
        let action =
            keys.action_at(usize::from(at.0.saturating_sub(inner.x)), usize::from(inner.width)).filter(|_| on_keys);
        action.map_or(ClickTarget::Nothing, ClickTarget::Action)
    };
    match state.screen.mode {
        Mode::Palette { chosen } => palette::click_target(within, chosen, state, at),
        Mode::Preview { to } => match preview::box_content(within, to, state, None) {
            Some(content) => {
                keys_at(ui::popup_area(within, content.size(), ui::Stand::Middle), &preview::key_line(state))
            }
            None => ClickTarget::Outside,
        },
        Mode::WorkerEnd(kind) => {
            let (size, keys) = worker_end::measure_box(within, kind, state);
            keys_at(ui::popup_area(within, size, ui::Stand::Middle), &keys)
        }
        Mode::Help { .. } | Mode::Alerts { .. } | Mode::Fault { .. } => ClickTarget::Outside,
        Mode::Menu { .. } => menu::click_target(within, state, at),
        Mode::Delete => {
            let (size, keys) = delete::measure_box(within, state);
            keys_at(ui::popup_area(within, size, ui::Stand::Middle), &keys)
        }
        Mode::Normal | Mode::Filter | Mode::Prompt(_) => ClickTarget::Nothing,
    }
}
