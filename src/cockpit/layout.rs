//! Screen layout: a pure function of size and view, used both to draw and to find what the mouse points
//! at.
//!
//! ```text
//! header                                       wide, from 110 × 30
//! progress
//! verdict
//! ┌ chart ────────────────────┐ ┌ gauges ──┐
//! ┌ ladder ─────┐ ┌ journal ─────────────────┐
//! ┌ checkpoints ┐ ┌ log, where there is room ┐
//! footer
//! ```

use super::quantity::Quantity;
use super::state::State;
use super::state::readings::Gauge;
use super::state::screen::{Panel, View};
use ratatui::layout::{Constraint, Layout, Rect};

/// Size class of the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Too small for panels.
    Tiny,
    /// At least `SMALLEST`, as on 80 × 24.
    Compact,
    /// From 110 × 30.
    Wide,
}

/// Areas of a screen.
#[derive(Debug, Clone)]
pub struct Places {
    /// Size class.
    pub room: Room,
    /// First line.
    pub header: Rect,
    /// Progress of the run; empty if it does not fit.
    pub progress: Rect,
    /// Verdict on the run's state.
    pub verdict: Rect,
    /// Panels in Tab order.
    pub panels: Vec<(Panel, Rect)>,
    /// Last line.
    pub footer: Rect,
}

impl Places {
    /// Returns the panel at a position.
    #[must_use]
    pub fn panel_at(&self, column: u16, row: u16) -> Option<Panel> {
        self.panels.iter().find(|(_, area)| area.contains((column, row).into())).map(|(panel, _)| *panel)
    }

    /// Returns the area of a panel if it is visible.
    #[must_use]
    pub fn area_of(&self, wanted: Panel) -> Option<Rect> {
        self.panels.iter().find(|(panel, _)| *panel == wanted).map(|(_, area)| *area)
    }
}

/// The part of the state that determines the layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutInput {
    /// The view.
    pub view: View,
    /// Number of charts scrolled past before the first visible one.
    pub charts_from: usize,
    /// Chart that fills the whole view.
    pub full: Option<Quantity>,
    /// The quantities of the run, in chart order.
    pub quantities: Vec<Quantity>,
    /// Whether GPU readings are available.
    pub gpu: bool,
}

impl LayoutInput {
    /// Extracts the layout inputs from a state.
    #[must_use]
    pub fn from_state(state: &State) -> Self {
        let screen = &state.screen;
        let gpu = state.facts.readings.has(Gauge::Vram);
        let quantities = state.quantities();
        Self { view: screen.view, charts_from: screen.charts_from, full: screen.full, quantities, gpu }
    }
}

/// Lays out a state on its own screen.
#[must_use]
pub fn lay_out_state(state: &State) -> Places {
    lay_out(state.screen.size, &LayoutInput::from_state(state))
}

/// The smallest screen with panels.
pub const SMALLEST: (u16, u16) = (60, 16);

/// Lays out a screen of the given columns and rows.
#[must_use]
pub fn lay_out((width, height): (u16, u16), look: &LayoutInput) -> Places {
    let area = Rect::new(0, 0, width, height);
    if width < SMALLEST.0 || height < SMALLEST.1 {
        let none = Rect::ZERO;
        return Places {
            room: Room::Tiny,
            header: area,
            progress: none,
            verdict: none,
            panels: Vec::new(),
            footer: none,
        };
    }
    let room = if width >= 110 && height >= 30 { Room::Wide } else { Room::Compact };
    let gap = u16::from(room == Room::Wide);
    let [header, progress, verdict, _, body, footer] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(gap),
        Constraint::Length(1),
        Constraint::Length(gap),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(area);
    // One blank column on each side.
    let body = Rect { x: 1, width: width - 2, ..body };
    let panels = match (look.view, room) {
        (View::Overview, Room::Wide) => lay_out_wide_overview(body),
        (View::Overview, _) => lay_out_compact_overview(body),
        (View::Charts, _) => lay_out_charts(body, look),
        (View::Ladder, _) => lay_out_ladder(body),
        (View::Log, _) => lay_out_log(body),
        (View::Health, _) => lay_out_health(body, look.gpu),
        (View::Runs, _) => lay_out_runs(body),
    };
    Places { room, header, progress, verdict, panels, footer }
}

fn split_rows<const N: usize>(area: Rect, constraints: [Constraint; N]) -> [Rect; N] {
    Layout::vertical(constraints).areas(area)
}

