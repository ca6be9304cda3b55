//! All runs in the folder, newest first: their state, their progress, and which are overlaid.

use crate::cockpit::action::Action;
use crate::cockpit::layout::lay_out_state;
use crate::cockpit::ratio::Ratio;
use crate::cockpit::state::State;
use crate::cockpit::state::runs::RunRow;
use crate::cockpit::state::screen::Panel;
use crate::cockpit::ui;
use crate::cockpit::verdict::{Tone, summarize_eval};
use crate::config::theme::Theme;
use crate::format::{count, figure, percent};
use crate::protocol::control::RunState;
use ratatui::{
    Frame,
    layout::Rect,
    style::Style,
    text::{Line, Span},
};
use unicode_width::UnicodeWidthStr;

/// Draws the panel.
pub fn render(frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
    let focused = state.screen.focus == Panel::RunList;
    let key = |action: Action| state.keys.key_of(action);
    let note = format!("{} overlay   {} open", key(Action::Toggle), key(Action::Confirm));
    let inner = ui::render_heading(frame, area, "runs", Line::styled(note, theme.dim), focused, theme);
    let Some(rows) = state.runs.rows.as_ref().filter(|rows| !rows.is_empty()) else {
        let text = if state.runs.rows.is_none() { "listing runs" } else { "no runs in this folder" };
        return ui::render_placeholder(frame, inner, text, theme);
    };
    let longest = rows.iter().map(|row| row.name.width()).max().unwrap_or(0);
    let name_width = longest.min(usize::from(inner.width) * 2 / 5);
    let first = first_visible(state);
    let shown = rows.iter().enumerate().skip(first).take(usize::from(inner.height));
    let widths = (name_width, usize::from(inner.width));
    let lines = shown.map(|(place, row)| run_line(state, place, row, widths, theme)).collect();
    ui::render_lines(frame, inner, lines);
}

/// Returns the first visible run if not all fit.
#[must_use]
pub fn first_visible(state: &State) -> usize {
    let room =
        lay_out_state(state).area_of(Panel::RunList).map_or(1, |area| usize::from(area.height.saturating_sub(1)));
    state.runs.chosen.saturating_sub(room.saturating_sub(1))
}

fn run_line(state: &State, place: usize, row: &RunRow, widths: (usize, usize), theme: &Theme) -> Line<'static> {
    let (name_width, width) = widths;
    let here = row.name == state.run_name();
    let marked = state.runs.marked.iter().position(|marked| *marked == row.name);
    // This run takes the first colour, the marked ones those after it.
    let (sign, style) = match (here, marked) {
        (true, _) => ("━", theme.line(0)),
        (false, Some(place)) => ("━", theme.line(place + 1)),
        (false, None) => (" ", Style::new()),
    };
    let mut line = Line::from(vec![
        Span::styled(format!("{sign} "), style),
        Span::styled(format!("{}  ", ui::pad(&row.name, name_width)), if here { theme.strong } else { Style::new() }),
    ]);
    match &row.status {
        Some(status) => {
            let tone = match status.state {
                RunState::Finished => Tone::Good,
                RunState::Failed | RunState::NeedsPerson => Tone::Danger,
                RunState::Stopped => Tone::Plain,
                RunState::Paused | RunState::AwaitingCard | RunState::BackingOff | RunState::Recovering => Tone::Warn,
                _ => Tone::Busy,
            };
            let done = status.total_samples.and_then(|total| Ratio::of(status.samples, total));
            let done = done.map_or_else(String::new, |done| percent(done.get()));
            let result = status.eval.as_ref().map(summarize_eval);
            let result = result.or(status.loss.map(|loss| format!("loss {}", figure(loss))));
            line.push_span(Span::styled(
                ui::pad(status.state.word(), if width < 90 { 15 } else { 16 }),
                ui::tone_style(theme, tone),
            ));
            line.push_span(Span::raw(ui::pad_left(&count(status.step), 10)));
            line.push_span(Span::styled(" steps", theme.dim));
            line.push_span(Span::raw(ui::pad_left(&done, 7)));
            let result = format!("   {}", result.unwrap_or_default());
            // The result matters more than the rung.
            if line.width() + 15 + result.width() <= width {
                line.push_span(Span::styled(format!("   {}", ui::pad(&status.rung_name, 12)), theme.dim));
            }
            line.push_span(Span::raw(result));
        }
        None => line.push_span(Span::styled("never started", theme.dim)),
    }
    if place == state.runs.chosen { line.patch_style(theme.selected) } else { line }
}
