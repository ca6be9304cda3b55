//! Handles keys and mouse on the charts.

use super::focus::focus_visible_panel;
use super::message::Effect;
use crate::cockpit::action::ChartAction;
use crate::cockpit::layout::{charts_per_page, lay_out_state};
use crate::cockpit::panels::chart::chart_geometry;
use crate::cockpit::quantity::Quantity;
use crate::cockpit::state::State;
use crate::cockpit::state::chart::ValueScale;
use crate::cockpit::state::screen::{Panel, View};
use ratatui::layout::Rect;

/// Minimum number of steps shown when zoomed in.
const SMALLEST_WINDOW: f64 = 16.0;

/// Returns the smallest window on the current axis.
fn smallest_window(state: &State) -> f64 {
    let steps = state.facts.series.len().max(1) as f64;
    state
        .curve_ends()
        .map_or(SMALLEST_WINDOW, |(first, last)| (last - first) / steps * SMALLEST_WINDOW)
        .max(f64::MIN_POSITIVE)
}

/// Performs an action on the charts.
pub fn perform_chart_action(state: &mut State, action: ChartAction) -> Vec<Effect> {
    let (ends, smallest) = (state.shown().curve_ends(), smallest_window(state.shown()));
    let chart = &mut state.screen.chart;
    match action {
        ChartAction::Left if chart.cursor.is_some() => chart.move_cursor(-0.01, ends),
        ChartAction::Right if chart.cursor.is_some() => chart.move_cursor(0.01, ends),
        ChartAction::Left => chart.pan(-1.0, ends),
        ChartAction::Right => chart.pan(1.0, ends),
        ChartAction::ZoomIn => chart.zoom(0.5, ends, smallest),
        ChartAction::ZoomOut => chart.zoom(2.0, ends, smallest),
        ChartAction::Fit => chart.fit(),
        ChartAction::Follow => chart.follow(ends),
        ChartAction::LogScale => state.screen.chart.scale = other_scale(state.shown()),
        ChartAction::Smoothing => chart.next_smoothing(),
        ChartAction::Cursor if chart.cursor.is_some() => chart.cursor = None,
        ChartAction::Cursor => chart.move_cursor(0.0, ends),
        ChartAction::Axis => {
            let mut moved = *chart;
            let (from, to) = (chart.axis, chart.axis.next());
            let series = &state.shown().facts.series;
            moved.switch_axis(to, ends, |place| series.at(from, place).map(|at| to.place(at.spot())));
            state.screen.chart = moved;
        }
    }
    vec![Effect::Redraw]
}

/// Returns the scale that the focused chart, or else the loss, does not have.
fn other_scale(state: &State) -> ValueScale {
    let quantity = match state.screen.focus {
        Panel::Chart(quantity) if quantity.may_be_log() => quantity,
        _ => Quantity::Loss,
    };
    // The scale depends on the values, hardly on the size: any area will do for a chart that is not on the screen.
    let area = lay_out_state(state).area_of(Panel::Chart(quantity)).unwrap_or(Rect::new(0, 0, 80, 20));
    let is_log = chart_geometry(area, quantity, state)
        .map_or(state.screen.chart.scale == ValueScale::Log, |geometry| geometry.scale.is_log());
    if is_log { ValueScale::Linear } else { ValueScale::Log }
}

/// Zooms around the column under the mouse.
pub fn zoom_at(state: &mut State, column: u16, quantity: Quantity, factor: f64) -> Vec<Effect> {
    let (ends, smallest) = (state.shown().curve_ends(), smallest_window(state.shown()));
    let place = place_at(state.shown(), column, quantity);
    let chart = &mut state.screen.chart;
    let cursor = chart.cursor;
    chart.cursor = place.or(cursor);
    // At the right edge, keep following the newest step.
    let near_end = place.zip(ends).is_some_and(|(place, ends)| {
        let (start, end) = chart.window(ends);
        chart.follows() && end - place <= (end - start) * 0.02
    });
    if near_end {
        chart.cursor = None;
    }
    chart.zoom(factor, ends, smallest);
    chart.cursor = cursor;
    vec![Effect::Redraw]
}

/// Moves the cursor to where the mouse was clicked.
pub fn place_cursor(state: &mut State, column: u16, quantity: Quantity) -> Vec<Effect> {
    if let Some(place) = place_at(state.shown(), column, quantity) {
        state.screen.chart.cursor = Some(place);
    }
    vec![Effect::Redraw]
}

/// Returns the position that a chart draws at a column of the screen.
fn place_at(state: &State, column: u16, quantity: Quantity) -> Option<f64> {
    let area = lay_out_state(state).area_of(Panel::Chart(quantity))?;
    Some(chart_geometry(area, quantity, state)?.place_at(column))
}

