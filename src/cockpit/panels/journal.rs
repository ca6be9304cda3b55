//! The run's events, newest at the bottom: checkpoints in a row and the lines of a fault are one entry each.

use super::component::{Click, Component, scrolled};
use crate::cockpit::action::Action;
use crate::cockpit::state::State;
use crate::cockpit::state::journal::{Fault, JournalEntry, Kinds, Outcome, chosen_entry, shown_entries};
use crate::cockpit::state::opened::Opened;
use crate::cockpit::state::requests::Refusal;
use crate::cockpit::state::screen::{Panel, View};
use crate::cockpit::ui;
use crate::cockpit::update::Effect;
use crate::cockpit::update::actions::perform_action;
use crate::format::{brief, clock, count, counted};
use crate::protocol::control::{CheckpointRow, JournalKind, JournalRow};
use crate::protocol::worker::Level;
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    style::Style,
    text::{Line, Span},
};
use std::ops::Range;
use unicode_width::UnicodeWidthStr;

/// Columns of the time and the sign.
const INDENT: usize = 11;
/// Rows of a panel from which a fault may take more than two.
const TALL: u16 = 10;

/// The run's events.
pub struct Journal;

impl Component for Journal {
    fn render(&self, frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
        let focused = state.screen.focus == Panel::Journal;
        let entries = shown_entries(state);
        let visible = visible_entries(state, &entries, area);
        let note = describe_choice(state, entries.len(), visible.end);
        let inner = ui::render_heading(frame, area, "journal", Line::styled(note, theme.accent), focused, theme);
        if state.facts.journal.is_empty() {
            return ui::render_placeholder(frame, inner, "no events yet", theme);
        }
        if entries.is_empty() {
            let text = if state.screen.filter.is_empty() {
                format!("no such events yet: {} shows others", state.keys.key_of(Action::Kinds))
            } else {
                "no matching lines: Esc clears the filter".to_owned()
            };
            return ui::render_placeholder(frame, inner, &text, theme);
        }
        let cursor = cursor(state, entries.len());
        let mut lines = Vec::new();
        for place in visible {
            let rows = entry_rows(state, &entries[place], area);
            let lines_of_entry = entry_lines(&entries[place], rows, state.utc_offset_s, theme);
            let mark = focused && place == cursor;
            lines.extend(
                lines_of_entry.into_iter().map(|line| if mark { line.patch_style(theme.selected) } else { line }),
            );
        }
        // Only a single entry may be cut; any other is shown whole or not at all.
        let room = usize::from(inner.height);
        if lines.len() > room {
            lines.truncate(room);
            let last = lines.pop().map(|line| ui::cut_line(line + Span::raw(" …"), usize::from(inner.width)));
            lines.extend(last);
        }
        ui::render_lines(frame, inner, lines);
    }

    fn own_view(&self) -> View {
        View::Log
    }

    fn actions(&self, _state: &State) -> &'static [Action] {
        &[Action::Down, Action::Confirm, Action::Kinds, Action::Filter]
    }

    fn label(&self, _state: &State, action: Action) -> Option<&'static str> {
        (action == Action::Down).then_some("choose")
    }

    fn open(&self, state: &State) -> Result<Opened, Refusal> {
        match chosen_entry(state) {
            Some(JournalEntry::Fault(fault)) => Ok(Opened::Fault(fault.end.id)),
            _ => self.open_own_view(state, Refusal::NotAFault),
        }
    }

    fn copy(&self, state: &State) -> Option<String> {
        let entry = chosen_entry(state)?;
        let time = clock(entry.anchor().time_ms, state.utc_offset_s);
        let text = match &entry {
            JournalEntry::Fault(fault) => fault.lines().map(|row| row.text.as_str()).collect::<Vec<_>>().join("; "),
            JournalEntry::Line(_) | JournalEntry::Checkpoints(_) => entry.anchor().text.clone(),
        };
        Some(format!("{time} {text}"))
    }

    fn scroll(&self, state: &mut State, lines: isize) -> Vec<Effect> {
        let entries = shown_entries(state.shown()).len();
        state.screen.journal_back = scrolled(state.screen.journal_back, lines, entries);
        vec![Effect::Redraw]
    }

    /// Chooses an entry. A fault opens at once, another entry opens the view of the log with the second click.
    fn click(&self, state: &mut State, click: Click) -> Vec<Effect> {
        let entry = click.row().and_then(|row| entry_at(state.shown(), click.area, row));
        let Some(back) = entry else { return vec![Effect::Redraw] };
        let same = std::mem::replace(&mut state.screen.journal_back, back) == back;
        state.refresh_past();
        let opens = match self.open(state.shown()) {
            Ok(Opened::Fault(_)) => true,
            Ok(_) => same && click.again,
            Err(_) => false,
        };
        if opens { perform_action(state, Action::Confirm) } else { vec![Effect::Redraw] }
    }
}

