//! Boxes above the screen, one file each. A person opens some of them; others come by themselves
//! while something is under way or wrong, and take no keys but the one that closes them.

pub mod ended;
pub mod help;
pub mod lost;
pub mod passage;
pub mod preview;
pub mod stop;

use super::state::State;
use super::state::screen::Mode;
use crate::config::theme::Theme;
use ratatui::{Frame, layout::Rect};

/// Draws the box that is open, if any: a person's own first.
pub fn render(frame: &mut Frame<'_>, screen: Rect, state: &State, theme: &Theme) {
    let within = Rect { y: 1, height: screen.height.saturating_sub(2), ..screen };
    match state.screen.mode {
        Mode::Help { from } => help::render(frame, within, from, theme),
        Mode::Preview { to } => preview::render(frame, within, to, state, theme),
        Mode::Stop => stop::render(frame, within, state, theme),
        Mode::Normal | Mode::Filter if state.is_orphaned() && !state.screen.trouble_hidden => {
            lost::render(frame, within, state, theme);
        }
        Mode::Normal | Mode::Filter if state.is_broken() && !state.screen.trouble_hidden => {
            ended::render(frame, within, state, theme);
        }
        Mode::Normal | Mode::Filter if state.passage.is_shown(state.now_ms) => {
            passage::render(frame, within, state, theme);
        }
        Mode::Normal | Mode::Filter => {}
    }
}
