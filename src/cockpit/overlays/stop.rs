//! Confirmation before a stop.

use crate::cockpit::action::Action;
use crate::cockpit::state::State;
use crate::cockpit::ui;
use crate::cockpit::verdict::Tone;
use crate::config::theme::Theme;
use crate::format::count;
use crate::protocol::control::RunState;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};
use unicode_width::UnicodeWidthStr;

/// Draws the box.
pub fn render(frame: &mut Frame<'_>, within: Rect, state: &State, theme: &Theme) {
    if state.status().is_none() {
        return;
    }
    let mut lines: Vec<Line<'static>> = sentences(within, state).into_iter().map(Line::from).collect();
    lines.push(Line::default());
    lines.extend(later(within, &state.resume_command()).into_iter().map(|row| match row.strip_prefix(LATER) {
        Some(rest) => Line::from(vec![Span::styled(LATER, theme.dim), Span::raw(rest.to_owned())]),
        None => Line::from(row),
    }));
    lines.push(Line::default());
    let (size, keys) = measure(within, state);
    lines.push(keys.line(width(within), theme));
    let inner = ui::popup(frame, within, size, "stop the run", Tone::Warn, theme);
    ui::lines(frame, inner, lines);
}

const LATER: &str = "To go on later:";

/// Returns the columns inside the box.
fn width(within: Rect) -> usize {
    usize::from(within.width.saturating_sub(6)).clamp(1, 60)
}

/// Returns the command that resumes the run, unbroken, on its own line if needed.
fn later(within: Rect, command: &str) -> Vec<String> {
    let joined = format!("{LATER}  {command}");
    if joined.width() <= width(within) {
        vec![joined]
    } else {
        [vec![LATER.to_owned()], ui::wrap(command, width(within))].concat()
    }
}

/// Returns the inner size of the box and the keys on its last line.
#[must_use]
pub fn measure(within: Rect, state: &State) -> ((u16, u16), ui::KeyLine) {
    let again = state.run_state() == Some(RunState::Stopping);
    let rest = later(within, &state.resume_command()).len() + 3;
    let rows = sentences(within, state).len() + rest;
    let high = u16::try_from(rows).unwrap_or(u16::MAX);
    let keys = ui::KeyLine(vec![
        (state.keys.key_of(Action::Confirm), if again { "stop at once" } else { "save and stop" }, Action::Confirm),
        (state.keys.key_of(Action::Back), "go on training", Action::Back),
    ]);
    ((60, high), keys)
}

fn sentences(within: Rect, state: &State) -> Vec<String> {
    let Some(status) = state.status() else { return Vec::new() };
    let text = if status.state == RunState::Stopping {
        let durable =
            status.durable_step.map_or_else(|| "the beginning".to_owned(), |step| format!("step {}", count(step)));
        format!(
            "The run is stopping already. A second stop does not wait for the checkpoint: the run then goes on from {durable}."
        )
    } else {
        format!("Save at step {} and end the run? The worker and the keeper end; nothing is lost.", count(status.step))
    };
    ui::wrap(&text, usize::from(within.width.saturating_sub(8)).clamp(1, 58))
}
