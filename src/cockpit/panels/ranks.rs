//! The ranks of a training: a row for each. Those that differ come first where not all fit.

use super::component::Component;
use crate::cockpit::action::Action;
use crate::cockpit::layout::lay_out_state;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::{Panel, View};
use crate::cockpit::ui;
use crate::cockpit::update::Effect;
use crate::format::{age, brief, bytes, count};
use crate::protocol::ranks::{ProcessState, RankMark, RankPhase, RankRow, find_laggard, find_spread};
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    style::Style,
    text::{Line, Span},
};

/// Columns between two cells.
const GAP: usize = 2;
/// Columns of the state, at least.
const LEAST_STATE: usize = 14;
/// Columns of a block of rows; a wide screen has several side by side.
const BLOCK: usize = 84;
/// A rank that stands this long is shown with the time, in milliseconds.
const STANDS_MS: u64 = 3_000;

/// A column before the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cell {
    Rank,
    Card,
    Step,
    StepTime,
    OwnTime,
    DataWait,
    Memory,
    Temperature,
}

/// All columns in order.
const CELLS: [Cell; 8] = [
    Cell::Rank,
    Cell::Card,
    Cell::Step,
    Cell::StepTime,
    Cell::OwnTime,
    Cell::DataWait,
    Cell::Memory,
    Cell::Temperature,
];
/// Columns that a narrow screen leaves out, in this order. All ranks take a step together, so its time is that of the heading.
const DROPPED: [Cell; 3] = [Cell::StepTime, Cell::Temperature, Cell::Card];

impl Cell {
    fn heading(self) -> &'static str {
        match self {
            Self::Rank => "rank",
            Self::Card => "card",
            Self::Step => "step",
            Self::StepTime => "step time",
            Self::OwnTime => "own",
            Self::DataWait => "data",
            Self::Memory => "memory",
            Self::Temperature => "temp",
        }
    }

    fn width(self) -> usize {
        match self {
            Self::Rank | Self::Card => 4,
            Self::Step | Self::OwnTime | Self::DataWait => 7,
            Self::StepTime | Self::Memory => 9,
            Self::Temperature => 5,
        }
    }

    fn text(self, row: &RankRow, state: &State) -> String {
        let time = |ms: Option<f64>| ms.map_or_else(|| "–".to_owned(), brief);
        match self {
            Self::Rank => row.rank.to_string(),
            Self::Card => match (row.card, row.node) {
                (None, _) => "cpu".to_owned(),
                (Some(card), None) => card.to_string(),
                (Some(card), Some(node)) => format!("{node}:{card}"),
            },
            Self::Step => count(row.step),
            Self::StepTime => time(row.step_ms),
            Self::OwnTime => time(row.own_ms),
            Self::DataWait => time(row.data_wait_ms),
            Self::Memory => row.memory_bytes.map_or_else(|| "–".to_owned(), bytes),
            Self::Temperature => {
                temperature_of(row, state).map_or_else(|| "–".to_owned(), |now| format!("{now:.0} °C"))
            }
        }
    }
}

/// Returns the temperature of a rank's card, if the probe reads that one: it is on the keeper's node.
fn temperature_of(row: &RankRow, state: &State) -> Option<f64> {
    let gpu = state.facts.samples.back()?.reading.gpu.as_ref().ok()?;
    gpu.temperature_c.get().filter(|_| row.node.is_none() && Some(gpu.index) == row.card)
}

/// Returns the rows in the order of the screen: by rank, but where not all fit, those that differ first.
fn ordered(rows: &[RankRow], seen: usize) -> Vec<&RankRow> {
    let mut rows: Vec<&RankRow> = rows.iter().collect();
    if rows.len() > seen {
        rows.sort_by_key(|row| (row.mark.is_none() && !row.is_halted(), row.rank));
    }
    rows
}

/// The ranks of a distributed training.
pub struct Ranks;