/// Reports whether the charts view has more charts than it shows.
pub fn has_more(state: &State) -> bool {
    let seen = if state.screen.full.is_some() { 1 } else { charts_per_page(state) };
    state.charts().len() > seen
}

/// Shows the next or the previous page of charts, or the next chart where one fills the view.
pub fn page_charts(state: &mut State, direction: isize) -> Vec<Effect> {
    let charts = state.shown().charts();
    let seen = charts_per_page(state.shown()).max(1);
    let screen = &mut state.screen;
    if let Some(full) = screen.full {
        let here = charts.iter().position(|chart| chart.quantity == full).unwrap_or(0);
        let next = here.saturating_add_signed(direction).min(charts.len().saturating_sub(1));
        screen.full = charts.get(next).map(|chart| chart.quantity);
    } else {
        let step = direction.saturating_mul(isize::try_from(seen).unwrap_or(1));
        let last = charts.len().saturating_sub(seen);
        screen.charts_from = screen.charts_from.saturating_add_signed(step).min(last);
    }
    focus_visible_panel(state);
    vec![Effect::Redraw]
}

/// Shows the charts of the next or the previous group.
pub fn page_groups(state: &mut State, direction: isize) -> Vec<Effect> {
    if state.screen.view != View::Charts {
        return Vec::new();
    }
    let charts = state.shown().charts();
    let starts = (0..charts.len()).filter(|place| *place == 0 || charts[*place].group != charts[*place - 1].group);
    let starts: Vec<usize> = starts.collect();
    let focused = charts.iter().position(|chart| state.screen.focus == Panel::Chart(chart.quantity)).unwrap_or(0);
    let group = starts.partition_point(|start| *start <= focused).saturating_sub(1);
    let next = group.saturating_add_signed(direction).min(starts.len().saturating_sub(1));
    starts.get(next).map_or_else(Vec::new, |start| show_group(state, *start))
}

/// Shows and focuses a chart at the top of the view, as far as there are enough charts below it.
pub fn show_group(state: &mut State, first: usize) -> Vec<Effect> {
    let charts = state.shown().charts();
    let Some(chart) = charts.get(first) else { return Vec::new() };
    let seen = charts_per_page(state.shown());
    state.screen.focus = Panel::Chart(chart.quantity);
    if state.screen.full.is_some() {
        state.screen.full = Some(chart.quantity);
    }
    state.screen.charts_from = first.min(charts.len().saturating_sub(seen));
    vec![Effect::Redraw]
}

/// Pins the focused chart, or unpins it: pinned charts come first.
pub fn toggle_pin(state: &mut State) -> Vec<Effect> {
    let Panel::Chart(quantity) = state.screen.focus else {
        state.show_notice("select a chart to pin with Tab", true);
        return vec![Effect::Redraw];
    };
    let title = quantity.title(&state.facts.metrics);
    let pins = &mut state.screen.pins;
    if let Some(place) = pins.iter().position(|pin| *pin == title) {
        pins.remove(place);
        state.show_notice(format!("unpinned {title}"), false);
    } else {
        pins.push(title.clone());
        state.show_notice(format!("pinned {title}: it comes first among the charts"), false);
    }
    scroll_to_chart(state, quantity);
    vec![Effect::Redraw]
}

/// Handles Enter on a chart: shows it alone in the Charts view; a second Enter shows all charts again.
pub fn toggle_full_chart(state: &mut State, quantity: Quantity) -> Vec<Effect> {
    let screen = &mut state.screen;
    if screen.view != View::Charts {
        // The search belongs to the list of charts; a chart opened from elsewhere may not match it.
        screen.chart_search.clear();
    }
    screen.full = match (screen.view, screen.full) {
        (View::Charts, Some(_)) => None,
        _ => Some(quantity),
    };
    screen.view = View::Charts;
    screen.focus = Panel::Chart(quantity);
    scroll_to_chart(state, quantity);
    vec![Effect::Redraw]
}

/// Scrolls the charts so that one of them is visible.
fn scroll_to_chart(state: &mut State, quantity: Quantity) {
    // A pin or the search may have just changed.
    state.refresh_past();
    let charts = state.shown().charts();
    let seen = charts_per_page(state.shown());
    let here = charts.iter().position(|chart| chart.quantity == quantity).unwrap_or(0);
    let screen = &mut state.screen;
    if here < screen.charts_from || here >= screen.charts_from + seen {
        screen.charts_from = here.min(charts.len().saturating_sub(seen));
    }
}
