//! A heat map: a row for each layer, a column for each evaluation.

use super::component::Component;
use crate::cockpit::action::{Action, ChartAction};
use crate::cockpit::state::State;
use crate::cockpit::state::screen::{Panel, View};
use crate::cockpit::ui;
use crate::cockpit::update::Effect;
use crate::cockpit::update::layers::move_layer;
use crate::format::{count, counted};
use crate::protocol::control::LayerRow;
use crate::protocol::samples::NonFiniteParameter;
use crate::series::layers::{LayerHistory, Measure};
use crate::series::scale::Scale;
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    style::{Modifier, Style},
    text::{Line, Span},
};
use std::ops::Range;
use unicode_width::UnicodeWidthStr;

/// Characters of a heat map without colours.
const SHADES: [char; 5] = ['·', '░', '▒', '▓', '█'];
/// Columns of one evaluation at most.
const WIDEST: usize = 6;

/// A value of each layer over the evaluations.
pub struct Layers;

impl Component for Layers {
    fn render(&self, frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
        let cursor = state.screen.layers;
        let focused = state.screen.focus == Panel::Layers;
        let title = format!("layers: {}", cursor.measure.name());
        let inner = ui::render_heading(frame, area, &title, Line::styled(measured(state), theme.dim), focused, theme);
        match &state.layers.history {
            None => ui::render_placeholder(frame, inner, "reading the layers", theme),
            Some(Err(error)) => ui::render_placeholder(frame, inner, &error.to_string(), theme),
            Some(Ok(history)) => match Map::new(history, state) {
                Some(map) if inner.height >= 8 => map.render(frame, inner, theme),
                Some(_) => ui::render_placeholder(frame, inner, "enlarge the terminal to see the layers", theme),
                None => ui::render_placeholder(frame, inner, why_empty(state), theme),
            },
        }
    }

    fn own_view(&self) -> View {
        View::Layers
    }

    fn actions(&self, _state: &State) -> &'static [Action] {
        &[Action::Confirm, Action::Chart(ChartAction::Left), Action::Down]
    }

    fn label(&self, _state: &State, action: Action) -> Option<&'static str> {
        match action {
            Action::Confirm => Some("measure"),
            Action::Down => Some("choose"),
            _ => None,
        }
    }

    fn can_act(&self, _state: &State, _action: Action) -> bool {
        true
    }

    fn copy(&self, state: &State) -> Option<String> {
        let (history, cursor) = (state.layer_history()?, state.screen.layers);
        let name = history.names().get(cursor.layer.min(history.names().len().checked_sub(1)?))?;
        let rows: Vec<_> = history.rows_until(state.moment).collect();
        let row = rows.get(rows.len().checked_sub(1)?.saturating_sub(cursor.back))?;
        let layer = row.stats.layers.iter().find(|layer| layer.name == *name);
        Some(match layer.and_then(|layer| cursor.measure.value(layer)) {
            Some(value) => format!("{name} {} {value} at step {}", cursor.measure.name(), row.stats.step),
            None => name.clone(),
        })
    }

    fn scroll(&self, state: &mut State, lines: isize) -> Vec<Effect> {
        move_layer(state, -lines)
    }
}

/// Counts the evaluations.
fn measured(state: &State) -> String {
    let count = state.layer_history().map_or(0, |history| history.rows_until(state.moment).count());
    if count == 0 { String::new() } else { counted(count as u64, "evaluation") }
}

fn why_empty(state: &State) -> &'static str {
    if state.moment.is_some() {
        "no evaluation measured the layers by then"
    } else if state.command.is_some() {
        "downshift measures the layers of its own tasks; those of a command are not known to it"
    } else if !state.watch.layers {
        "the layers are not measured: `watch.layers` is off in the run file"
    } else {
        "no layers yet. Each evaluation measures them"
    }
}

/// The part of the heat map that is drawn.
struct Map<'a> {
    history: &'a LayerHistory,
    measure: Measure,
    rows: Vec<&'a LayerRow>,
    scale: Option<(Scale, f64, f64)>,
    first_non_finite: Option<&'a NonFiniteParameter>,
    layer: usize,
    column: usize,
}