fn split_columns<const N: usize>(area: Rect, constraints: [Constraint; N], gap: u16) -> [Rect; N] {
    Layout::horizontal(constraints).spacing(gap).areas(area)
}

fn lay_out_wide_overview(body: Rect) -> Vec<(Panel, Rect)> {
    let side = (body.width / 4).clamp(38, 52);
    let bottom = (body.height * 3 / 8).clamp(11, 26);
    let [top, lower] = split_rows(body, [Constraint::Min(8), Constraint::Length(bottom)]);
    let [loss, gauges] = split_columns(top, [Constraint::Min(40), Constraint::Length(side)], 3);
    let loss = Rect { height: loss.height.saturating_sub(1), ..loss };
    let left = (body.width / 2).clamp(46, 60);
    let [left, right] = split_columns(lower, [Constraint::Length(left), Constraint::Min(40)], 3);
    let ladder = (lower.height / 2).clamp(6, 8);
    let [ladder, checkpoints] = split_rows(left, [Constraint::Length(ladder), Constraint::Min(3)]);
    let log = if lower.height >= 18 { lower.height / 2 } else { 0 };
    let mut panels = vec![(LOSS, loss), (Panel::Gauges, gauges)];
    panels.extend([(Panel::Ladder, ladder), (Panel::Checkpoints, checkpoints)]);
    if right.width >= 120 {
        let [journal, log] = split_columns(right, [Constraint::Fill(1), Constraint::Fill(1)], 3);
        panels.extend([(Panel::Journal, journal), (Panel::Log, log)]);
    } else {
        let [journal, log] = split_rows(right, [Constraint::Min(3), Constraint::Length(log)]);
        panels.push((Panel::Journal, journal));
        panels.extend((log.height > 0).then_some((Panel::Log, log)));
    }
    panels
}

fn lay_out_compact_overview(body: Rect) -> Vec<(Panel, Rect)> {
    let journal = (body.height / 4).clamp(3, 9);
    let [top, journal] = split_rows(body, [Constraint::Min(8), Constraint::Length(journal)]);
    let side = (body.width * 3 / 8).clamp(26, 40);
    let [loss, right] = split_columns(top, [Constraint::Min(20), Constraint::Length(side)], 2);
    let [gauges, ladder] =
        split_rows(right, [Constraint::Min(5), Constraint::Length((top.height * 3 / 8).clamp(3, 8))]);
    vec![(LOSS, loss), (Panel::Gauges, gauges), (Panel::Ladder, ladder), (Panel::Journal, journal)]
}

const LOSS: Panel = Panel::Chart(Quantity::Loss);

/// Returns how many charts fit side by side and on top of each other.
fn chart_grid(body: Rect) -> (usize, usize) {
    let (wide, high) = if body.width < 108 || body.height < 26 { (37, 9) } else { (56, 13) };
    (usize::from(body.width / wide).max(1), usize::from(body.height / high).max(1))
}

/// Returns how many of these charts a screen shows at once.
#[must_use]
pub fn charts_per_page(size: (u16, u16), quantities: Vec<Quantity>) -> usize {
    let look = LayoutInput { view: View::Charts, charts_from: 0, full: None, quantities, gpu: false };
    lay_out(size, &look).panels.len()
}

fn lay_out_charts(body: Rect, look: &LayoutInput) -> Vec<(Panel, Rect)> {
    if let Some(full) = look.full {
        return vec![(Panel::Chart(full), body)];
    }
    let (columns, rows) = chart_grid(body);
    let seen = (columns * rows).min(look.quantities.len());
    let from = look.charts_from.min(look.quantities.len() - seen);
    let rows = seen.div_ceil(columns);
    let gap = u16::from(body.width >= 108) * 2 + 1;
    let lanes = Layout::vertical(vec![Constraint::Fill(1); rows]).split(body);
    let cells = lanes
        .iter()
        .flat_map(|lane| Layout::horizontal(vec![Constraint::Fill(1); columns]).spacing(gap).split(*lane).to_vec());
    look.quantities.iter().copied().skip(from).take(seen).map(Panel::Chart).zip(cells).collect()
}

