//! The line above the charts: their groups with the visible ones highlighted, the search, the position of the cursor,
//! and sensors that the machine does not have.
//!
//! ```text
//! pinned 1   loss 2   task 1   optimisation 3   speed 3 …                charts 1 to 4 of 12
//! find acc▏ 1 of 12 charts
//! ```

use super::chart::name_place;
use crate::cockpit::action::{Action, ChartAction};
use crate::cockpit::layout::lay_out_state;
use crate::cockpit::panels::meters::gpu_hint;
use crate::cockpit::quantity::Source;
use crate::cockpit::state::State;
use crate::cockpit::state::chart_list::{ChartGroup, Listed};
use crate::cockpit::state::readings::Gauge;
use crate::cockpit::state::screen::{Mode, Panel};
use crate::cockpit::ui;
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};
use std::ops::Range;
use unicode_width::UnicodeWidthStr;

/// Draws the line.
pub fn render(frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
    if area.height == 0 {
        return;
    }
    let charts = state.charts();
    if is_searching(state) {
        let shown = shown_charts(state, &charts);
        let all_seen = shown.len() == charts.len() && state.screen.chart.cursor.is_none();
        let right = if all_seen { Line::default() } else { page(state, &charts, &shown, theme) };
        return ui::render_two_sides(frame, area, search_line(state, charts.len(), theme), right);
    }
    let bar = Bar::lay_out(state, &charts, usize::from(area.width), theme);
    let mut line = Line::default();
    for (place, item) in bar.groups.into_iter().enumerate() {
        line.push_span(Span::raw(if place > 0 { GAP } else { "" }));
        line.push_span(Span::styled(item.label, if item.visible { theme.accent } else { theme.dim }));
    }
    ui::render_two_sides(frame, area, line, bar.right);
}

/// Returns the first chart of the group at a column of the line.
#[must_use]
pub fn group_at(state: &State, area: Rect, column: u16) -> Option<usize> {
    if is_searching(state) {
        return None;
    }
    let mut start = usize::from(area.x);
    for item in Bar::lay_out(state, &state.charts(), usize::from(area.width), &Theme::plain()).groups {
        let end = start + item.label.width();
        if (start..end).contains(&usize::from(column)) {
            return Some(item.first);
        }
        start = end + GAP.len();
    }
    None
}

fn is_searching(state: &State) -> bool {
    state.screen.mode == Mode::Filter || !state.screen.chart_search.is_empty()
}

/// The line while no search is open.
struct Bar {
    groups: Vec<Item>,
    right: Line<'static>,
}

impl Bar {
    fn lay_out(state: &State, charts: &[Listed], width: usize, theme: &Theme) -> Self {
        let (shown, ranges) = (shown_charts(state, charts), group_ranges(charts));
        let page = page(state, charts, &shown, theme);
        let mut right = page.clone();
        if let Some(hint) = missing_sensors(state) {
            right = Line::styled(format!("{hint}{GAP}"), theme.dim);
            right.spans.extend(page.spans.clone());
        }
        let room = |right: &Line<'_>| width.saturating_sub(right.width() + 1);
        let groups = place_groups(&ranges, &shown, room(&right));
        // The groups come first: the health view mentions the sensors too.
        if groups.len() == ranges.len() {
            return Self { groups, right };
        }
        Self { groups: place_groups(&ranges, &shown, room(&page)), right: page }
    }
}

/// Returns the range of charts on the screen.
fn shown_charts(state: &State, charts: &[Listed]) -> Range<usize> {
    let panels = lay_out_state(state).panels;
    let place = |panel: &Panel| match panel {
        Panel::Chart(quantity) => charts.iter().position(|chart| chart.quantity == *quantity),
        _ => None,
    };
    let places = || panels.iter().filter_map(|(panel, _)| place(panel));
    places().min().unwrap_or(0)..places().max().map_or(0, |last| last + 1)
}

/// Returns the groups with the range of their charts.
fn group_ranges(charts: &[Listed]) -> Vec<(&ChartGroup, Range<usize>)> {
    let mut groups: Vec<(&ChartGroup, Range<usize>)> = Vec::new();
    for (place, chart) in charts.iter().enumerate() {
        match groups.last_mut() {
            Some((group, range)) if **group == chart.group => range.end = place + 1,
            _ => groups.push((&chart.group, place..place + 1)),
        }
    }
    groups
}

