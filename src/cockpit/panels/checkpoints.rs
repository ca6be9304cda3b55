//! Checkpoints on disk, newest first.

use crate::cockpit::state::State;
use crate::cockpit::state::screen::Panel;
use crate::cockpit::ui;
use crate::config::best::Best;
use crate::config::theme::Theme;
use crate::format::{age, bytes, count, figure, took};
use crate::protocol::control::CheckpointRow;
use crate::protocol::metrics::LOSS;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

/// Draws the panel.
pub fn render(frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
    let focused = state.screen.focus == Panel::Checkpoints;
    let all = &state.facts.checkpoints;
    // The record does not say which of them were on disk at a past moment: list all that were saved by then.
    let past = state.moment.is_some();
    let kept: Vec<_> = all.values().rev().filter(|row| row.kept || past).collect();
    let note = match (all.is_empty(), past) {
        (true, _) => String::new(),
        (false, true) => format!("{} saved by then", all.len()),
        (false, false) => format!("{} saved, {} kept", all.len(), kept.len()),
    };
    let inner = ui::render_heading(frame, area, "checkpoints", Line::styled(note, theme.dim), focused, theme);
    if kept.is_empty() {
        return ui::render_placeholder(frame, inner, "no checkpoints yet", theme);
    }
    let skip = state.screen.checkpoints_back.min(kept.len().saturating_sub(1));
    let durable = state.status().and_then(|status| status.durable_step);
    let rows = kept.into_iter().skip(skip).take(usize::from(inner.height));
    let (ranking, now_ms) = (state.ranking(), state.now_ms);
    let lines = rows.map(|row| checkpoint_line(row, &ranking, durable, now_ms, inner.width, theme)).collect();
    ui::render_lines(frame, inner, lines);
}

fn checkpoint_line(
    row: &CheckpointRow,
    ranking: &Best,
    durable: Option<u64>,
    now_ms: i64,
    width: u16,
    theme: &Theme,
) -> Line<'static> {
    let verified = durable.is_some_and(|durable| row.step <= durable);
    let (dot, style) = if verified { ("●", theme.good) } else { ("○", theme.warn) };
    let mut line = Line::from(vec![
        Span::styled(format!("{dot} "), style),
        Span::styled("step ", theme.dim),
        Span::raw(ui::pad_left(&count(row.step), if width >= 60 { 9 } else { 7 })),
        Span::styled(ui::pad_left(&format!("{} ago", age(now_ms.saturating_sub(row.time_ms))), 15), theme.dim),
        Span::raw(ui::pad_left(&bytes(row.bytes), 10)),
    ]);
    let mark = match (row.best, row.kept) {
        (true, _) => Span::styled("  ◆ best   ", theme.good),
        (false, true) => Span::raw(" ".repeat(11)),
        (false, false) => Span::styled("  deleted  ", theme.dim),
    };
    line.push_span(mark);
    if width >= 90 {
        let value = ranking.value(row.eval_loss, &row.metrics);
        let name = if ranking.metric == LOSS { "evaluation loss" } else { &ranking.metric };
        let value = value.map_or_else(String::new, |value| format!("{name} {}", figure(value)));
        let paused = row.pause_ms.max(0.0).round() as u64;
        let total = row.total_ms.max(0.0).round() as u64;
        let times = format!("paused {}, durable in {}", took(paused), took(total));
        let verdict = if row.proven { "proven" } else { ["unproven", "verified"][usize::from(verified)] };
        line.push_span(Span::raw(ui::pad(verdict, 10)));
        line.push_span(Span::raw(ui::pad(&value, 23)));
        line.push_span(Span::styled(times, theme.dim));
    }
    line
}