/// Returns the number of entries newer than the one in a row below the heading.
#[must_use]
pub fn entry_at(state: &State, area: Rect, row: usize) -> Option<usize> {
    let entries = shown_entries(state);
    let mut below = row;
    for place in visible_entries(state, &entries, area) {
        let rows = entry_rows(state, &entries[place], area).len();
        if below < rows {
            return Some(entries.len() - 1 - place);
        }
        below -= rows;
    }
    None
}

/// Describes which entries are shown, if not all.
fn describe_choice(state: &State, found: usize, end: usize) -> String {
    let (kinds, filter) = (state.screen.journal_kinds, &state.screen.filter);
    let kinds = (kinds != Kinds::All).then(|| kinds.name().to_owned());
    let matches = (!filter.is_empty()).then(|| format!("{found} of {} match \"{filter}\"", state.facts.journal.len()));
    let below = found.saturating_sub(end);
    let below = (below > 0).then(|| format!("{below} newer below"));
    [kinds, matches, below].into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

/// Returns the position of the cursor in a list of this length.
fn cursor(state: &State, entries: usize) -> usize {
    entries.saturating_sub(1).saturating_sub(state.screen.journal_back)
}

/// Returns the entries that fit: the newest, or those from the cursor on if it is above them.
fn visible_entries(state: &State, entries: &[JournalEntry<'_>], area: Rect) -> Range<usize> {
    let room = usize::from(area.height.saturating_sub(1));
    let height = |place: usize| entry_rows(state, &entries[place], area).len();
    let mut start = cursor(state, entries.len());
    let Some(mut used) = entries.get(start).map(|_| height(start)) else { return 0..0 };
    let mut end = start + 1;
    while end < entries.len() && used + height(end) <= room {
        used += height(end);
        end += 1;
    }
    while start > 0 && used + height(start - 1) <= room {
        start -= 1;
        used += height(start);
    }
    start..end
}

/// Returns the text of an entry in rows that fit beside the time.
fn entry_rows(state: &State, entry: &JournalEntry<'_>, area: Rect) -> Vec<String> {
    let width = usize::from(area.width).saturating_sub(INDENT).max(8);
    match entry {
        // Requests are kept for the record: one row is enough.
        JournalEntry::Line(row) if is_record(row) => first_rows(&row.text, width, 1),
        JournalEntry::Line(row) => ui::wrap(&row.text, width),
        JournalEntry::Checkpoints(rows) => ui::wrap(&describe_checkpoints(state, rows), width),
        JournalEntry::Fault(fault) => {
            let outcome = describe_outcome(fault);
            if fault.end.text.width() + 3 + outcome.width() <= width {
                return vec![format!("{} · {outcome}", fault.end.text)];
            }
            // Both stay, whatever is cut: a low panel has a row for each.
            let rows = if area.height < TALL { 1 } else { 2 };
            [&fault.end.text, &outcome].into_iter().flat_map(|text| first_rows(text, width, rows)).collect()
        }
    }
}

/// Returns the first rows of a text, the last of them cut if there are more.
fn first_rows(text: &str, width: usize, rows: usize) -> Vec<String> {
    let mut wrapped = ui::wrap(text, width);
    if wrapped.len() > rows {
        let rest = wrapped.split_off(rows - 1).join(" ");
        wrapped.push(ui::cut(&rest, width));
    }
    wrapped
}

/// Describes checkpoints in a row: `14 checkpoints, 1 400 to 2 700, 10 ms each`.
fn describe_checkpoints(state: &State, rows: &[&JournalRow]) -> String {
    let mut parts = vec![counted(rows.len() as u64, "checkpoint")];
    // A checkpoint is durable some time before its line is written.
    let span =
        rows.first().map_or(0, |row| row.time_ms.saturating_sub(60_000))..=rows.last().map_or(0, |row| row.time_ms);
    let mut saved: Vec<&CheckpointRow> =
        state.facts.checkpoints.values().filter(|row| span.contains(&row.time_ms)).collect();
    saved.sort_by_key(|row| row.time_ms);
    let saved = &saved[saved.len().saturating_sub(rows.len())..];
    if let [first, .., last] | [first @ last] = saved {
        let total: f64 = saved.iter().map(|row| row.total_ms).sum();
        let is_whole = saved.len() == rows.len() && first.step < last.step;
        let begin = if is_whole { format!("{} to", count(first.step)) } else { "last".to_owned() };
        parts.push(format!("{begin} {}", count(last.step)));
        parts.push(format!("{} each", brief(total / saved.len() as f64)));
    }
    parts.join(", ")
}

/// Describes how a fault came out: `shifted full → safe in 0.9 s: step 430 → 401, …`.
fn describe_outcome(fault: &Fault<'_>) -> String {
    match fault.outcome {
        Outcome::Recovered(row) => row.text.clone(),
        Outcome::Ended => "the run ended".to_owned(),
        Outcome::Open => "not training again yet".to_owned(),
        Outcome::Unknown => "the worker was started again".to_owned(),
    }
}

fn entry_lines(entry: &JournalEntry<'_>, rows: Vec<String>, offset_s: i32, theme: &Theme) -> Vec<Line<'static>> {
    let (sign, style) = match entry {
        JournalEntry::Line(row) => (row_sign(row, theme), row_style(row, theme)),
        JournalEntry::Checkpoints(rows) => (row_sign(rows[0], theme), theme.dim),
        JournalEntry::Fault(fault) => {
            let recovered = matches!(fault.outcome, Outcome::Recovered(_) | Outcome::Unknown);
            let style = if recovered { theme.warn } else { theme.danger };
            (Span::styled("×", style), style)
        }
    };
    let time_ms = entry.anchor().time_ms;
    let line = |(place, text): (usize, String)| {
        let mut line = if place == 0 {
            let time = Span::styled(clock(time_ms, offset_s), theme.dim);
            Line::from(vec![time, Span::raw(" "), sign.clone(), Span::raw(" ")])
        } else {
            Line::from(" ".repeat(INDENT))
        };
        line.push_span(Span::styled(text, style));
        line
    };
    rows.into_iter().enumerate().map(line).collect()
}

/// Reports whether a line only records who asked for something.
fn is_record(row: &JournalRow) -> bool {
    (row.level, row.kind) == (Level::Info, JournalKind::Request)
}

fn row_style(row: &JournalRow, theme: &Theme) -> Style {
    match (row.level, row.kind) {
        _ if is_record(row) => theme.dim,
        (Level::Error, _) => theme.danger,
        (Level::Warn, _) => theme.warn,
        (Level::Info, JournalKind::Checkpoint | JournalKind::Note | JournalKind::Health) => theme.dim,
        (Level::Info, _) => Style::new(),
    }
}

fn row_sign(row: &JournalRow, theme: &Theme) -> Span<'static> {
    match row.kind {
        JournalKind::Shift | JournalKind::Rate => Span::styled("┊", theme.accent),
        JournalKind::Restart | JournalKind::Worker => Span::styled("┊", theme.mark),
        JournalKind::Skip => Span::styled("▾", theme.warn),
        JournalKind::Checkpoint => Span::styled("┴", theme.good),
        JournalKind::Injected => Span::styled("×", theme.warn),
        _ => Span::styled("·", theme.faint),
    }
}
