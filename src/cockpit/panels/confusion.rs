//! The confusion matrix: a row for each label, a column for each answer. The colour of a cell is its share of the row.

use super::component::Component;
use crate::cockpit::action::Action;
use crate::cockpit::layout::lay_out_state;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::{Panel, View};
use crate::cockpit::ui;
use crate::cockpit::update::Effect;
use crate::cockpit::update::samples;
use crate::format::{count, percent};
use crate::protocol::samples::Confusion as Matrix;
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    style::Style,
    text::{Line, Span},
};
use unicode_width::UnicodeWidthStr;

/// Columns of the class names on the left.
const NAMES: usize = 12;
/// Columns of the share on the right.
const SHARE: usize = 7;
/// Confusions named below the matrix.
const NAMED: usize = 3;

/// Which classes were taken for which.
pub struct Confusion;

impl Component for Confusion {
    fn render(&self, frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
        let focused = state.screen.focus == Panel::Confusion;
        let note = Line::styled("row: label   column: answer", theme.dim);
        let inner = ui::render_heading(frame, area, "confusion", note, focused, theme);
        let Some(confusion) = state.confusion().filter(|confusion| !confusion.classes.is_empty()) else {
            return ui::render_placeholder(frame, inner, "no confusion matrix at this step", theme);
        };
        let mistakes = most_frequent_mistakes(confusion);
        let below = summary(confusion, &mistakes, usize::from(inner.width), theme);
        let matrix = matrix_room(inner, &mistakes);
        let foot = inner.height - matrix.height;
        let shape = Shape::fit(confusion, matrix, state.screen.samples.matrix_from);
        let lines = std::iter::once(shape.header(confusion, theme));
        let rows = (shape.rows.0..shape.rows.1).map(|row| shape.row(confusion, row, theme));
        let more = shape.more(confusion).map(|text| Line::styled(text, theme.dim));
        let lines: Vec<Line<'_>> = lines.chain(rows).chain(more).collect();
        let used = u16::try_from(lines.len()).unwrap_or(u16::MAX).min(matrix.height);
        ui::render_lines(frame, matrix, lines);
        let foot = Rect { y: matrix.y + used, height: foot, ..inner };
        ui::render_lines(frame, foot, below);
    }

    fn own_view(&self) -> View {
        View::Samples
    }

    fn actions(&self, _state: &State) -> &'static [Action] {
        &[Action::Down, Action::NextPanel]
    }

    fn label(&self, _state: &State, action: Action) -> Option<&'static str> {
        (action == Action::NextPanel).then_some("samples")
    }

    fn copy(&self, state: &State) -> Option<String> {
        let matrix = state.confusion()?;
        let name = |class: usize| matrix.classes.get(class).map_or("?", String::as_str);
        let line = |(times, label, answer)| format!("{times} × {} taken for {}", name(label), name(answer));
        let lines: Vec<String> = most_frequent_mistakes(matrix).into_iter().map(line).collect();
        (!lines.is_empty()).then(|| lines.join("; "))
    }

    fn scroll(&self, state: &mut State, lines: isize) -> Vec<Effect> {
        samples::scroll_matrix(state, (-lines, 0));
        vec![Effect::Redraw]
    }
}

/// Returns the room of the matrix above the summary.
fn matrix_room(inner: Rect, mistakes: &[Mistake]) -> Rect {
    let foot = u16::try_from(mistakes.len() + 2).unwrap_or(0).min(inner.height / 3);
    Rect { height: inner.height - foot, ..inner }
}

/// Returns how many rows and columns of the matrix do not fit on the screen.
#[must_use]
pub fn hidden_classes(state: &State) -> (usize, usize) {
    let confusion = state.confusion().filter(|confusion| !confusion.classes.is_empty());
    let Some((confusion, area)) = confusion.zip(lay_out_state(state).area_of(Panel::Confusion)) else { return (0, 0) };
    let heading = area.height.min(1);
    let inner = Rect { height: area.height - heading, ..area };
    let shape = Shape::fit(confusion, matrix_room(inner, &most_frequent_mistakes(confusion)), (0, 0));
    let hidden = |(from, to): (usize, usize)| confusion.classes.len() - (to - from);
    (hidden(shape.rows), hidden(shape.columns))
}

/// The visible part of the matrix.
struct Shape {
    names: usize,
    cell: usize,
    rows: (usize, usize),
    columns: (usize, usize),
}

impl Shape {
    fn fit(confusion: &Matrix, area: Rect, from: (usize, usize)) -> Self {
        let classes = confusion.classes.len();
        let longest = confusion.classes.iter().map(|name| name.width()).max().unwrap_or(1);
        let names = longest.clamp(1, NAMES);
        let largest = confusion.counts.iter().flatten().copied().max().unwrap_or(0);
        let cell = (count(largest).width() + 1).clamp(3, 8);
        let width = usize::from(area.width).saturating_sub(names + SHARE);
        // Whole names above the columns, if all columns still fit.
        let cell = (names + 1).min(width / classes).max(cell);
        let columns = (width / cell).clamp(1, classes);
        // The rest of the width belongs to the names on the left.
        let names = longest.clamp(1, names + width.saturating_sub(columns * cell));
        let room = usize::from(area.height).saturating_sub(1);
        let rows = if room >= classes { classes } else { room.saturating_sub(1).max(1).min(classes) };
        let first = (from.0.min(classes - rows), from.1.min(classes - columns));
        Self { names, cell, rows: (first.0, first.0 + rows), columns: (first.1, first.1 + columns) }
    }