impl<'a> Map<'a> {
    fn new(history: &'a LayerHistory, state: &State) -> Option<Self> {
        let cursor = state.screen.layers;
        let rows: Vec<_> = history.rows_until(state.moment).collect();
        let last = rows.len().checked_sub(1)?;
        let layer = cursor.layer.min(history.names().len().checked_sub(1)?);
        let (measure, column) = (cursor.measure, last.saturating_sub(cursor.back));
        let scale = measure.scale(history.extent_until(state.moment, measure));
        // A replay does not tell the future.
        let now = state.status().filter(|_| state.moment.is_some()).map_or(u64::MAX, |status| status.step);
        let first_non_finite = history.first_non_finite.as_ref().filter(|first| first.step <= now);
        Some(Self { history, measure, rows, scale, first_non_finite, layer, column })
    }

    fn render(&self, frame: &mut Frame<'_>, area: Rect, theme: &Theme) {
        let bad = self.bad_line(theme);
        // Below the map: the steps, a gap, the values at the cursor, the scale.
        let foot = 3 + u16::from(bad.is_some());
        let body = Rect { height: area.height.saturating_sub(foot + 2), ..area };
        let names = self.history.names();
        let window = Window::fit(self, body);
        let lines = window.layers.clone().map(|layer| self.layer_line(layer, &window, theme));
        ui::render_lines(frame, body, lines.collect());
        let below = Rect { y: body.y + u16::try_from(window.layers.len()).unwrap_or(body.height), height: 1, ..area };
        ui::render_line(frame, below, self.step_line(&window, theme));
        let part = if window.layers.len() < names.len() {
            format!("layers {} to {} of {}   ", window.layers.start + 1, window.layers.end, names.len())
        } else {
            String::new()
        };
        let lines = [Some(self.cursor_line(theme)), Some(self.value_line(theme)), Some(self.legend(part, theme)), bad];
        let lines = lines.into_iter().flatten().map(|line| ui::cut_line(line, usize::from(area.width)));
        ui::render_lines(frame, Rect { y: area.bottom() - foot, height: foot, ..area }, lines.collect());
    }

