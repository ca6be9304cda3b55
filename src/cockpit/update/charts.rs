//! Handles keys and mouse on the charts.

use super::Effect;
use crate::cockpit::action::Action;
use crate::cockpit::layout::{charts_seen, places_of};
use crate::cockpit::quantity::Quantity;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::{Panel, View};

/// Minimum number of steps shown when zoomed in.
const NEAREST: f64 = 16.0;

/// Returns the first and newest position of the curve on the current axis.
fn ends(state: &State) -> Option<(f64, f64)> {
    let axis = state.screen.chart.axis;
    state.facts.series.spots().map(|(first, last)| (first.on(axis), last.on(axis)))
}

/// Returns the smallest window on the current axis.
fn least(state: &State) -> f64 {
    let steps = state.facts.series.len().max(1) as f64;
    ends(state).map_or(NEAREST, |(first, last)| (last - first) / steps * NEAREST).max(f64::MIN_POSITIVE)
}

/// Performs a chart action; returns `None` if the action does not concern charts.
pub fn act(state: &mut State, action: Action) -> Option<Vec<Effect>> {
    let (ends, least) = (ends(state), least(state));
    let chart = &mut state.screen.chart;
    match action {
        Action::Left if chart.cursor.is_some() => chart.move_cursor(-0.01, ends),
        Action::Right if chart.cursor.is_some() => chart.move_cursor(0.01, ends),
        Action::Left => chart.pan(-1.0, ends),
        Action::Right => chart.pan(1.0, ends),
        Action::ZoomIn => chart.zoom(0.5, ends, least),
        Action::ZoomOut => chart.zoom(2.0, ends, least),
        Action::Fit => chart.fit(),
        Action::Follow => chart.follow(ends),
        Action::LogScale => chart.log = !chart.log,
        Action::Smoothing => chart.next_smoothing(),
        Action::Cursor if chart.cursor.is_some() => chart.cursor = None,
        Action::Cursor => chart.move_cursor(0.0, ends),
        Action::Axis => {
            let (from, to) = (chart.axis, chart.axis.next());
            let series = &state.facts.series;
            chart.over(to, ends, |place| series.at(from, place).map(|at| at.spot().on(to)));
        }
        _ => return None,
    }
    Some(vec![Effect::Redraw])
}

/// Zooms around the column under the mouse.
pub fn zoom_at(state: &mut State, column: u16, panel: Panel, factor: f64) -> Vec<Effect> {
    let (ends, least) = (ends(state), least(state));
    let place = place_at(state, column, panel);
    let chart = &mut state.screen.chart;
    let cursor = chart.cursor;
    chart.cursor = place.or(cursor);
    // At the right edge, keep following the newest step.
    let near_end = place.zip(ends).is_some_and(|(place, ends)| place >= chart.window(ends).1 * 0.98 && chart.follows());
    if near_end {
        chart.cursor = None;
    }
    chart.zoom(factor, ends, least);
    chart.cursor = cursor;
    vec![Effect::Redraw]
}

/// Moves the cursor to where the mouse was clicked.
pub fn read_at(state: &mut State, column: u16, panel: Panel) -> Vec<Effect> {
    if let Some(place) = place_at(state, column, panel) {
        state.screen.chart.cursor = Some(place);
    }
    vec![Effect::Redraw]
}

/// Returns the axis position of a column; the gutter for the values is about eight columns wide.
fn place_at(state: &State, column: u16, panel: Panel) -> Option<f64> {
    let area = places_of(state).area_of(panel)?;
    let (start, end) = state.screen.chart.window(ends(state)?);
    let (left, right) = crate::cockpit::panels::curve::plot_columns(state, panel, area)?;
    let share = (f64::from(column) - f64::from(left)) / f64::from(right.saturating_sub(left).max(1));
    Some(start + (end - start) * share.clamp(0.0, 1.0))
}

/// Shows the next or the previous page of charts.
pub fn page(state: &mut State, direction: isize) -> Vec<Effect> {
    let seen = charts_seen(state.screen.size).max(1);
    let last = Quantity::ALL.len().saturating_sub(seen);
    let screen = &mut state.screen;
    if let Some(full) = screen.full {
        let here = Quantity::ALL.iter().position(|quantity| *quantity == full).unwrap_or(0);
        let next = here.saturating_add_signed(direction).min(Quantity::ALL.len() - 1);
        screen.full = Some(Quantity::ALL[next]);
    } else {
        let step = direction.saturating_mul(isize::try_from(seen).unwrap_or(1));
        screen.charts_from = screen.charts_from.saturating_add_signed(step).min(last);
    }
    let panels = places_of(state).panels;
    if !panels.iter().any(|(panel, _)| *panel == state.screen.focus) {
        state.screen.focus = panels.first().map_or(state.screen.focus, |(panel, _)| *panel);
    }
    vec![Effect::Redraw]
}

/// Handles Enter on a chart: shows it alone in the Charts view; a second Enter shows all charts again.
pub fn open(state: &mut State, quantity: Quantity) -> Vec<Effect> {
    let screen = &mut state.screen;
    screen.full = match (screen.view, screen.full) {
        (View::Curves, Some(_)) => None,
        _ => Some(quantity),
    };
    screen.view = View::Curves;
    screen.focus = Panel::Chart(quantity);
    if screen.full.is_none() {
        let seen = charts_seen(screen.size);
        let here = Quantity::ALL.iter().position(|other| *other == quantity).unwrap_or(0);
        if here < screen.charts_from || here >= screen.charts_from + seen {
            screen.charts_from = here.min(Quantity::ALL.len().saturating_sub(seen));
        }
    }
    vec![Effect::Redraw]
}
