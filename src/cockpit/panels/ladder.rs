//! The ladder: every rung with its record, the current one marked.

use super::component::{Click, Component};
use crate::cockpit::action::Action;
use crate::cockpit::panels::rung;
use crate::cockpit::state::opened::Opened;
use crate::cockpit::state::requests::Refusal;
use crate::cockpit::state::screen::{Panel, View};
use crate::cockpit::state::{RungView, State};
use crate::cockpit::ui;
use crate::cockpit::update::Effect;
use crate::cockpit::update::actions::perform_action;
use crate::config::knobs::list_troubles;
use crate::format::{bytes, count, counted, in_words, rate};
use crate::outlook::request::Refusal::SameRung;
use crate::protocol::control::RungRecord;
use crate::recipe::class::{compare_presets, effective_batch, ranks, worst_class};
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    style::Style,
    text::{Line, Span},
};
use unicode_width::UnicodeWidthStr;

/// The rungs.
pub struct Ladder;

impl Component for Ladder {
    fn render(&self, frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
        let focused = state.screen.focus == Panel::Ladder;
        let note = Line::styled(autopilot_note(state, usize::from(area.width).saturating_sub(12)), theme.dim);
        let inner = ui::render_heading(frame, area, "ladder", note, focused, theme);
        if state.ladder.is_empty() {
            return ui::render_placeholder(frame, inner, "this run has a single preset, no ladder", theme);
        }
        let room = usize::from(inner.height);
        let (per_rung, visible) = rungs_that_fit(state.ladder.len(), room, inner.width);
        let start = first_visible(state, visible);
        let mut lines = Vec::new();
        for rung in (start..state.ladder.len()).take(visible) {
            lines.push(rung_line(state, rung, inner.width, theme));
            lines.extend((per_rung > 1).then(|| difference_line(state, rung, inner.width, theme)));
            lines.extend((per_rung > 2).then(Line::default));
        }
        let hidden = state.ladder.len().saturating_sub(visible);
        if hidden > 0 && room > 1 {
            lines.push(ui::more_note(start, hidden, theme));
        }
        if lines.len() < room && focused && state.screen.chosen_rung.is_some_and(|chosen| Some(chosen) != state.rung())
        {
            let hint = format!("{} previews a shift there", state.keys.key_of(Action::Confirm));
            lines.push(Line::styled(hint, theme.dim));
        }
        ui::render_lines(frame, inner, lines);
    }

    fn own_view(&self) -> View {
        View::Ladder
    }

    fn actions(&self, _state: &State) -> &'static [Action] {
        &[Action::Down, Action::Confirm]
    }

    fn label(&self, state: &State, action: Action) -> Option<&'static str> {
        match action {
            Action::Down => Some("choose"),
            Action::Confirm => matches!(self.open(state), Ok(Opened::Preview(_))).then_some("preview"),
            _ => None,
        }
    }

    fn open(&self, state: &State) -> Result<Opened, Refusal> {
        let here = state.rung();
        let chosen = state.screen.chosen_rung.filter(|rung| *rung < state.ladder.len() && Some(*rung) != here);
        if let Some(to) = chosen.filter(|_| here.is_some()) {
            return state.request_refusal().map_or(Ok(Opened::Preview(to)), Err);
        }
        let name = here.and_then(|rung| state.ladder.get(rung)).map(|rung| rung.name.clone());
        self.open_own_view(state, name.map_or(Refusal::NothingToOpen, |name| SameRung(name).into()))
    }

    fn copy(&self, state: &State) -> Option<String> {
        let rung = state.screen.chosen_rung.or(state.rung())?;
        state.ladder.get(rung).map(|rung| rung.name.clone())
    }

    fn scroll(&self, state: &mut State, lines: isize) -> Vec<Effect> {
        let Some(last) = state.ladder.len().checked_sub(1) else { return Vec::new() };
        let here = state.screen.chosen_rung.or(state.shown().rung()).unwrap_or(0);
        state.screen.rung_from = 0;
        state.screen.chosen_rung = Some(here.saturating_add_signed(-lines).min(last));
        vec![Effect::Redraw]
    }

    fn page(&self, state: &mut State, pages: isize) -> Vec<Effect> {
        if state.screen.view == self.own_view() {
            return rung::scroll(state, pages.saturating_mul(10));
        }
        self.scroll(state, pages.saturating_mul(10))
    }

    /// Chooses a rung; a second click opens the preview of a shift to it.
    fn click(&self, state: &mut State, click: Click) -> Vec<Effect> {
        match click.row().and_then(|row| rung_at(state.shown(), click.area.height, row)) {
            Some(rung) if state.screen.chosen_rung == Some(rung) => return perform_action(state, Action::Confirm),
            Some(rung) => (state.screen.chosen_rung, state.screen.rung_from) = (Some(rung), 0),
            None => {}
        }
        vec![Effect::Redraw]
    }
}

