//! The keeper is gone for good: the consequences and the command that brings the run back.

use crate::cockpit::action::Action;
use crate::cockpit::state::{Link, State};
use crate::cockpit::ui::{self, Popup, Stand};
use crate::cockpit::verdict::Tone;
use crate::format::{age, count};
use crate::outlook::continuation::How;
use crate::theme::Theme;
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
    let mut add = |text: &str| lines.extend(ui::wrap(text, width).into_iter().map(Line::from));
    if state.is_interrupted() {
        add("Keeper and worker are gone, and neither recorded an end: they were killed, or the machine went down.");
    } else {
        add(&format!("The keeper has not answered for {since}: {reason}."));
        add(match &state.command {
            Some(_) => "Without a keeper, the command goes on; the next keeper takes it over with all of its steps.",
            None => "Without a keeper, the worker saves at its next step and ends.",
        });
    }
    let way = state.continuation();
    let loses_steps = way.how != How::TakeOver;
    if let Some(step) = state.status().and_then(|status| status.durable_step).filter(|_| loses_steps) {
        add(&format!("Step {} is durable; later steps run again.", count(step)));
    }
    lines.push(Line::default());
    let aim = match way.how {
        How::StartOver => "To start it over, in another pane:",
        How::RunAgain => "To start it anew, in another pane:",
        How::Resume(_) | How::TakeOver | How::Nothing => "To continue the run, in another pane:",
    };
    lines.push(Line::styled(aim, theme.dim));
    let resume = ui::wrap(&way.command, width.saturating_sub(2));
    lines.extend(resume.into_iter().map(|row| Line::styled(format!("  {row}"), theme.strong)));
    if let Some(error) = &state.facts.history_error {
        lines.push(Line::default());
        lines.extend(ui::wrap(&error.to_string(), width).into_iter().map(|row| Line::styled(row, theme.warn)));
    }
    lines.push(Line::default());
    lines.push(Line::from(vec![
        Span::styled("This screen reconnects automatically.   ", theme.dim),
        Span::styled(state.keys.key_of(Action::Back), theme.accent),
        Span::styled(" close", theme.dim),
    ]));
    let high = u16::try_from(lines.len()).unwrap_or(u16::MAX);
    let inner = Popup { title: "no keeper", size: (72, high), tone: Tone::Danger, stand: Stand::Middle }
        .open(frame, within, theme);
    ui::render_lines(frame, inner, lines);
}
