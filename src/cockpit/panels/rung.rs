//! One rung in full: its record, and each knob where it differs from the current rung, with the
//! consequence.

use super::component::Component;
use super::ladder::Ladder;
use crate::cockpit::action::Action;
use crate::cockpit::layout::lay_out_state;
use crate::cockpit::state::opened::Opened;
use crate::cockpit::state::requests::Refusal;
use crate::cockpit::state::screen::{Panel, View};
use crate::cockpit::state::{RungView, State};
use crate::cockpit::ui;
use crate::cockpit::update::Effect;
use crate::config::knobs::list_troubles;
use crate::format::{bytes, count, counted, in_words, rate};
use crate::recipe::class::{Class, compare_presets, effective_batch};
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

/// One rung in full, that under the cursor of the ladder.
pub struct Rung;

impl Component for Rung {
    fn render(&self, frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
        let focused = state.screen.focus == Panel::Rung;
        let rung = state.screen.chosen_rung.or(state.rung()).filter(|rung| *rung < state.ladder.len());
        let Some((rung, view)) = rung.and_then(|rung| Some((rung, state.ladder.get(rung)?))) else {
            let inner = ui::render_heading(frame, area, "rung", Line::default(), focused, theme);
            return ui::render_placeholder(frame, inner, "current rung not known yet", theme);
        };
        let here = state.rung().and_then(|here| state.ladder.get(here)).filter(|_| state.rung() != Some(rung));
        let hint = match here {
            Some(_) => format!("{} previews a shift to it", state.keys.key_of(Action::Confirm)),
            None => "arrows choose a rung".to_owned(),
        };
        let title = format!("rung {}", view.name);
        let inner = ui::render_heading(frame, area, &title, Line::styled(hint, theme.dim), focused, theme);
        let mut lines = rung_lines(state, (rung, view), here, inner, theme);
        let (room, count) = (usize::from(inner.height), lines.len());
        if count > room && room > 1 {
            // The last row says how much more there is.
            let hidden = count - (room - 1);
            let from = state.screen.rung_from.min(hidden);
            lines.drain(..from);
            lines.truncate(room - 1);
            let keys = format!("{} {}  ", state.keys.key_of(Action::PageUp), state.keys.key_of(Action::PageDown));
            let mut note = ui::more_note(from, hidden, theme);
            note.spans.insert(0, Span::styled(keys, theme.dim));
            lines.push(note);
        }
        ui::render_lines(frame, inner, lines);
    }

    fn own_view(&self) -> View {
        View::Ladder
    }

    fn actions(&self, state: &State) -> &'static [Action] {
        Ladder.actions(state)
    }

    fn label(&self, state: &State, action: Action) -> Option<&'static str> {
        Ladder.label(state, action)
    }

    fn open(&self, state: &State) -> Result<Opened, Refusal> {
        Ladder.open(state)
    }

    fn copy(&self, state: &State) -> Option<String> {
        Ladder.copy(state)
    }

    fn scroll(&self, state: &mut State, lines: isize) -> Vec<Effect> {
        Ladder.scroll(state, lines)
    }

    fn page(&self, state: &mut State, pages: isize) -> Vec<Effect> {
        Ladder.page(state, pages)
    }

    fn wheel(&self, state: &mut State, _column: u16, lines: isize) -> Vec<Effect> {
        scroll(state, lines)
    }
}

/// Scrolls the lines: positive is up.
pub fn scroll(state: &mut State, lines: isize) -> Vec<Effect> {
    let most = hidden_rows(state.shown());
    state.screen.rung_from = state.screen.rung_from.min(most).saturating_add_signed(-lines).min(most);
    vec![Effect::Redraw]
}

/// Returns how many lines of the panel do not fit.
fn hidden_rows(state: &State) -> usize {
    let Some(area) = lay_out_state(state).area_of(Panel::Rung) else { return 0 };
    let rung = state.screen.chosen_rung.or(state.rung());
    let Some(view) = rung.and_then(|rung| Some((rung, state.ladder.get(rung)?))) else { return 0 };
    let here = state.rung().and_then(|here| state.ladder.get(here)).filter(|_| state.rung() != rung);
    let inner = Rect { height: area.height.saturating_sub(1), ..area };
    let (room, count) = (usize::from(inner.height), rung_lines(state, view, here, inner, &Theme::plain()).len());
    if count > room { count - room.saturating_sub(1) } else { 0 }
}

