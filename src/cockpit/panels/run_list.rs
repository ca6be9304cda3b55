//! The table of runs: a header that sorts, a row per run, the note of the run under the cursor.
//!
//! ```text
//! runs ───────────────────────────────── ───────────────────── 3 archived
//!   name                    state      started ▾    duration    steps        best
//! ━ digits-20261120-140115  training   14:01        1 min 12 s    700  52 %  accuracy 93.4 %
//! ```
//! In a narrow panel the least important columns are left out; nothing is cut without an ellipsis.

use super::component::{Click, Component};
use crate::cockpit::action::Action;
use crate::cockpit::layout::lay_out_state;
use crate::cockpit::state::State;
use crate::cockpit::state::opened::Opened;
use crate::cockpit::state::requests::Refusal;
use crate::cockpit::state::screen::{Panel, View};
use crate::cockpit::update::Effect;
use crate::cockpit::update::actions::perform_action;
use crate::cockpit::update::run_list;
use crate::cockpit::{run_cells as cell, ui};
use crate::store::run_summary::RunSummary;
use crate::store::run_summary::column::Column;
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    style::Style,
    text::{Line, Span},
};
use unicode_width::UnicodeWidthStr;

/// A column on the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cell {
    Name,
    State,
    Started,
    Duration,
    Useful,
    Steps,
    Done,
    Best,
    Device,
    Rung,
    Set,
    Tags,
}

impl Cell {
    /// All of them, from left to right.
    const ALL: [Self; 12] = [
        Self::Name,
        Self::State,
        Self::Started,
        Self::Duration,
        Self::Useful,
        Self::Steps,
        Self::Done,
        Self::Best,
        Self::Device,
        Self::Rung,
        Self::Set,
        Self::Tags,
    ];
    /// The order in which they are left out.
    const DROPPED: [Self; 10] = [
        Self::Device,
        Self::Rung,
        Self::Duration,
        Self::Started,
        Self::Done,
        Self::Set,
        Self::Tags,
        Self::Useful,
        Self::Steps,
        Self::Best,
    ];

    /// Returns the column that a click on its heading sorts by.
    fn column(self) -> Column {
        match self {
            Self::Name => Column::Name,
            Self::State => Column::State,
            Self::Started => Column::Started,
            Self::Duration => Column::Duration,
            Self::Useful => Column::Useful,
            Self::Steps | Self::Done => Column::Steps,
            Self::Best => Column::Best,
            Self::Device => Column::Device,
            Self::Rung => Column::Rung,
            Self::Set => Column::Set,
            Self::Tags => Column::Tags,
        }
    }

    fn heading(self) -> &'static str {
        if self == Self::Done { "" } else { self.column().name() }
    }

    /// Returns the most columns it may take.
    fn most(self) -> usize {
        match self {
            Self::Name => 40,
            Self::Best => 28,
            Self::Set | Self::Tags => 32,
            Self::Rung => 16,
            _ => 20,
        }
    }

    fn is_number(self) -> bool {
        matches!(self, Self::Duration | Self::Useful | Self::Steps | Self::Done)
    }

    fn text(self, run: &RunSummary, state: &State) -> String {
        match self {
            Self::Name => run.name.clone(),
            Self::State => cell::state(run, known_ms(run, state)),
            Self::Started => cell::started(run, state.now_ms, state.utc_offset_s),
            Self::Duration => cell::duration(run, state.now_ms),
            Self::Useful => cell::useful(run),
            Self::Steps => cell::steps(run),
            Self::Done => cell::done_text(run),
            Self::Best => cell::best(run),
            Self::Device => cell::device(run),
            Self::Rung => cell::rung(run),
            Self::Set => cell::overrides(run),
            Self::Tags => cell::tags(run),
        }
    }

    fn style(self, run: &RunSummary, state: &State, theme: &Theme) -> Style {
        match (self, &run.status) {
            (Self::State, Some(status)) => ui::tone_style(theme, cell::state_tone(status, known_ms(run, state))),
            (Self::State, None) | (Self::Started | Self::Duration | Self::Device | Self::Rung, _) => theme.dim,
            (Self::Tags, _) => theme.accent,
            _ => Style::new(),
        }
    }
}

/// Returns the time up to which the steps of a run are known: the open run tells its own, the others are read at intervals.
fn known_ms(run: &RunSummary, state: &State) -> i64 {
    if run.name == state.run_name() { state.now_ms } else { state.runs.listed_ms }
}

/// Columns between two cells, and before the first one.
const GAP: usize = 2;