impl Component for Ranks {
    fn render(&self, frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
        let focused = state.screen.focus == Panel::Ranks;
        let rows = state.ranks();
        let title = if rows.is_empty() { "ranks".to_owned() } else { format!("{} ranks", rows.len()) };
        let inner = ui::render_heading(frame, area, &title, spread_line(rows, theme), focused, theme);
        if rows.is_empty() {
            return ui::render_placeholder(frame, inner, why_empty(state), theme);
        }
        let view = Window::fit(inner, rows.len(), state.screen.ranks_from);
        let ordered = ordered(rows, view.seen());
        let cells = choose_cells(rows, state, view.block_width);
        for (block, part) in ordered[view.from..].chunks(view.rows).take(view.blocks).enumerate() {
            let x = inner.x + u16::try_from(block * (view.block_width + GAP)).unwrap_or(0);
            let width = u16::try_from(view.block_width).unwrap_or(inner.width).min(inner.right().saturating_sub(x));
            let place = Rect { x, width, height: inner.height.saturating_sub(FOOT), ..inner };
            let lines = part.iter().map(|row| rank_line(row, &cells, state, theme));
            ui::render_lines(frame, place, [header_line(&cells, theme)].into_iter().chain(lines).collect());
        }
        render_foot(frame, inner, state, &view, theme);
    }

    fn own_view(&self) -> View {
        View::Ranks
    }

    fn actions(&self, _state: &State) -> &'static [Action] {
        &[Action::Down]
    }

    fn copy(&self, state: &State) -> Option<String> {
        find_laggard(state.ranks()).map(|last| last.to_string())
    }

    fn scroll(&self, state: &mut State, lines: isize) -> Vec<Effect> {
        let area = lay_out_state(state.shown()).area_of(Panel::Ranks).unwrap_or_default();
        let most = hidden_rows(state.shown(), area);
        state.screen.ranks_from = state.screen.ranks_from.min(most).saturating_add_signed(-lines).min(most);
        vec![Effect::Redraw]
    }
}

/// Lines below the rows: a gap, and the rank that the others wait for or how many more rows there are.
const FOOT: u16 = 2;

/// The visible part.
struct Window {
    rows: usize,
    blocks: usize,
    block_width: usize,
    from: usize,
    hidden: usize,
}

impl Window {
    fn fit(area: Rect, ranks: usize, from: usize) -> Self {
        let rows = usize::from(area.height.saturating_sub(FOOT + 1)).max(1);
        let width = usize::from(area.width);
        let blocks = ranks.div_ceil(rows).clamp(1, ((width + GAP) / (BLOCK + GAP)).max(1));
        let block_width = (width + GAP) / blocks - GAP;
        let hidden = ranks.saturating_sub(rows * blocks);
        Self { rows, blocks, block_width, from: from.min(hidden), hidden }
    }

    fn seen(&self) -> usize {
        self.rows * self.blocks
    }
}

/// Returns the number of rows that are not visible in a panel of this area.
#[must_use]
pub fn hidden_rows(state: &State, area: Rect) -> usize {
    let inner = Rect { height: area.height.saturating_sub(1), ..area };
    Window::fit(inner, state.ranks().len(), 0).hidden
}

/// Leaves out columns that have no value, and those that do not fit.
fn choose_cells(rows: &[RankRow], state: &State, width: usize) -> Vec<Cell> {
    let has_cards = rows.iter().any(|row| row.card.is_some());
    let has_temperature = rows.iter().any(|row| temperature_of(row, state).is_some());
    let mut cells: Vec<Cell> = CELLS.to_vec();
    cells.retain(|cell| match cell {
        Cell::Card => has_cards,
        Cell::Temperature => has_temperature,
        _ => true,
    });
    let needed = |cells: &[Cell]| cells.iter().map(|cell| cell.width() + GAP).sum::<usize>() + LEAST_STATE;
    for cell in DROPPED {
        if needed(&cells) > width {
            cells.retain(|kept| *kept != cell);
        }
    }
    cells
}

fn header_line(cells: &[Cell], theme: &Theme) -> Line<'static> {
    let heading = |cell: &Cell| format!("{}{}", ui::pad_left(cell.heading(), cell.width()), " ".repeat(GAP));
    let text: String = cells.iter().map(heading).collect();
    Line::styled(format!("{text}state"), theme.dim)
}

