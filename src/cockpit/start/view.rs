//! Draws the start screen.
//!
//! ```text
//!  downshift                                        3 runs in runs
//!
//!  live
//!    digits-20261122-140115  ⠑⠒⠤⣀⣀⣀⣀⣀  training   700  52 %  accuracy 93.4 %
//!
//!  start
//!    a new run               handwritten digits, on the GPU if there is one
//!    a command …             python a.py · run a.yaml b.yaml
//!
//!  recent
//!    lora-20261121-090211    ⠑⠢⠤⣀⣀⣀⣀⣀  finished  1 200  100 %  validation loss 1.82
//! ```

use super::{Start, StartEntry, Typed};
use crate::cockpit::action::Action;
use crate::cockpit::plot::braille::sparkline;
use crate::cockpit::run_cells as cell;
use crate::cockpit::ui;
use crate::format::counted;
use crate::store::run_summary::RunSummary;
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};
use unicode_width::UnicodeWidthStr;

/// Cells of a thumbnail curve.
const CURVE: usize = 10;

/// A row of the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Row {
    Blank,
    Heading(&'static str),
    /// The entry of this index.
    Entry(usize),
}

/// Returns every row between the first and the last line.
fn rows(start: &Start) -> Vec<Row> {
    let (living, entries) = (start.living().count(), start.entries());
    let starting = entries.iter().filter(|entry| !matches!(entry, StartEntry::Run(_))).count();
    let mut rows = Vec::new();
    let mut add = |title: &'static str, from: usize, to: usize| {
        if from < to {
            rows.extend([Row::Blank, Row::Heading(title)]);
            rows.extend((from..to).map(Row::Entry));
        }
    };
    add("live", 0, living);
    add("start", living, living + starting);
    add("recent", living + starting, entries.len());
    rows
}

/// Returns the first visible row, so that the cursor and, near the top, its heading are visible.
fn first_visible(rows: &[Row], cursor: usize, room: usize) -> usize {
    let at = rows.iter().position(|row| *row == Row::Entry(cursor)).unwrap_or(0);
    (at + 1).saturating_sub(room)
}

/// Returns the rows for the list: without the first line, a blank one and the footer.
fn room(height: u16) -> usize {
    usize::from(height.saturating_sub(3))
}

/// Returns the index of the entry on a row of the screen.
#[must_use]
pub fn entry_at(start: &Start, y: u16) -> Option<usize> {
    let all = rows(start);
    let place = usize::from(y.checked_sub(1)?);
    let shown = all.iter().skip(first_visible(&all, start.cursor(), room(start.size.1))).take(room(start.size.1));
    match shown.collect::<Vec<_>>().get(place) {
        Some(Row::Entry(entry)) => Some(*entry),
        _ => None,
    }
}

/// Draws everything.
pub fn render(frame: &mut Frame<'_>, start: &Start, theme: &Theme) {
    let screen = frame.area();
    frame.buffer_mut().set_style(screen, theme.base);
    let line = |y: u16| Rect { x: 1, y, width: screen.width.saturating_sub(2), height: 1 }.intersection(screen);
    frame.buffer_mut().set_style(Rect { height: screen.height.min(1), ..screen }, theme.bar);
    let known = start
        .runs
        .as_ref()
        .map_or_else(String::new, |runs| format!("{} in {}", counted(runs.len() as u64, "run"), start.folder));
    let width = usize::from(screen.width.saturating_sub(2));
    let note = Line::styled(ui::cut(&known, width.saturating_sub(12)), theme.dim);
    ui::render_two_sides(frame, line(0), Line::styled("downshift", theme.strong), note);
    let (all, cursor) = (rows(start), start.cursor());
    let entries = start.entries();
    let room = room(screen.height);
    let columns = Columns::fit(start, width);
    for (y, row) in (1..).zip(all.iter().skip(first_visible(&all, cursor, room)).take(room)) {
        let drawn = match row {
            Row::Blank => continue,
            Row::Heading(title) => Line::styled(*title, theme.dim),
            Row::Entry(place) => {
                let line = entry_line(start, &entries[*place], &columns, theme);
                if *place == cursor { line.patch_style(theme.selected) } else { line }
            }
        };
        frame.render_widget(drawn, line(y));
    }
    let last = screen.height.saturating_sub(1);
    frame.buffer_mut().set_style(Rect { y: last, height: screen.height.min(1), ..screen }, theme.bar);
    frame.render_widget(footer(start, theme), line(last));
}

/// Widths of the columns of runs; 0 = left out.
struct Columns {
    width: usize,
    name: usize,
    state: usize,
    started: usize,
    steps: usize,
    done: usize,
    best: usize,
}

/// Columns of the share that is done, with its gap.
const DONE: usize = 7;

