//! The alerts that hold: the reason, since when, and the remedy.

use crate::cockpit::action::Action;
use crate::cockpit::state::State;
use crate::cockpit::ui::{self, Popup, Stand};
use crate::cockpit::verdict::Tone;
use crate::cockpit::verdict::alerts::{Alert, alerts};
use crate::format::age;
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

const WIDTH: u16 = 84;
const INDENT: usize = 2;

/// Draws the box, from a line on.
pub fn render(frame: &mut Frame<'_>, within: Rect, from: usize, state: &State, theme: &Theme) {
    let found = alerts(state);
    let width = inner_width(within);
    let mut lines = Vec::new();
    for alert in &found {
        let (reason, remedy) = alert_text(state, alert, width);
        let style = ui::tone_style(theme, alert.verdict.tone);
        for (place, text) in reason.into_iter().enumerate() {
            let sign = if place == 0 { "⚠ " } else { "  " };
            lines.push(Line::from(vec![Span::styled(sign, style), Span::styled(text, style)]));
        }
        lines.extend(remedy.into_iter().map(|text| Line::styled(format!("  {text}"), theme.dim)));
        lines.push(Line::default());
    }
    lines.pop();
    if found.is_empty() {
        lines.push(Line::styled("no alerts", theme.dim));
    }
    let tone = match found.iter().map(Alert::is_danger).max() {
        Some(true) => Tone::Danger,
        Some(false) => Tone::Warn,
        None => Tone::Plain,
    };
    let keys = ui::KeyLine(vec![(state.keys.key_of(Action::Back), "close", Action::Back)]);
    let size = (WIDTH, ui::scroll_box_height(lines.len()));
    Popup { title: "alerts", size, tone, stand: Stand::Middle }.open_scrolled(frame, within, lines, from, &keys, theme);
}

/// Returns the number of lines of the box that do not fit.
#[must_use]
pub fn hidden_rows(state: &State) -> usize {
    let (width, height) = state.screen.size;
    let within = super::box_room(Rect::new(0, 0, width, height));
    let rows = |alert: &Alert| {
        let (reason, remedy) = alert_text(state, alert, inner_width(within));
        reason.len() + remedy.len() + 1
    };
    let lines: usize = alerts(state).iter().map(rows).sum();
    ui::hidden_in_box(within, lines.saturating_sub(1).max(1))
}

fn inner_width(within: Rect) -> usize {
    usize::from(within.width.saturating_sub(6).min(WIDTH)).max(1)
}

/// Returns the rows of the reason, and those of the age with the remedy.
fn alert_text(state: &State, alert: &Alert, width: usize) -> (Vec<String>, Vec<String>) {
    let width = width.saturating_sub(INDENT).max(1);
    let verdict = &alert.verdict;
    let since = state.alerts.since_ms(alert.kind).unwrap_or(state.now_ms);
    let age = format!("for {}", age(state.now_ms.saturating_sub(since)));
    let key = verdict.advice.map(|(action, effect)| format!("{} {effect}", state.keys.key_of(action)));
    let command = verdict.command.as_ref().map(|(command, effect)| format!("{command} {effect}"));
    let needs_other = key.is_none() && command.is_none();
    let other = needs_other.then(|| alert.other_remedy().to_owned());
    let remedies: Vec<String> = [key, other, command].into_iter().flatten().collect();
    (ui::wrap(&verdict.text, width), ui::wrap(&format!("{age} · {}", remedies.join(" · ")), width))
}