const GAP: &str = "   ";

/// A group on the line, or `…` for those that do not fit.
struct Item {
    label: String,
    visible: bool,
    /// The chart that a click leads to.
    first: usize,
}

/// Places the groups that fit: those around the visible ones, with `…` for the others.
fn place_groups(groups: &[(&ChartGroup, Range<usize>)], shown: &Range<usize>, room: usize) -> Vec<Item> {
    let item = |(group, range): &(&ChartGroup, Range<usize>)| Item {
        label: format!("{} {}", ui::cut(group.name(), 20), range.len()),
        visible: range.start < shown.end && shown.start < range.end,
        first: range.start,
    };
    let more = |group: usize| Item { label: "…".to_owned(), visible: false, first: groups[group].1.start };
    let items: Vec<Item> = groups.iter().map(item).collect();
    let width = |from: usize, to: usize| {
        let hidden = usize::from(from > 0) + usize::from(to < items.len());
        let labels: usize = items[from..to].iter().map(|item| item.label.width()).sum();
        labels + hidden + (to - from + hidden).saturating_sub(1) * GAP.len()
    };
    let mut from = items.iter().position(|item| item.visible).unwrap_or(0);
    let mut to = (from + 1).min(items.len());
    loop {
        if to < items.len() && width(from, to + 1) <= room {
            to += 1;
        } else if from > 0 && width(from - 1, to) <= room {
            from -= 1;
        } else {
            break;
        }
    }
    let (before, after) = ((from > 0).then(|| more(from - 1)), (to < items.len()).then(|| more(to)));
    before.into_iter().chain(items.into_iter().take(to).skip(from)).chain(after).collect()
}

fn search_line(state: &State, found: usize, theme: &Theme) -> Line<'static> {
    let typing = state.screen.mode == Mode::Filter;
    let all = state.quantities().len();
    let mut line = Line::from(vec![
        Span::styled("find ", theme.dim),
        Span::styled(state.screen.chart_search.clone(), theme.strong),
        Span::styled(if typing { "▏" } else { " " }, theme.accent),
    ]);
    line.push_span(match found {
        0 => Span::styled(" no such chart", theme.warn),
        _ => Span::styled(format!(" {found} of {all} charts"), theme.dim),
    });
    // While letters are typed, the last line of the screen says which keys end it.
    line.push_span(Span::styled(if typing { "" } else { "   Esc clear" }, theme.dim));
    line
}

/// Returns the position of the cursor, or else which charts are visible.
fn page(state: &State, charts: &[Listed], shown: &Range<usize>, theme: &Theme) -> Line<'static> {
    let axis = state.screen.chart.axis;
    let at = state.screen.chart.cursor.and_then(|place| state.facts.series.at(axis, place));
    if let Some(at) = at.filter(|_| shown.len() > 1) {
        let mut line = Line::styled(name_place(state, axis, axis.place(at.spot())), theme.accent);
        if at.is_skipped() {
            line.push_span(Span::styled(", not finite", theme.warn));
        }
        return line;
    }
    let text = match shown.len() {
        0 => String::new(),
        1 => format!("chart {} of {}", shown.end, charts.len()),
        _ => format!("charts {} to {} of {}", shown.start + 1, shown.end, charts.len()),
    };
    let mut line = Line::styled(text, theme.dim);
    if !state.screen.chart.follows() {
        let held = format!("held, {} follows   ", state.keys.key_of(Action::Chart(ChartAction::Follow)));
        line.spans.insert(0, Span::styled(held, theme.accent));
    }
    line
}

/// Names the sensors without a chart: no GPU at all, or what the GPU does not report.
fn missing_sensors(state: &State) -> Option<String> {
    if let Some(hint) = gpu_hint(state) {
        return Some(hint);
    }
    let names: Vec<String> = state
        .missing_sensors()
        .into_iter()
        .filter(|sensor| !matches!(sensor.source(), Source::Probe(Gauge::WorkerRam | Gauge::Cpu)))
        .map(|sensor| sensor.title(&state.facts.metrics))
        .collect();
    (!names.is_empty()).then(|| format!("not reported: {}", names.join(", ")))
}