impl Columns {
    /// Gives each column what its widest cell needs. Where that is too much, the start goes first, then the share,
    /// then a part of the name.
    fn fit(start: &Start, width: usize) -> Self {
        let runs = || start.living().chain(start.recent());
        let widest = |text: &dyn Fn(&RunSummary) -> String| runs().map(|run| text(run).width()).max().unwrap_or(0);
        let mut columns = Self {
            width,
            name: widest(&|run| run.name.clone()).max(12),
            state: widest(&|run| cell::state(run, start.now_ms)),
            started: widest(&|run| cell::started(run, start.now_ms, start.utc_offset_s)) + 2,
            steps: widest(&cell::steps),
            done: DONE,
            best: widest(&cell::best),
        };
        if columns.needed() > width {
            columns.started = 0;
        }
        if columns.needed() > width {
            columns.done = 0;
        }
        columns.name -= columns.needed().saturating_sub(width).min(columns.name - 12);
        columns.best -= columns.needed().saturating_sub(width).min(columns.best);
        columns
    }

    fn needed(&self) -> usize {
        2 + self.name + 2 + CURVE + 2 + self.state + 2 + self.started + self.steps + self.done + 2 + self.best
    }
}

fn entry_line(start: &Start, entry: &StartEntry, columns: &Columns, theme: &Theme) -> Line<'static> {
    let mut line = match entry {
        StartEntry::New => described("a new run", "handwritten digits, the run file that ships inside", columns, theme),
        StartEntry::Command if start.input.is_some() => command_line(start, columns, theme),
        StartEntry::Command => described("a command …", &Typed::Empty.to_string(), columns, theme),
        StartEntry::Run(name) => match start.runs.iter().flatten().find(|run| run.name == *name) {
            Some(run) => run_line(start, run, columns, theme),
            None => Line::raw(name.clone()),
        },
    };
    // The cursor covers the whole row.
    let rest = columns.width.saturating_sub(line.width());
    line.push_span(Span::raw(" ".repeat(rest)));
    line
}

fn described(title: &str, text: &str, columns: &Columns, theme: &Theme) -> Line<'static> {
    let text = ui::cut(text, columns.width.saturating_sub(columns.name + 4));
    Line::from(vec![Span::raw(format!("  {}  ", ui::pad(title, columns.name))), Span::styled(text, theme.dim)])
}

fn command_line(start: &Start, columns: &Columns, theme: &Theme) -> Line<'static> {
    let input = ui::cut_start(start.input.as_deref().unwrap_or_default(), columns.width.saturating_sub(16));
    Line::from(vec![
        Span::styled("  downshift ", theme.dim),
        Span::styled(input, theme.strong),
        Span::styled("▏", theme.accent),
    ])
}

fn run_line(start: &Start, run: &RunSummary, columns: &Columns, theme: &Theme) -> Line<'static> {
    let tone =
        run.status.as_ref().map_or(theme.dim, |status| ui::tone_style(theme, cell::state_tone(status, start.now_ms)));
    let mut spans = vec![
        Span::raw(format!("  {}  ", ui::pad(&run.name, columns.name))),
        Span::styled(ui::pad(&sparkline(&run.curve, CURVE), CURVE), theme.smooth),
        Span::styled(format!("  {}  ", ui::pad(&cell::state(run, start.now_ms), columns.state)), tone),
    ];
    if columns.started > 0 {
        let started = cell::started(run, start.now_ms, start.utc_offset_s);
        spans.push(Span::styled(ui::pad(&started, columns.started), theme.dim));
    }
    spans.push(Span::raw(ui::pad_left(&cell::steps(run), columns.steps)));
    spans.push(Span::raw(ui::pad_left(&cell::done_text(run), columns.done)));
    spans.push(Span::raw(format!("  {}", ui::cut(&cell::best(run), columns.best))));
    Line::from(spans)
}

/// The keys; while a command is typed, its meaning.
fn footer(start: &Start, theme: &Theme) -> Line<'static> {
    let width = usize::from(start.size.0.saturating_sub(2));
    if start.input.is_some() {
        let style = if matches!(start.typed, Typed::Wrong(_)) { theme.warn } else { theme.strong };
        let keys = "   Enter   Esc back";
        let text = ui::cut(&start.typed.to_string(), width.saturating_sub(keys.len()));
        return Line::from(vec![Span::styled(text, style), Span::styled(keys, theme.dim)]);
    }
    let confirm = match start.entries().get(start.cursor()) {
        Some(StartEntry::Run(name)) if start.living().any(|run| run.name == *name) => "attach",
        Some(StartEntry::Run(_)) => "open",
        Some(StartEntry::New) => "start",
        _ => "type",
    };
    let key = |action| start.keys.key_of(action);
    let new = start.has_tasks.then(|| ("n".to_owned(), "new run"));
    let items = [(format!("{}{}", key(Action::Up), key(Action::Down)), "choose"), (key(Action::Confirm), confirm)];
    let rest = [("c".to_owned(), "command"), (key(Action::Quit), "quit")];
    let mut spans = Vec::new();
    for (key, word) in items.into_iter().chain(new).chain(rest) {
        spans.extend([Span::styled(key, theme.key), Span::raw(format!(" {word}   "))]);
    }
    Line::from(spans)
}
