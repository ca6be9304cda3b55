//! A terminal too small for panels: what matters, in as many words as fit, and how large it
//! would have to be.

use crate::cockpit::format::{count, figure};
use crate::cockpit::layout::SMALLEST;
use crate::cockpit::state::State;
use crate::cockpit::ui;
use crate::cockpit::verdict::verdict;
use crate::config::theme::Theme;
use ratatui::{Frame, layout::Rect, text::Line};

/// Draws what fits.
pub fn render(frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
    let width = usize::from(area.width);
    let mut lines = Vec::new();
    if let Some(status) = state.status() {
        let loss = status.loss.map_or_else(String::new, |loss| format!("  loss {}", figure(loss)));
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
    let size =
        format!("{}×{} is too small for panels; {}×{} would do", area.width, area.height, SMALLEST.0, SMALLEST.1);
    lines.extend(ui::wrap(&size, width).into_iter().map(|row| Line::styled(row, theme.dim)));
    ui::lines(frame, area, lines);
}
