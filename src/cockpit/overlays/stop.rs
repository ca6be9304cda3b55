//! The question before a stop.

use crate::cockpit::format::count;
use crate::cockpit::state::State;
use crate::cockpit::ui;
use crate::cockpit::verdict::Tone;
use crate::config::theme::Theme;
use crate::protocol::control::RunState;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

/// Draws the box.
pub fn render(frame: &mut Frame<'_>, within: Rect, state: &State, theme: &Theme) {
    let Some(status) = state.status() else { return };
    let again = status.state == RunState::Stopping;
    let text = if again {
        let durable =
            status.durable_step.map_or_else(|| "the beginning".to_owned(), |step| format!("step {}", count(step)));
        format!(
            "The run is stopping already. A second stop does not wait for the checkpoint: the run then goes on from {durable}."
        )
    } else {
        format!("Save at step {} and end the run? The worker and the keeper end; nothing is lost.", count(status.step))
    };
    let width = usize::from(within.width.saturating_sub(8)).clamp(1, 58);
    let mut lines: Vec<Line<'static>> = ui::wrap(&text, width).into_iter().map(Line::from).collect();
    lines.push(Line::default());
    lines.push(Line::from(vec![
        Span::styled("To go on later:  ", theme.dim),
        Span::raw(format!("downshift resume {}", status.run)),
    ]));
    lines.push(Line::default());
    lines.push(Line::from(vec![
        Span::styled("Enter", theme.accent),
        Span::raw(if again { " stop at once" } else { " save and stop" }),
        Span::raw("     "),
        Span::styled("Esc", theme.accent),
        Span::raw(" go on training"),
    ]));
    let high = u16::try_from(lines.len()).unwrap_or(u16::MAX);
    let inner = ui::popup(frame, within, (60, high), "stop the run", Tone::Warn, theme);
    ui::lines(frame, inner, lines);
}
