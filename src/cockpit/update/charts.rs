//! Handles keys and mouse on the charts.

use super::focus::focus_visible_panel;
use super::message::Effect;
use crate::cockpit::action::Action;
use crate::cockpit::layout::{charts_per_page, lay_out_state};
use crate::cockpit::panels::chart::chart_geometry;
use crate::cockpit::quantity::Quantity;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::{Panel, View};

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

/// Performs a chart action; returns `None` if the action does not concern charts.
pub fn perform_chart_action(state: &mut State, action: Action) -> Option<Vec<Effect>> {
    let (ends, smallest) = (state.curve_ends(), smallest_window(state));
    let chart = &mut state.screen.chart;
    match action {
        Action::Left if chart.cursor.is_some() => chart.move_cursor(-0.01, ends),
        Action::Right if chart.cursor.is_some() => chart.move_cursor(0.01, ends),
        Action::Left => chart.pan(-1.0, ends),
        Action::Right => chart.pan(1.0, ends),
        Action::ZoomIn => chart.zoom(0.5, ends, smallest),
        Action::ZoomOut => chart.zoom(2.0, ends, smallest),
        Action::Fit => chart.fit(),
        Action::Follow => chart.follow(ends),
        Action::LogScale => chart.log = !chart.log,
        Action::Smoothing => chart.next_smoothing(),
        Action::Cursor if chart.cursor.is_some() => chart.cursor = None,
        Action::Cursor => chart.move_cursor(0.0, ends),
        Action::Axis => {
            let (from, to) = (chart.axis, chart.axis.next());
            let series = &state.facts.series;
            chart.switch_axis(to, ends, |place| series.at(from, place).map(|at| at.spot().on(to)));
        }
        _ => return None,
    }
    Some(vec![Effect::Redraw])
}

/// Zooms around the column under the mouse.
pub fn zoom_at(state: &mut State, column: u16, panel: Panel, factor: f64) -> Vec<Effect> {
    let (ends, smallest) = (state.curve_ends(), smallest_window(state));
    let place = place_at(state, column, panel);
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
pub fn place_cursor(state: &mut State, column: u16, panel: Panel) -> Vec<Effect> {
    if let Some(place) = place_at(state, column, panel) {
        state.screen.chart.cursor = Some(place);
    }
    vec![Effect::Redraw]
}

/// Returns the position that a chart draws at a column of the screen.
fn place_at(state: &State, column: u16, panel: Panel) -> Option<f64> {
    let Panel::Chart(quantity) = panel else { return None };
    let area = lay_out_state(state).area_of(panel)?;
    Some(chart_geometry(area, quantity, state)?.place_at(column))
}

/// Shows the next or the previous page of charts, or the next chart where one fills the view, and says which.
pub fn page_charts(state: &mut State, direction: isize) -> Vec<Effect> {
    let quantities = state.quantities();
    let seen = charts_per_page(state.screen.size, quantities.clone()).max(1);
    let last = quantities.len().saturating_sub(seen);
    let screen = &mut state.screen;
    let shown = if let Some(full) = screen.full {
        let here = quantities.iter().position(|quantity| *quantity == full).unwrap_or(0);
        let next = here.saturating_add_signed(direction).min(quantities.len() - 1);
        screen.full = Some(quantities[next]);
        next..next + 1
    } else {
        let step = direction.saturating_mul(isize::try_from(seen).unwrap_or(1));
        screen.charts_from = screen.charts_from.saturating_add_signed(step).min(last);
        screen.charts_from..(screen.charts_from + seen).min(quantities.len())
    };
    let which = if shown.len() == 1 {
        format!("chart {}", shown.end)
    } else {
        format!("charts {} to {}", shown.start + 1, shown.end)
    };
    state.show_notice(format!("{which} of {}", quantities.len()), false);
    focus_visible_panel(state);
    vec![Effect::Redraw]
}

/// Handles Enter on a chart: shows it alone in the Charts view; a second Enter shows all charts again.
pub fn toggle_full_chart(state: &mut State, quantity: Quantity) -> Vec<Effect> {
    let quantities = state.quantities();
    let screen = &mut state.screen;
    screen.full = match (screen.view, screen.full) {
        (View::Charts, Some(_)) => None,
        _ => Some(quantity),
    };
    screen.view = View::Charts;
    screen.focus = Panel::Chart(quantity);
    if screen.full.is_none() {
        let here = quantities.iter().position(|other| *other == quantity).unwrap_or(0);
        let last = quantities.len();
        let seen = charts_per_page(screen.size, quantities);
        if here < screen.charts_from || here >= screen.charts_from + seen {
            screen.charts_from = here.min(last.saturating_sub(seen));
        }
    }
    vec![Effect::Redraw]
}