    fn header(&self, confusion: &Matrix, theme: &Theme) -> Line<'static> {
        let mut text = " ".repeat(self.names);
        for name in &confusion.classes[self.columns.0..self.columns.1] {
            text += " ";
            text += &ui::pad_left(&cut_middle(name, self.cell - 1), self.cell - 1);
        }
        text += &ui::pad_left("right", SHARE);
        Line::styled(text, theme.dim)
    }

    fn row(&self, confusion: &Matrix, row: usize, theme: &Theme) -> Line<'static> {
        let counts = &confusion.counts[row];
        let total: u64 = counts.iter().fold(0, |sum, count| sum.saturating_add(*count));
        let name = ui::pad_left(&cut_middle(&confusion.classes[row], self.names), self.names);
        let mut line = Line::from(Span::styled(name, theme.dim));
        let shown = counts.iter().enumerate().take(self.columns.1).skip(self.columns.0);
        for (column, count) in shown {
            line.push_span(self.value(*count, total, row == column, theme));
        }
        let right = if total == 0 { "–".to_owned() } else { percent(counts[row] as f64 / total as f64) };
        line.push_span(Span::raw(ui::pad_left(&right, SHARE)));
        line
    }

    fn value(&self, value: u64, total: u64, right: bool, theme: &Theme) -> Span<'static> {
        if value == 0 {
            return Span::styled(ui::pad_left("·", self.cell), theme.faint);
        }
        // Mistakes are rare; the root makes them visible.
        let share = (value as f64 / total.max(1) as f64).sqrt();
        let style = theme.heat(share);
        let text = ui::pad_left(&count(value), self.cell);
        match (style.bg, right) {
            (Some(_), _) => Span::styled(text, style),
            // Without colours, mistakes stand out by weight.
            (None, true) => Span::raw(text),
            (None, false) => Span::styled(text, theme.danger),
        }
    }

    /// Says which part is visible if not all fits.
    fn more(&self, confusion: &Matrix) -> Option<String> {
        let classes = confusion.classes.len();
        let part = |(from, to): (usize, usize)| format!("{} to {} of {classes}", from + 1, to);
        match (self.rows.1 - self.rows.0 < classes, self.columns.1 - self.columns.0 < classes) {
            (false, false) => None,
            (true, false) => Some(format!("… rows {}", part(self.rows))),
            (false, true) => Some(format!("… columns {}", part(self.columns))),
            (true, true) => Some(format!("… rows {}, columns {}", part(self.rows), part(self.columns))),
        }
    }
}

/// Cuts a name in its middle: names of classes may begin alike or end alike.
fn cut_middle(name: &str, width: usize) -> String {
    if name.width() <= width || width < 3 {
        return ui::cut(name, width);
    }
    let end = ui::cut_start(name, width.div_ceil(2) + 1);
    let start = ui::cut(name, width - end.width() + 1);
    format!("{}{end}", start.trim_end_matches('…'))
}

/// A number of wrong answers, their label, and the answer.
type Mistake = (u64, usize, usize);

/// Returns the most frequent mistakes: how often, the label and the answer.
#[must_use]
pub fn most_frequent_mistakes(confusion: &Matrix) -> Vec<Mistake> {
    let cells = confusion.counts.iter().enumerate().flat_map(|(row, counts)| {
        counts
            .iter()
            .enumerate()
            .filter(move |(column, value)| *column != row && **value > 0)
            .map(move |(column, value)| (*value, row, column))
    });
    let mut mistakes: Vec<Mistake> = cells.collect();
    mistakes.sort_by(|a, b| b.0.cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    mistakes.truncate(NAMED);
    mistakes
}

/// Returns the share of right answers, and the most frequent mistakes.
fn summary(confusion: &Matrix, mistakes: &[Mistake], width: usize, theme: &Theme) -> Vec<Line<'static>> {
    let sum = |values: &mut dyn Iterator<Item = u64>| values.fold(0u64, u64::saturating_add);
    let total = sum(&mut confusion.counts.iter().flatten().copied());
    let right = sum(&mut confusion.counts.iter().enumerate().filter_map(|(row, counts)| counts.get(row).copied()));
    let share = if total == 0 { "–".to_owned() } else { percent(right as f64 / total as f64) };
    let mut lines = vec![
        Line::default(),
        Line::from(vec![
            Span::styled(share, theme.strong),
            Span::styled(format!(" right, {} of {}", count(right), count(total)), theme.dim),
        ]),
    ];
    for &(value, label, answer) in mistakes {
        let times = format!("{} ×", count(value));
        let room = width.saturating_sub(times.width() + 12);
        let name = |class: usize| cut_middle(&confusion.classes[class], room / 2);
        lines.push(Line::from(vec![
            Span::styled(ui::pad_left(&times, 6), Style::new()),
            Span::styled("  ", theme.dim),
            Span::raw(name(label)),
            Span::styled(" taken for ", theme.dim),
            Span::raw(name(answer)),
        ]));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::cut_middle;
    use unicode_width::UnicodeWidthStr;

    #[test]
    fn a_cut_name_keeps_both_ends() {
        let cut = |width| cut_middle("class number 12", width);
        assert_eq!([cut(15), cut(12), cut(5), cut(3)], ["class number 12", "class…ber 12", "c… 12", "…12"]);
        assert!((0..16).all(|width| cut(width).width() == width.min(15)));
        assert!((0..9).all(|width| cut_middle("橙色橙色橙", width).width() <= width));
    }
}
