//! Fallback for a terminal too small for panels: the essentials in the space available, and the size
//! required.

use crate::cockpit::layout::SMALLEST;
use crate::cockpit::state::State;
use crate::cockpit::ui;
use crate::cockpit::verdict::verdict;
use crate::format::count;
use crate::series::{Axis, Metric};
use crate::theme::Theme;
use ratatui::{Frame, layout::Rect, text::Line};

/// Draws the lines that fit.
pub fn render(frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
    let width = usize::from(area.width);
    let mut lines = Vec::new();
    if let Some(status) = state.status() {
        let loss = status.format_loss().map_or_else(String::new, |loss| format!("  loss {loss}"));
        let words = format!("{}  step {}{loss}", status.state.word(), count(status.step));
        lines.push(Line::styled(ui::cut(&words, width), theme.strong));
    }
    let (text, style) = match &state.notice {
        Some(notice) if notice.refused => (notice.text.clone(), theme.warn),
        Some(notice) => (notice.text.clone(), theme.accent),
        None => {
            let verdict = verdict(state);
            let command = verdict.command.map_or_else(String::new, |(command, what)| format!(" · {command} {what}"));
            (verdict.text + &command, ui::tone_style(theme, verdict.tone))
        }
    };
    lines.extend(ui::wrap(&text, width).into_iter().map(|row| Line::styled(row, style)));
    lines.extend(loss_trace(area, lines.len(), state, theme));
    let size =
        format!("{}×{} is too small for panels; they need {}×{}", area.width, area.height, SMALLEST.0, SMALLEST.1);
    lines.extend(ui::wrap(&size, width).into_iter().map(|row| Line::styled(row, theme.dim)));
    ui::render_lines(frame, area, lines);
}

/// Draws the loss over the run in one line if a row is free, for a terminal kept as a strip below other panes.
fn loss_trace(area: Rect, used: usize, state: &State, theme: &Theme) -> Option<Line<'static>> {
    if usize::from(area.height) < used + 2 || area.width < 20 {
        return None;
    }
    let (first, last) = state.facts.series.spots()?;
    let window = Axis::Steps.place(first)..Axis::Steps.place(last);
    let columns = state.facts.series.columns_on(Metric::Loss, Axis::Steps, window, usize::from(area.width) * 2);
    let losses: Vec<f64> = columns.iter().filter_map(|column| Some(f64::from(column.extent?.mean))).collect();
    Some(ui::spark(area.width, &losses, theme.smooth)).filter(|_| losses.len() > 1)
}