/// Returns the cells that fit into a width, with the width of each.
fn fit_cells(state: &State, width: usize) -> Vec<(Cell, usize)> {
    let widest = |cell: Cell| {
        let rows = state.runs.shown().map(|run| cell.text(run, state).width()).max().unwrap_or(0);
        // The mark of the order stands behind the heading.
        let heading = if cell.heading().is_empty() { 0 } else { cell.heading().width() + 2 };
        if rows == 0 && cell != Cell::Name { 0 } else { rows.min(cell.most()).max(heading) }
    };
    let mut cells: Vec<(Cell, usize)> =
        Cell::ALL.into_iter().map(|cell| (cell, widest(cell))).filter(|(_, width)| *width > 0).collect();
    let needed = |cells: &[(Cell, usize)]| cells.iter().map(|(_, width)| GAP + width).sum::<usize>();
    for dropped in Cell::DROPPED {
        // A long name gives way before another column does.
        let excess = needed(&cells).saturating_sub(width);
        if let Some((_, name)) = cells.first_mut() {
            *name -= excess.min(name.saturating_sub(24));
        }
        if needed(&cells) <= width {
            break;
        }
        cells.retain(|(cell, _)| *cell != dropped);
    }
    // A dropped column may leave room for the whole name again.
    let rest = width.saturating_sub(needed(&cells));
    if let Some((_, name)) = cells.first_mut() {
        *name = (*name + rest).min(widest(Cell::Name)).min(width.saturating_sub(GAP));
    }
    cells
}

/// Returns the column whose heading is at a column of the panel.
#[must_use]
pub fn column_at(state: &State, x: u16) -> Option<Column> {
    let width = lay_out_state(state).area_of(Panel::RunList)?.width;
    let mut end = 0;
    let cells = fit_cells(state, usize::from(width));
    cells.into_iter().find_map(|(cell, width)| {
        end += GAP + width;
        (usize::from(x) < end).then_some(cell.column())
    })
}

/// All runs.
pub struct RunList;

impl Component for RunList {
    fn render(&self, frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
        let focused = state.screen.focus == Panel::RunList;
        let inner =
            ui::render_heading(frame, area, "runs", Line::styled(heading_note(state), theme.dim), focused, theme);
        let Some(rows) = state.runs.rows.as_ref() else {
            return ui::render_placeholder(frame, inner, "listing runs", theme);
        };
        if state.runs.shown_count() == 0 {
            let text = match (rows.is_empty(), state.runs.filter.is_empty()) {
                (true, _) => "no runs in this folder",
                (false, true) => "every run is archived; the menu shows them",
                (false, false) => "no run has all of these words",
            };
            return ui::render_placeholder(frame, inner, text, theme);
        }
        let width = usize::from(inner.width);
        let cells = fit_cells(state, width);
        let mut lines = vec![header_line(state, &cells, theme)];
        let first = first_visible(state, area.height);
        let (room, cursor) = (list_rows(state, area.height), state.runs.cursor());
        for (place, run) in state.runs.shown().enumerate().skip(first).take(room) {
            let line = run_line(state, run, &cells, width, theme);
            lines.push(if place == cursor { line.patch_style(theme.selected) } else { line });
        }
        let hidden = state.runs.shown_count().saturating_sub(room);
        lines.extend((hidden > 0).then(|| ui::more_note(first, hidden, theme)));
        lines.extend(note_line(state, width, theme));
        ui::render_lines(frame, inner, lines);
    }

    fn own_view(&self) -> View {
        View::Runs
    }

    fn actions(&self, _state: &State) -> &'static [Action] {
        &[Action::Confirm, Action::Menu, Action::Sooner, Action::Later, Action::Toggle, Action::Filter, Action::Sort]
    }

    fn label(&self, _state: &State, action: Action) -> Option<&'static str> {
        (action == Action::Down).then_some("choose")
    }

    fn can_act(&self, state: &State, action: Action) -> bool {
        match action {
            // Most runs are in no queue.
            Action::Sooner | Action::Later => state.is_possible(action),
            Action::Confirm => self.open(state).is_ok(),
            _ => true,
        }
    }

    fn open(&self, state: &State) -> Result<Opened, Refusal> {
        match state.runs.chosen() {
            Some(row) if row.name == state.run_name() => Err(Refusal::AlreadyOpen),
            Some(row) if row.status.is_none() => Err(Refusal::NeverStarted),
            Some(row) => Ok(Opened::Run(row.name.clone())),
            None => Err(Refusal::NothingToOpen),
        }
    }

    fn copy(&self, state: &State) -> Option<String> {
        state.runs.chosen().map(|row| row.name.clone())
    }

    fn scroll(&self, state: &mut State, lines: isize) -> Vec<Effect> {
        run_list::move_cursor(state, lines)
    }

    /// Sorts by the heading of a column, or chooses a run; a second click opens it.
    fn click(&self, state: &mut State, click: Click) -> Vec<Effect> {
        let Some(row) = click.row() else { return vec![Effect::Redraw] };
        let Some(row) = row.checked_sub(1) else {
            let column = column_at(state.shown(), click.at.0 - click.area.x);
            return column.map_or_else(|| vec![Effect::Redraw], |column| run_list::sort_by(state, column));
        };
        let Some(place) = run_at(state.shown(), click.area.height, row) else { return vec![Effect::Redraw] };
        if state.runs.click(place) {
            return perform_action(state, Action::Confirm);
        }
        run_list::redraw_and_load(state)
    }
}