fn rank_line(row: &RankRow, cells: &[Cell], state: &State, theme: &Theme) -> Line<'static> {
    let mut line = Line::default();
    for cell in cells {
        let style = match (cell, row.mark) {
            (Cell::OwnTime, Some(RankMark::Straggler)) | (Cell::Rank, Some(_)) => theme.warn,
            (Cell::Rank, None) if row.is_halted() => theme.danger,
            (Cell::Rank, None) => theme.strong,
            _ => theme.base,
        };
        line.push_span(Span::styled(ui::pad_left(&cell.text(row, state), cell.width()), style));
        line.push_span(Span::raw(" ".repeat(GAP)));
    }
    let (text, style) = describe_state(row, theme);
    line.push_span(Span::styled(text, style));
    line
}

/// Describes what a rank does: a sign of trouble comes before its phase.
fn describe_state(row: &RankRow, theme: &Theme) -> (String, Style) {
    let since = if row.stands_ms >= STANDS_MS && row.phase != RankPhase::Ended {
        format!(" {}", age(i64::try_from(row.stands_ms).unwrap_or(i64::MAX)))
    } else {
        String::new()
    };
    match (row.process, row.mark) {
        (Some(ProcessState::Stopped), _) => (format!("stopped{since}"), theme.danger),
        (Some(ProcessState::Dead), _) => ("gone".to_owned(), theme.danger),
        (_, Some(RankMark::NonFinite)) => (RankMark::NonFinite.word().to_owned(), theme.danger),
        (_, Some(mark)) => (mark.word().to_owned(), theme.warn),
        _ => (format!("{}{since}", row.phase.word()), theme.dim),
    }
}

/// Shows the spread of the ranks' own times.
fn spread_line(rows: &[RankRow], theme: &Theme) -> Line<'static> {
    let Some(spread) = find_spread(rows) else { return Line::default() };
    let step = rows.iter().filter_map(|row| row.step_ms).fold(0.0, f64::max);
    let is_wide = rows.iter().any(|row| row.mark == Some(RankMark::Straggler));
    let own = format!("own {} to {}", brief(spread.least_ms), brief(spread.most_ms));
    Line::from(vec![
        Span::styled(format!("step {} · ", brief(step)), theme.dim),
        Span::styled(own, if is_wide { theme.warn } else { theme.dim }),
    ])
}

/// Names the rank that the others wait for, if it has stood for a while, and says how many rows are not visible.
fn render_foot(frame: &mut Frame<'_>, inner: Rect, state: &State, view: &Window, theme: &Theme) {
    let last = find_laggard(state.ranks()).filter(|last| last.row.stands_ms >= STANDS_MS);
    let (text, style) = match last {
        // A long step looks the same on all ranks.
        Some(last) if last.is_one_of_several() => (last.to_string(), theme.dim),
        Some(last) => (last.to_string(), theme.warn),
        None => ("own: the part of a step that a rank does not wait for others".to_owned(), theme.faint),
    };
    let mut lines: Vec<Line<'_>> = Vec::new();
    lines.extend((view.hidden > 0).then(|| ui::more_note(view.from, view.hidden, theme)));
    lines.extend(ui::wrap(&text, usize::from(inner.width)).into_iter().map(|line| Line::styled(line, style)));
    // Of a sentence of two lines, the first has what is decisive; it comes before the count.
    if lines.len() > usize::from(FOOT) {
        lines.remove(0);
    }
    let height = u16::try_from(lines.len()).unwrap_or(FOOT).min(FOOT);
    ui::render_lines(frame, Rect { y: inner.bottom().saturating_sub(height), height, ..inner }, lines);
}

fn why_empty(state: &State) -> &'static str {
    if state.moment.is_some() {
        "where the ranks stood is not recorded: it is shown of the present only"
    } else if state.command.is_none() {
        "downshift's own tasks train in one process"
    } else if state.has_several_ranks() {
        "waiting for all ranks to report"
    } else {
        "one process trains: there are no ranks to compare"
    }
}