fn lay_out_ladder(body: Rect) -> Vec<(Panel, Rect)> {
    let ladder = (body.height / 2).clamp(6, 22);
    let [ladder, rung] = Layout::vertical([Constraint::Length(ladder), Constraint::Fill(1)]).spacing(1).areas(body);
    vec![(Panel::Ladder, ladder), (Panel::Rung, rung)]
}

fn lay_out_runs(body: Rect) -> Vec<(Panel, Rect)> {
    let list = (body.height * 2 / 5).clamp(5, 16);
    let [list, rest] = Layout::vertical([Constraint::Length(list), Constraint::Fill(1)]).spacing(1).areas(body);
    let [chart, difference] = if rest.width >= 100 {
        split_columns(rest, [Constraint::Fill(3), Constraint::Fill(2)], 3)
    } else {
        let [chart, difference] = split_rows(rest, [Constraint::Fill(3), Constraint::Length((rest.height / 3).max(3))]);
        [chart, difference]
    };
    vec![(Panel::RunList, list), (Panel::Compare, chart), (Panel::Difference, difference)]
}

fn lay_out_log(body: Rect) -> Vec<(Panel, Rect)> {
    let [journal, log] = if body.width >= 160 {
        split_columns(body, [Constraint::Fill(1), Constraint::Fill(1)], 3)
    } else {
        Layout::vertical([Constraint::Fill(1), Constraint::Fill(1)]).spacing(1).areas(body)
    };
    vec![(Panel::Journal, journal), (Panel::Log, log)]
}

fn lay_out_health(body: Rect, gpu: bool) -> Vec<(Panel, Rect)> {
    use Quantity::{Cpu, Power, Ram, Temperature, Utilisation, Vram};
    let side = (body.width / 3).clamp(26, 52);
    let [left, gauges] = split_columns(body, [Constraint::Min(20), Constraint::Length(side)], 3);
    let checkpoints = (body.height / 3).clamp(5, 12);
    let [checkpoints, charts] =
        Layout::vertical([Constraint::Length(checkpoints), Constraint::Fill(1)]).spacing(1).areas(left);
    let shown: &[Quantity] = if gpu { &[Vram, Temperature, Utilisation, Power, Ram, Cpu] } else { &[Ram, Cpu] };
    let (beside, below) = if charts.width >= 90 { (2, charts.height / 8) } else { (1, charts.height / 7) };
    let count = (beside * usize::from(below.max(1))).min(shown.len());
    let lanes = Layout::vertical(vec![Constraint::Fill(1); count.div_ceil(beside)]).split(charts);
    let cells = lanes
        .iter()
        .flat_map(|lane| Layout::horizontal(vec![Constraint::Fill(1); beside]).spacing(3).split(*lane).to_vec());
    let mut panels = vec![(Panel::Checkpoints, checkpoints), (Panel::Gauges, gauges)];
    panels.extend(shown.iter().take(count).map(|quantity| Panel::Chart(*quantity)).zip(cells));
    panels
}

#[cfg(test)]
mod tests {
    use super::{LayoutInput, Room, SMALLEST, charts_per_page, lay_out};
    use crate::cockpit::quantity::Quantity;
    use crate::cockpit::state::screen::View;
    use proptest::prelude::*;
    use ratatui::layout::Rect;

    #[test]
    fn four_charts_on_80_columns_and_more_on_a_large_screen() {
        assert_eq!(
            [(80, 24), (120, 40), (200, 50)].map(|size| charts_per_page(size, Quantity::ALL.to_vec())),
            [4, 4, 9]
        );
    }

    proptest! {
        #[test]
        fn panels_lie_within_the_screen_and_apart(
            width in 0u16..420, height in 0u16..120, view in 0usize..6, charts_from in 0usize..30, full: bool, gpu: bool,
        ) {
            let full = full.then_some(Quantity::Loss);
            let quantities = Quantity::ALL.to_vec();
            let look = LayoutInput { view: View::ALL[view], charts_from, full, quantities, gpu };
            let places = lay_out((width, height), &look);
            prop_assert_eq!(places.room == Room::Tiny, width < SMALLEST.0 || height < SMALLEST.1);
            let screen = Rect::new(0, 0, width, height);
            let areas: Vec<_> = places.panels.iter().map(|(_, area)| *area).chain([places.footer]).collect();
            for (place, area) in areas.iter().enumerate() {
                prop_assert_eq!(area.intersection(screen), *area);
                prop_assert!(areas[..place].iter().all(|other| other.intersection(*area).is_empty()));
            }
        }
    }
}
