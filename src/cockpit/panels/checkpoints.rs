//! Checkpoints on disk, newest first.

use super::component::{Click, Component};
use crate::cockpit::action::Action;
use crate::cockpit::state::State;
use crate::cockpit::state::opened::Opened;
use crate::cockpit::state::requests::Refusal;
use crate::cockpit::state::screen::{Panel, View};
use crate::cockpit::ui;
use crate::cockpit::update::Effect;
use crate::cockpit::update::menu;
use crate::config::best::Best;
use crate::format::{age, bytes, count, figure, took};
use crate::protocol::capability::Level;
use crate::protocol::control::CheckpointRow;
use crate::protocol::metrics::LOSS;
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};
use std::path::Path;

/// The checkpoints.
pub struct Checkpoints;

impl Component for Checkpoints {
    fn render(&self, frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
        let focused = state.screen.focus == Panel::Checkpoints;
        let all = &state.facts.checkpoints;
        let past = state.moment.is_some();
        let kept = state.listed_checkpoints();
        let note = match (all.is_empty(), past) {
            (true, _) => String::new(),
            (false, true) => format!("{} saved by then", all.len()),
            (false, false) => {
                let explain = area.width >= 90 && kept.iter().any(|row| row.proven);
                let proven = if explain { "proven: training went on well past it · " } else { "" };
                format!("{proven}{} saved, {} kept", all.len(), kept.len())
            }
        };
        let inner = ui::render_heading(frame, area, "checkpoints", Line::styled(note, theme.dim), focused, theme);
        if kept.is_empty() {
            let unwatched = state.status().is_some_and(|status| status.level == Some(Level::Command.number()));
            let why = if unwatched {
                "a restart begins anew: name the script's checkpoints with `checkpoints:` and `resume:` in a run file"
                    .to_owned()
            } else if state.capability().saves_on_request() && !past {
                format!("no checkpoints yet: {} saves one now", state.keys.key_of(Action::Checkpoint))
            } else {
                "no checkpoints yet".to_owned()
            };
            return ui::render_placeholder(frame, inner, &why, theme);
        }
        let skip = first_visible(state, area.height);
        let durable = state.status().and_then(|status| status.durable_step);
        let room = list_rows(state, area.height);
        let hidden = kept.len().saturating_sub(room);
        let rows = kept.into_iter().skip(skip).take(room);
        let (ranking, now_ms) = (state.ranking(), state.now_ms);
        let chosen = state.chosen_checkpoint().filter(|_| focused).map(|row| row.step);
        let lines = rows.map(|row| {
            let line = checkpoint_line(row, &ranking, durable, now_ms, inner.width, theme);
            if chosen == Some(row.step) { line.patch_style(theme.selected) } else { line }
        });
        let more = (hidden > 0).then(|| ui::more_note(skip, hidden, theme));
        ui::render_lines(frame, inner, lines.chain(more).collect());
    }

    fn own_view(&self) -> View {
        View::Health
    }

    fn actions(&self, _state: &State) -> &'static [Action] {
        &[Action::Down, Action::Confirm]
    }

    fn label(&self, _state: &State, action: Action) -> Option<&'static str> {
        match action {
            Action::Down => Some("choose"),
            Action::Confirm => Some("menu"),
            _ => None,
        }
    }

    fn open(&self, state: &State) -> Result<Opened, Refusal> {
        match state.chosen_checkpoint() {
            Some(_) => Ok(Opened::CheckpointMenu),
            None => self.open_own_view(state, Refusal::NoCheckpoint),
        }
    }

    fn copy(&self, state: &State) -> Option<String> {
        let row = state.chosen_checkpoint()?;
        Some(Path::new(&state.status()?.run_dir).join(&row.path).to_string_lossy().into_owned())
    }

    fn scroll(&self, state: &mut State, lines: isize) -> Vec<Effect> {
        let last = state.shown().listed_checkpoints().len().saturating_sub(1);
        let place = state.screen.chosen_checkpoint.min(last);
        state.screen.chosen_checkpoint = place.saturating_add_signed(-lines).min(last);
        vec![Effect::Redraw]
    }

    /// Chooses a checkpoint; a second click opens its menu.
    fn click(&self, state: &mut State, click: Click) -> Vec<Effect> {
        let place = click.row().and_then(|row| checkpoint_at(state.shown(), click.area.height, row));
        match place {
            Some(place) if click.again && place == state.screen.chosen_checkpoint => {
                return menu::open_checkpoint_menu(state);
            }
            Some(place) => state.screen.chosen_checkpoint = place,
            None => {}
        }
        vec![Effect::Redraw]
    }
}

/// Returns the rows for checkpoints in a panel of this height: without the heading, and the row that says how many
/// more there are, if not all fit.
fn list_rows(state: &State, height: u16) -> usize {
    let rows = usize::from(height.saturating_sub(1)).max(1);
    let is_full = state.listed_checkpoints().len() > rows && rows > 1;
    rows - usize::from(is_full)
}

/// Returns the first visible checkpoint of a panel of this height, so that the chosen one is visible.
fn first_visible(state: &State, height: u16) -> usize {
    let last = state.listed_checkpoints().len().saturating_sub(1);
    state.screen.chosen_checkpoint.min(last).saturating_sub(list_rows(state, height) - 1)
}

/// Returns the index of the checkpoint in a row below the heading of a panel of this height.
#[must_use]
pub fn checkpoint_at(state: &State, height: u16, row: usize) -> Option<usize> {
    let place = first_visible(state, height) + row;
    (row < list_rows(state, height) && place < state.listed_checkpoints().len()).then_some(place)
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
        let name = if ranking.metric == LOSS { "validation loss" } else { &ranking.metric };
        let value = value.map_or_else(String::new, |value| format!("{name} {}", figure(value)));
        let paused = row.pause_ms.max(0.0).round() as u64;
        let total = row.total_ms.max(0.0).round() as u64;
        let times = format!("paused {}, durable in {}", took(paused), took(total));
        let verdict = if row.proven { "proven" } else { ["unchecked", "intact"][usize::from(verified)] };
        line.push_span(Span::raw(ui::pad(verdict, 10)));
        line.push_span(Span::raw(ui::pad(&value, 23)));
        line.push_span(Span::styled(times, theme.dim));
    }
    line
}