    fn layer_line(&self, layer: usize, window: &Window, theme: &Theme) -> Line<'static> {
        let name = &self.history.names()[layer];
        let bad = self.first_non_finite.is_some_and(|first| first.is_in(name));
        let chosen = layer == self.layer;
        let style = match (bad, chosen) {
            (true, _) => theme.danger,
            (false, true) => theme.accent,
            (false, false) => theme.dim,
        };
        let mark = if chosen { "▸" } else { " " };
        let mut line = Line::from(vec![
            Span::styled(mark, theme.accent),
            Span::styled(ui::pad(&ui::cut_start(name, window.names), window.names), style),
            Span::styled(if bad { " ✗ " } else { "   " }, theme.danger),
        ]);
        for column in window.columns.clone() {
            let (text, style) = self.cell(layer, column, window.cell, theme);
            let style = if chosen && column == self.column { style.add_modifier(Modifier::REVERSED) } else { style };
            line.push_span(Span::styled(text, style));
        }
        line
    }

    fn cell(&self, layer: usize, column: usize, width: usize, theme: &Theme) -> (String, Style) {
        let Some(layer) = self.history.layer_in(self.rows[column], layer) else {
            return (" ".repeat(width), Style::new());
        };
        if layer.non_finite {
            return (centred('✗', width), theme.danger);
        }
        let share = self.measure.value(layer).zip(self.scale).map(|(value, (scale, ..))| scale.share(value));
        let Some(share) = share else { return (centred(' ', width), Style::new()) };
        let style = theme.heat(share);
        if style.bg.is_some() {
            return (" ".repeat(width), style);
        }
        let block = SHADES[(share * (SHADES.len() - 1) as f64).round() as usize];
        (block.to_string().repeat(width), Style::new())
    }

    /// Names the first and the last step on the screen, and marks the chosen column.
    fn step_line(&self, window: &Window, theme: &Theme) -> Line<'static> {
        let step = |column: usize| count(self.rows[column].stats.step);
        let (left, columns, cell) = (window.names + GUTTER, &window.columns, window.cell);
        let (first, here, last) = (step(columns.start), step(self.column), step(columns.end - 1));
        let end = left + columns.len() * cell;
        // Below its column, but within the map.
        let middle = left + (self.column - columns.start) * cell + cell / 2;
        let start = middle.saturating_sub(here.width() / 2).min(end.saturating_sub(here.width())).max(left);
        let before =
            if start > left + first.width() { ui::pad(&first, start - left) } else { " ".repeat(start - left) };
        let mut line = Line::from(vec![
            Span::styled(format!("{}{before}", " ".repeat(left)), theme.dim),
            Span::styled(here.clone(), theme.accent),
        ]);
        let gap = end.saturating_sub(start + here.width());
        if gap > last.width() {
            line.push_span(Span::styled(ui::pad_left(&last, gap), theme.dim));
        }
        line
    }

    /// Names the layer and the step at the cursor.
    fn cursor_line(&self, theme: &Theme) -> Line<'static> {
        let name = &self.history.names()[self.layer];
        let row = self.rows[self.column];
        let mut line = Line::from(vec![
            Span::styled(name.clone(), theme.strong),
            Span::styled(format!("   step {}", count(row.stats.step)), theme.dim),
        ]);
        if self.history.layer_in(row, self.layer).is_some_and(|layer| layer.non_finite) {
            line.push_span(Span::styled("   gradient not finite", theme.danger));
        }
        line
    }

    /// Shows the values at the cursor.
    fn value_line(&self, theme: &Theme) -> Line<'static> {
        let mut line = Line::default();
        let layer = self.history.layer_in(self.rows[self.column], self.layer);
        let Some(layer) = layer else { return Line::styled("not measured here", theme.dim) };
        for measure in [Measure::UpdateRatio, Measure::GradNorm, Measure::WeightNorm, Measure::Dead] {
            let Some(value) = measure.value(layer) else { continue };
            let style = if measure == self.measure { theme.accent } else { theme.base };
            let gap = if line.spans.is_empty() { "" } else { "   " };
            line.push_span(Span::styled(format!("{gap}{} ", measure.name()), theme.dim));
            line.push_span(Span::styled(measure.format_value(value), style));
        }
        line
    }

    /// Shows the scale, and names the first parameter that was not finite.
    fn legend(&self, part: String, theme: &Theme) -> Line<'static> {
        let mut line = Line::from(Span::styled(part, theme.dim));
        if let Some((scale, low, high)) = self.scale {
            line.push_span(Span::styled(format!("{} ", self.measure.format_value(low)), theme.dim));
            for step in 0..10 {
                let share = f64::from(step) / 9.0;
                let style = theme.heat(share);
                let block = SHADES[(share * (SHADES.len() - 1) as f64).round() as usize];
                line.push_span(if style.bg.is_some() {
                    Span::styled(" ", style)
                } else {
                    Span::raw(block.to_string())
                });
            }
            let kind = if scale.is_log() { "   logarithmic" } else { "" };
            line.push_span(Span::styled(format!(" {}{kind}", self.measure.format_value(high)), theme.dim));
        }
        line
    }

    /// Names the first parameter that was not finite.
    fn bad_line(&self, theme: &Theme) -> Option<Line<'static>> {
        let first = self.first_non_finite?;
        Some(Line::from(vec![
            Span::styled("✗ ", theme.danger),
            Span::raw(format!("first not finite: {} at step {}", first.parameter, count(first.step))),
        ]))
    }
}

/// The visible part of the map.
struct Window {
    /// Columns of the names.
    names: usize,
    /// Columns of an evaluation.
    cell: usize,
    columns: Range<usize>,
    layers: Range<usize>,
}

/// Columns of the marks around a name.
const GUTTER: usize = 4;

impl Window {
    fn fit(map: &Map<'_>, body: Rect) -> Self {
        let all = map.history.names();
        let longest = all.iter().map(|name| name.width()).max().unwrap_or(1);
        let names = longest.clamp(4, (usize::from(body.width) * 2 / 5).max(4));
        let width = usize::from(body.width).saturating_sub(names + GUTTER).max(1);
        let cell = (width / map.rows.len()).clamp(1, WIDEST);
        let shown = (width / cell).min(map.rows.len()).max(1);
        let first = window_start(map.column, shown, map.rows.len());
        let height = usize::from(body.height).min(all.len());
        let top = window_start(map.layer, height, all.len());
        Self { names, cell, columns: first..first + shown, layers: top..top + height }
    }
}

/// Returns the first of `seen` places so that `chosen` is among them, as late as possible.
fn window_start(chosen: usize, seen: usize, count: usize) -> usize {
    chosen.min(count.saturating_sub(seen))
}

fn centred(letter: char, width: usize) -> String {
    let left = (width.saturating_sub(1)) / 2;
    format!("{}{letter}{}", " ".repeat(left), " ".repeat(width.saturating_sub(left + 1)))
}