fn rung_lines(
    state: &State,
    (rung, view): (usize, &RungView),
    here: Option<&RungView>,
    inner: Rect,
    theme: &Theme,
) -> Vec<Line<'static>> {
    let mut lines = record_lines(state, rung, view, theme);
    lines.push(Line::default());
    let width = usize::from(inner.width);
    match here {
        Some(here) => lines.extend(difference_lines(here, view, width, theme)),
        None => lines.extend(knob_lines(view, inner, theme)),
    }
    lines
}

fn record_lines(state: &State, rung: usize, view: &RungView, theme: &Theme) -> Vec<Line<'static>> {
    let label = |text: &str| Span::styled(ui::pad(text, 12), theme.dim);
    let relieves = list_troubles(&view.relieves);
    let (name, relieves) =
        if relieves.is_empty() { ("speed", "the fastest rung".to_owned()) } else { ("against", relieves) };
    let mut lines = vec![Line::from(vec![label(name), Span::raw(relieves)])];
    if let Some(batch) = effective_batch(&view.preset) {
        lines.push(Line::from(vec![label("batch"), Span::raw(format!("{} samples per step", count(batch)))]));
    }
    let of_rung = state.status().and_then(|status| status.rungs.get(rung));
    let record = of_rung.filter(|record| record.steps > 0);
    let ran = record.map_or_else(
        || "not run yet".to_owned(),
        |record| {
            let speed = state.steps_per_s_on(rung).map(|speed| format!("{} steps/s", rate(speed)));
            let vram = record.vram_bytes.filter(|used| *used > 0).map(|used| format!("VRAM {}", bytes(used)));
            let ram = record.ram_bytes.map(|used| format!("RAM {}", bytes(used)));
            let parts = [Some(counted(record.steps, "step")), speed, vram, ram];
            parts.into_iter().flatten().collect::<Vec<_>>().join(" · ")
        },
    );
    lines.push(Line::from(vec![label("measured"), Span::raw(ran)]));
    if let Some(why) = of_rung.and_then(|record| record.unusable.as_ref()) {
        lines.push(Line::from(vec![label("last start"), Span::styled(format!("failed: {why}"), theme.warn)]));
    } else if let Some((what, step)) = record.and_then(|record| record.fault.as_ref()) {
        let text = format!("{what}, at step {}", count(*step));
        lines.push(Line::from(vec![label("last fault"), Span::styled(text, theme.warn)]));
    }
    lines
}

fn difference_lines(current: &RungView, chosen: &RungView, width: usize, theme: &Theme) -> Vec<Line<'static>> {
    let changes = compare_presets(&current.preset, &chosen.preset);
    if changes.is_empty() {
        return vec![Line::styled(format!("same knobs as {}", current.name), theme.dim)];
    }
    let path_width = changes.iter().map(|change| change.path.len()).max().unwrap_or(0).min(width / 2);
    let mut lines = vec![Line::styled(format!("differences from {}", current.name), theme.dim)];
    for change in changes {
        let style = match change.class {
            Class::A => theme.good,
            Class::B => theme.accent,
            Class::C => theme.warn,
        };
        let values = format!("{} → {}", in_words(&change.from), in_words(&change.to));
        lines.push(Line::from(vec![
            Span::raw(ui::pad(&change.path, path_width + 2)),
            Span::styled(ui::pad(&values, 24.min(width / 3)), theme.strong),
            Span::styled(format!("  {}", change.class), style),
            Span::styled(format!("  {}", change.class.meaning()), theme.dim),
        ]));
    }
    lines
}

/// Returns the knobs of a preset, in two columns if they fit.
fn knob_lines(view: &RungView, area: Rect, theme: &Theme) -> Vec<Line<'static>> {
    let mut knobs = Vec::new();
    flatten_knobs(String::new(), &view.preset, &mut knobs);
    let columns = usize::from(area.width / 48).clamp(1, 3);
    let width = usize::from(area.width) / columns;
    let rows = knobs.len().div_ceil(columns);
    let mut lines = vec![Line::styled("knobs", theme.dim)];
    for row in 0..rows {
        let mut line = Line::default();
        for (path, value) in knobs.iter().skip(row).step_by(rows.max(1)) {
            let name = ui::pad(path, (width * 3 / 5).min(34));
            let rest = width.saturating_sub((width * 3 / 5).min(34) + 2);
            line.push_span(Span::styled(name, theme.dim));
            line.push_span(Span::raw(format!(" {} ", ui::pad(value, rest))));
        }
        lines.push(line);
    }
    lines
}

fn flatten_knobs(path: String, value: &serde_json::Value, knobs: &mut Vec<(String, String)>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                flatten_knobs(path, value, knobs);
            }
        }
        serde_json::Value::Null => {}
        other => knobs.push((path, in_words(other))),
    }
}