/// Returns how many runs the table leaves out, and why. The footer lists the keys.
fn heading_note(state: &State) -> String {
    let Some(rows) = &state.runs.rows else { return String::new() };
    let (shown, hidden, filter) = (state.runs.shown_count(), state.runs.hidden_count(), &state.runs.filter);
    match (filter.is_empty(), hidden) {
        (true, 0) => String::new(),
        (true, hidden) => format!("{hidden} archived"),
        (false, hidden) => format!("{shown} of {} with “{}”", rows.len() - hidden, ui::cut(filter, 24)),
    }
}

fn header_line(state: &State, cells: &[(Cell, usize)], theme: &Theme) -> Line<'static> {
    let sort = state.runs.sort;
    let spans = cells.iter().flat_map(|(cell, width)| {
        let sorted = cell.column() == sort.column && *cell != Cell::Done;
        let mark = if sorted { [" ▾", " ▴"][usize::from(sort.reverse)] } else { "" };
        let text = format!("{}{mark}", cell.heading());
        let text = if cell.is_number() { ui::pad_left(&text, *width) } else { ui::pad(&text, *width) };
        [Span::raw(" ".repeat(GAP)), Span::styled(text, if sorted { theme.accent } else { theme.dim })]
    });
    Line::from(spans.collect::<Vec<_>>())
}

fn run_line(state: &State, run: &RunSummary, cells: &[(Cell, usize)], width: usize, theme: &Theme) -> Line<'static> {
    let here = run.name == state.run_name();
    let status = state.status().filter(|_| here && state.moment.is_none());
    let own = status.map(|status| RunSummary { status: Some(status.clone()), ..run.clone() });
    let run = own.as_ref().unwrap_or(run);
    let marked = state.runs.marked.iter().position(|marked| *marked == run.name);
    // This run takes the first colour, the marked ones those after it.
    let (sign, style) = match (here, marked) {
        (true, _) => ("━ ", theme.line(0)),
        (false, Some(place)) => ("━ ", theme.line(place + 1)),
        (false, None) => ("  ", Style::new()),
    };
    let mut line = Line::styled("", Style::new());
    for (place, (cell, width)) in cells.iter().enumerate() {
        let text = cell.text(run, state);
        let text = if cell.is_number() { ui::pad_left(&text, *width) } else { ui::pad(&text, *width) };
        let strong = here && *cell == Cell::Name;
        line.push_span(if place == 0 { Span::styled(sign, style) } else { Span::raw(" ".repeat(GAP)) });
        line.push_span(Span::styled(text, if strong { theme.strong } else { cell.style(run, state, theme) }));
    }
    // The cursor covers the whole row.
    let rest = width.saturating_sub(line.width());
    line.push_span(Span::raw(" ".repeat(rest)));
    line
}

/// Returns the note of the run under the cursor, or why it cannot be read, on the panel's last row.
fn note_line(state: &State, width: usize, theme: &Theme) -> Option<Line<'static>> {
    let (title, note) = note(state)?;
    let text = ui::cut(&note.replace('\n', " "), width.saturating_sub(8));
    Some(Line::from(vec![Span::styled(ui::pad(&format!("  {title}"), 8), theme.dim), Span::raw(text)]))
}

/// Returns the title and the text of the note line.
fn note(state: &State) -> Option<(&'static str, &str)> {
    let run = state.runs.chosen()?;
    let error = run.labels_error.as_deref().map(|error| ("error", error));
    error.or_else(|| (!run.labels.note.is_empty()).then_some(("note", run.labels.note.as_str())))
}

/// Returns the rows for runs in a panel of this height: without the two headings, the note if there is one, and the
/// row that says how many more runs there are, if not all fit.
fn list_rows(state: &State, height: u16) -> usize {
    let rows = usize::from(height).saturating_sub(2 + usize::from(note(state).is_some())).max(1);
    let is_full = state.runs.shown_count() > rows && rows > 1;
    rows - usize::from(is_full)
}

/// Returns the first visible run of a panel of this height if not all fit.
fn first_visible(state: &State, height: u16) -> usize {
    state.runs.cursor().saturating_sub(list_rows(state, height).saturating_sub(1))
}

/// Returns the index of the run in a row below the headings of a panel of this height.
#[must_use]
pub fn run_at(state: &State, height: u16, row: usize) -> Option<usize> {
    let place = first_visible(state, height) + row;
    (row < list_rows(state, height) && place < state.runs.shown_count()).then_some(place)
}
