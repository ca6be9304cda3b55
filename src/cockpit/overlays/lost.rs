//! The keeper does not answer: the consequences and the command to type.

use crate::cockpit::action::Action;
use crate::cockpit::state::{Link, State};
use crate::cockpit::ui;
use crate::cockpit::verdict::Tone;
use crate::config::theme::Theme;
use crate::format::{age, count};
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

/// Draws the box.
pub fn render(frame: &mut Frame<'_>, within: Rect, state: &State, theme: &Theme) {
    let Link::Lost { since_ms, reason } = &state.link else { return };
    let width = usize::from(within.width.saturating_sub(8)).clamp(1, 66);
    let since = age(state.now_ms.saturating_sub(*since_ms));
    let mut lines: Vec<Line<'static>> = Vec::new();
    let mut say = |text: &str| lines.extend(ui::wrap(text, width).into_iter().map(Line::from));
    say(&format!("Nobody answers for this run, for {since} now: {reason}."));
    say("A worker without its keeper saves at its next step border and ends.");
    if let Some(step) = state.status().and_then(|status| status.durable_step) {
        say(&format!("Step {} is durable; whatever comes after it is done again.", count(step)));
    }
    lines.push(Line::default());
    lines.push(Line::styled("To bring the run back, type in another pane:", theme.dim));
    let resume = ui::wrap(&state.resume_command(), width.saturating_sub(2));
    lines.extend(resume.into_iter().map(|row| Line::styled(format!("  {row}"), theme.strong)));
    if let Some(error) = &state.facts.history_error {
        lines.push(Line::default());
        lines.extend(ui::wrap(error, width).into_iter().map(|row| Line::styled(row, theme.warn)));
    }
    lines.push(Line::default());
    lines.push(Line::from(vec![
        Span::styled("This screen goes on by itself once a keeper answers.   ", theme.dim),
        Span::styled(state.keys.key_of(Action::Back), theme.accent),
        Span::styled(" look around", theme.dim),
    ]));
    let high = u16::try_from(lines.len()).unwrap_or(u16::MAX);
    let inner = ui::popup(frame, within, (72, high), "no keeper", Tone::Danger, theme);
    ui::lines(frame, inner, lines);
}