/// Describes the keeper's automatic actions in at most `width` columns; empty once the run is over.
fn autopilot_note(state: &State, width: usize) -> String {
    let Some(status) = state.status().filter(|_| !state.is_over()) else { return String::new() };
    let autopilot = if status.autopilot { "autopilot on" } else { "autopilot off" };
    let both = status.climb.as_ref().map(|climb| format!("{climb} · {autopilot}"));
    both.filter(|both| both.width() <= width).unwrap_or_else(|| autopilot.to_owned())
}

/// Returns the number of lines each rung gets in the given rows and columns: its record, then its
/// differences, then a blank line.
fn lines_each(rungs: usize, room: usize, width: u16) -> usize {
    let fits = |rows: &usize| room >= rungs * rows && (*rows == 1 || width >= 90);
    (1..=3).rev().find(fits).unwrap_or(1)
}

/// Returns the lines of each rung, and how many rungs fit. If not all do, the last row says how many more there are.
fn rungs_that_fit(rungs: usize, room: usize, width: u16) -> (usize, usize) {
    let each = lines_each(rungs, room, width);
    let fit = room / each;
    (each, if fit < rungs { fit.saturating_sub(1).max(1) } else { rungs })
}

/// Returns the rung in a row below the heading of a ladder of the given height.
#[must_use]
pub fn rung_at(state: &State, height: u16, row: usize) -> Option<usize> {
    let width = crate::cockpit::layout::lay_out_state(state).area_of(Panel::Ladder)?.width;
    let room = usize::from(height.saturating_sub(1));
    let (each, visible) = rungs_that_fit(state.ladder.len(), room, width);
    let rung = first_visible(state, visible) + row / each;
    (row / each < visible && rung < state.ladder.len()).then_some(rung)
}

/// Returns the first visible rung if not all fit.
fn first_visible(state: &State, visible: usize) -> usize {
    let cursor = state.screen.chosen_rung.or(state.rung()).unwrap_or(0);
    cursor.saturating_sub(visible.saturating_sub(1)).min(state.ladder.len().saturating_sub(visible))
}

fn rung_line(state: &State, rung: usize, width: u16, theme: &Theme) -> Line<'static> {
    let Some(view) = state.ladder.get(rung) else { return Line::default() };
    let current = state.rung() == Some(rung);
    let on_ladder = matches!(state.screen.focus, Panel::Ladder | Panel::Rung);
    let chosen = state.screen.chosen_rung == Some(rung) && on_ladder;
    let record = state.status().and_then(|status| status.rungs.get(rung));
    let width = usize::from(width);
    let name_width = state.ladder.iter().map(|rung| rung.name.chars().count()).max().unwrap_or(4).clamp(4, 16);
    let marker = if current { "▸ " } else { "  " };
    // A rung that has run has its own colour on the loss curve.
    let ran = record.is_some_and(|record| record.steps > 0);
    let name_style = if ran { theme.line(rung) } else { Style::new() };
    let mut line = Line::from(vec![
        Span::styled(marker, theme.accent),
        Span::styled(format!("{rung} "), theme.dim),
        Span::styled(ui::pad(&view.name, name_width), name_style),
    ]);
    let relieves = list_troubles(&view.relieves);
    let shown = record_columns(record, state.steps_per_s_on(rung), theme);
    // Least important dropped first: memory, then speed; or the fault that the current rung has overcome.
    let overcame = current && record.is_some_and(|record| record.fault.is_some()) && !shown.speed.content.is_empty();
    let order = if overcame { [0, 2, 1] } else { [2, 0, 1] };
    let columns = [(14, shown.speed), (11, shown.memory), (15, shown.steps)];
    let mut room = width.saturating_sub(4 + name_width);
    let mut kept = [false; 3];
    for place in order {
        if columns[place].0 <= room {
            kept[place] = true;
            room -= columns[place].0;
        }
    }
    for ((column, span), _) in columns.into_iter().zip(kept).filter(|(_, kept)| *kept) {
        line.push_span(Span::styled(ui::pad_left(&span.content, column), span.style));
    }
    if room >= 12 && !relieves.is_empty() {
        line.push_span(Span::styled(format!("  {}", ui::cut(&relieves, room - 2)), theme.dim));
    }
    if chosen { line.patch_style(theme.selected) } else { line }
}

/// The record of a rung, by column.
struct RecordColumns {
    speed: Span<'static>,
    memory: Span<'static>,
    steps: Span<'static>,
}

fn record_columns(record: Option<&RungRecord>, steps_per_s: Option<f64>, theme: &Theme) -> RecordColumns {
    let has_run = |record: &&RungRecord| record.steps > 0 || record.fault.is_some() || record.unusable.is_some();
    let Some(record) = record.filter(has_run) else {
        return RecordColumns {
            speed: Span::raw(""),
            memory: Span::raw(""),
            steps: Span::styled("not run yet", theme.dim),
        };
    };
    let speed = steps_per_s.map_or_else(String::new, |speed| format!("{} steps/s", rate(speed)));
    let memory = record.vram_bytes.filter(|used| *used > 0).or(record.ram_bytes).map_or_else(String::new, bytes);
    let steps = match &record.fault {
        _ if record.unusable.is_some() => Span::styled("cannot start", theme.warn),
        Some((_, step)) => Span::styled(format!("fault at {}", count(*step)), theme.warn),
        None => Span::styled(counted(record.steps, "step"), theme.dim),
    };
    RecordColumns { speed: Span::raw(speed), memory: Span::raw(memory), steps }
}

/// Describes how a rung differs from the current one, or how it ended badly.
fn difference_line(state: &State, rung: usize, width: u16, theme: &Theme) -> Line<'static> {
    let record = state.status().and_then(|status| status.rungs.get(rung));
    let fault = record.and_then(|record| record.fault.as_ref());
    let mut text = match (state.rung() == Some(rung), state.ladder.get(rung)) {
        (true, Some(view)) => describe_batch(view),
        _ => String::new(),
    };
    if let (Some(here), Some(there)) = (state.rung().and_then(|here| state.ladder.get(here)), state.ladder.get(rung))
        && state.rung() != Some(rung)
    {
        let changes = compare_presets(&here.preset, &there.preset);
        let class = worst_class(&changes);
        let knobs: Vec<_> =
            changes.iter().map(|change| format!("{} {}", short_name(&change.path), in_words(&change.to))).collect();
        text = if knobs.is_empty() {
            "same knobs".to_owned()
        } else {
            format!("class {class}, {}: {}", class.meaning(), knobs.join(", "))
        };
    }
    let unusable = record.and_then(|record| Some(format!("cannot start here: {}", record.unusable.as_ref()?)));
    let at_step = |(what, step): &(String, u64)| format!("last fault: {what}, at step {}", count(*step));
    if let Some(fault) = unusable.or_else(|| fault.map(at_step)) {
        text = if text.is_empty() { fault } else { format!("{fault} · {text}") };
    }
    Line::styled(format!("    {}", ui::cut(&text, usize::from(width).saturating_sub(4))), theme.dim)
}

/// Returns the last part of a knob's path; the preview shows the rest. A search has two optimizers, so that of the
/// architecture is named.
fn short_name(path: &str) -> &str {
    path.strip_prefix("optimizer.")
        .filter(|rest| rest.starts_with("architecture."))
        .unwrap_or_else(|| path.rsplit('.').next().unwrap_or(path))
}

/// Describes how a rung composes its batch: `16 samples × 2 passes = batch of 32`.
fn describe_batch(view: &RungView) -> String {
    let training = view.preset.get("training");
    let number = |key: &str| training?.get(key)?.as_u64();
    match (number("micro_batch"), number("accumulation"), effective_batch(&view.preset)) {
        (Some(micro), Some(passes), Some(batch)) => {
            let ranks = Some(ranks(&view.preset)).filter(|ranks| *ranks > 1);
            let times = ranks.map_or_else(String::new, |ranks| format!(" × {ranks} ranks"));
            format!("micro-batch {micro} × {passes}{times} = effective batch {batch}")
        }
        _ => String::new(),
    }
}
