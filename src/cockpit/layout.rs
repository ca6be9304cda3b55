//! Screen layout: a pure function of size and view, used both to draw and to find what the mouse points
//! at.
//!
//! ```text
//! header                                       wide, from 110 × 30
//! tabs, progress
//! verdict
//! learning                                     once there are evaluations
//! ┌ chart ────────────────────┐ ┌ gauges ──┐
//! ┌ chart ┐ ┌ chart ┐ ┌ chart ┐ ┌ chart ┐      large, from 160 × 45
//! ┌ ladder ─────┐ ┌ journal ─────────────────┐
//! ┌ checkpoints ┐ ┌ log, where there is room ┐
//! footer; on a smaller screen, after the tabs
//! ```

use super::panels::{tabs, verdict};
use super::quantity::Quantity;
use super::state::State;
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
    /// The tabs of all views.
    pub tabs: Rect,
    /// Progress of the run; empty if it does not fit.
    pub progress: Rect,
    /// Verdict on the run's state.
    pub verdict: Rect,
    /// How well the run learns; empty before the first evaluation.
    pub learning: Rect,
    /// In the charts view: groups, search and position among the charts.
    pub chart_bar: Rect,
    /// Panels in Tab order.
    pub panels: Vec<(Panel, Rect)>,
    /// Last line, without the tabs.
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
    /// The charts, in the charts view.
    pub charts: Vec<Quantity>,
    /// The charts beside the loss, in a large overview.
    pub learning_charts: Vec<Quantity>,
    /// The sensors of the machine, in the health view.
    pub sensors: Vec<Quantity>,
    /// Whether there are evaluations.
    pub evaluated: bool,
    /// Number of rungs.
    pub rungs: usize,
    /// Number of classes in the matrix beside the samples, if there is one.
    pub classes: Option<usize>,
    /// Whether the matrix takes the place of the samples where only one of them fits.
    pub matrix: bool,
    /// Columns of the tabs.
    pub tabs: tabs::Widths,
    /// Rows of the verdict, or of the response in its place.
    pub verdict: u16,
}

impl LayoutInput {
    /// Extracts the layout inputs from a state.
    #[must_use]
    pub fn from_state(state: &State) -> Self {
        Self::of_view(state, state.screen.view)
    }

    /// Extracts the inputs of a view, and computes only those that it needs.
    fn of_view(state: &State, view: View) -> Self {
        let screen = &state.screen;
        let charts = || state.charts().into_iter().map(|chart| chart.quantity).collect();
        let confusion = state.confusion().filter(|_| !screen.samples.alone);
        Self {
            view,
            charts_from: screen.charts_from,
            full: screen.full,
            charts: if view == View::Charts { charts() } else { Vec::new() },
            learning_charts: if view == View::Overview { state.learning_charts() } else { Vec::new() },
            sensors: if view == View::Health { state.sensors() } else { Vec::new() },
            evaluated: !state.facts.evals.is_empty(),
            rungs: state.ladder.len(),
            classes: confusion.map(|confusion| confusion.classes.len()),
            matrix: screen.samples.matrix,
            tabs: tabs::widths(state),
            verdict: verdict::rows(state),
        }
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
            tabs: none,
            progress: none,
            verdict: none,
            learning: none,
            chart_bar: none,
            panels: Vec::new(),
            footer: none,
        };
    }
    let room = if width >= 110 && height >= 30 { Room::Wide } else { Room::Compact };
    let is_large = width >= 160 && height >= 45;
    let gap = u16::from(room == Room::Wide);
    // A row is scarce on a small screen: there only the views that show curves have the line.
    let has_curves = matches!(look.view, View::Overview | View::Charts);
    let learning = u16::from(look.evaluated && (room == Room::Wide || has_curves));
    let [header, second, verdict, learning, _, body, last] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(gap),
        Constraint::Length(look.verdict),
        Constraint::Length(learning),
        Constraint::Length(gap),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(area);
    let (tabs, progress, footer) = if room == Room::Wide {
        let (tabs, progress) = split_off_tabs(second, look.tabs.full);
        (tabs, Rect { width: progress.width.saturating_sub(1), ..progress }, last)
    } else {
        let has_names = width >= look.tabs.full + LEAST_FOOTER;
        let (tabs, footer) = split_off_tabs(last, if has_names { look.tabs.full } else { look.tabs.short });
        (tabs, Rect::ZERO, footer)
    };
    // One blank column on each side.
    let body = Rect { x: 1, width: width - 2, ..body };
    let chart_bar = Rect { height: u16::from(look.view == View::Charts), ..body };
    let body = Rect { y: body.y + chart_bar.height, height: body.height - chart_bar.height, ..body };
    let panels = match (look.view, room) {
        (View::Overview, Room::Wide) if is_large => lay_out_large_overview(body, &look.learning_charts),
        (View::Overview, Room::Wide) => lay_out_wide_overview(body),
        (View::Overview, _) => lay_out_compact_overview(body),
        (View::Charts, _) => lay_out_charts(body, look),
        (View::Ladder, _) => lay_out_ladder(body, look.rungs),
        (View::Log, _) => lay_out_log(body),
        (View::Health, _) => lay_out_health(body, &look.sensors),
        (View::Runs, _) => lay_out_runs(body),
        (View::Samples, _) => lay_out_samples(body, look),
        (View::Layers, _) => vec![(Panel::Layers, body)],
        (View::Ranks, _) => vec![(Panel::Ranks, body)],
    };
    Places { room, header, tabs, progress, verdict, learning, chart_bar, panels, footer }
}

/// Columns that the keys of the last line keep beside tabs with all names.
const LEAST_FOOTER: u16 = 80;

/// Splits a line into the tabs and the rest, two columns apart.
fn split_off_tabs(line: Rect, tabs: u16) -> (Rect, Rect) {
    let [tabs, rest] = split_columns(line, [Constraint::Length(tabs), Constraint::Fill(1)], 2);
    (tabs, rest)
}

fn split_rows<const N: usize>(area: Rect, constraints: [Constraint; N]) -> [Rect; N] {
    Layout::vertical(constraints).areas(area)
}

fn split_columns<const N: usize>(area: Rect, constraints: [Constraint; N], gap: u16) -> [Rect; N] {
    Layout::horizontal(constraints).spacing(gap).areas(area)
}

fn lay_out_wide_overview(body: Rect) -> Vec<(Panel, Rect)> {
    let side = (body.width / 4).clamp(33, 52);
    let bottom = (body.height * 3 / 8).clamp(11, 26);
    let [top, lower] = split_rows(body, [Constraint::Min(8), Constraint::Length(bottom)]);
    let [loss, gauges] = split_columns(top, [Constraint::Min(40), Constraint::Length(side)], 3);
    let loss = Rect { height: loss.height.saturating_sub(1), ..loss };
    let mut panels = vec![(LOSS, loss), (Panel::Gauges, gauges)];
    panels.extend(lay_out_lower(body, lower));
    panels
}

/// Like the wide overview, with a row of small charts below the loss.
fn lay_out_large_overview(body: Rect, charts: &[Quantity]) -> Vec<(Panel, Rect)> {
    let side = (body.width / 4).clamp(38, 52);
    let (bottom, middle) = ((body.height / 3).clamp(11, 20), (body.height / 4).clamp(9, 14));
    let rows = [Constraint::Min(8), Constraint::Length(middle), Constraint::Length(bottom)];
    let [top, middle, lower] = Layout::vertical(rows).spacing(1).areas(body);
    let [loss, gauges] = split_columns(top, [Constraint::Min(40), Constraint::Length(side)], 3);
    let columns = Layout::horizontal(vec![Constraint::Fill(1); charts.len()]).spacing(3).split(middle);
    let mut panels = vec![(LOSS, loss), (Panel::Gauges, gauges)];
    panels.extend(charts.iter().copied().map(Panel::Chart).zip(columns.to_vec()));
    panels.extend(lay_out_lower(body, lower));
    panels
}

/// Lays out ladder, checkpoints, journal and log below the charts of an overview.
fn lay_out_lower(body: Rect, lower: Rect) -> Vec<(Panel, Rect)> {
    let left = (body.width * 3 / 7).clamp(50, 60);
    let [left, right] = split_columns(lower, [Constraint::Length(left), Constraint::Min(40)], 3);
    let ladder = (lower.height / 2).clamp(6, 8);
    let [ladder, checkpoints] = split_rows(left, [Constraint::Length(ladder), Constraint::Min(3)]);
    let log = if lower.height >= 18 { lower.height / 2 } else { 0 };
    let mut panels = vec![(Panel::Ladder, ladder), (Panel::Checkpoints, checkpoints)];
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

/// Returns how many charts the charts view shows at once.
#[must_use]
pub fn charts_per_page(state: &State) -> usize {
    let look = LayoutInput { charts_from: 0, full: None, ..LayoutInput::of_view(state, View::Charts) };
    lay_out(state.screen.size, &look).panels.len()
}

fn lay_out_charts(body: Rect, look: &LayoutInput) -> Vec<(Panel, Rect)> {
    if let Some(full) = look.full {
        return vec![(Panel::Chart(full), body)];
    }
    let (columns, rows) = chart_grid(body);
    let seen = (columns * rows).min(look.charts.len());
    let from = look.charts_from.min(look.charts.len() - seen);
    let rows = seen.div_ceil(columns);
    let gap = u16::from(body.width >= 108) * 2 + 1;
    let lanes = Layout::vertical(vec![Constraint::Fill(1); rows]).split(body);
    let cells = lanes
        .iter()
        .flat_map(|lane| Layout::horizontal(vec![Constraint::Fill(1); columns]).spacing(gap).split(*lane).to_vec());
    look.charts.iter().copied().skip(from).take(seen).map(Panel::Chart).zip(cells).collect()
}

fn lay_out_ladder(body: Rect, rungs: usize) -> Vec<(Panel, Rect)> {
    // A heading, up to four lines for each rung, and a hint.
    let lines = if body.width < 90 { rungs } else { rungs * 4 };
    let ladder = (body.height / 2).clamp(6, 22).min(u16::try_from(lines + 2).unwrap_or(u16::MAX)).max(6);
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

/// Puts the matrix beside the samples where both fit, else one of them.
fn lay_out_samples(body: Rect, look: &LayoutInput) -> Vec<(Panel, Rect)> {
    let Some(classes) = look.classes else { return vec![(Panel::Samples, body)] };
    if body.width < 100 {
        return vec![(if look.matrix { Panel::Confusion } else { Panel::Samples }, body)];
    }
    let wanted = u16::try_from(classes.saturating_mul(5).saturating_add(20)).unwrap_or(u16::MAX);
    let matrix = wanted.clamp(40, body.width * 9 / 20);
    let [samples, matrix] = split_columns(body, [Constraint::Min(40), Constraint::Length(matrix)], 3);
    vec![(Panel::Samples, samples), (Panel::Confusion, matrix)]
}

fn lay_out_log(body: Rect) -> Vec<(Panel, Rect)> {
    let [journal, log] = if body.width >= 160 {
        split_columns(body, [Constraint::Fill(1), Constraint::Fill(1)], 3)
    } else {
        Layout::vertical([Constraint::Fill(1), Constraint::Fill(1)]).spacing(1).areas(body)
    };
    vec![(Panel::Journal, journal), (Panel::Log, log)]
}

fn lay_out_health(body: Rect, sensors: &[Quantity]) -> Vec<(Panel, Rect)> {
    let side = (body.width / 3).clamp(26, 52);
    let [left, gauges] = split_columns(body, [Constraint::Min(20), Constraint::Length(side)], 3);
    let checkpoints = (body.height / 3).clamp(5, 12);
    let [checkpoints, charts] =
        Layout::vertical([Constraint::Length(checkpoints), Constraint::Fill(1)]).spacing(1).areas(left);
    let (beside, below) = if charts.width >= 90 { (2, charts.height / 8) } else { (1, charts.height / 7) };
    let count = (beside * usize::from(below.max(1))).min(sensors.len());
    let lanes = Layout::vertical(vec![Constraint::Fill(1); count.div_ceil(beside)]).split(charts);
    let cells = lanes
        .iter()
        .flat_map(|lane| Layout::horizontal(vec![Constraint::Fill(1); beside]).spacing(3).split(*lane).to_vec());
    let mut panels = vec![(Panel::Checkpoints, checkpoints), (Panel::Gauges, gauges)];
    panels.extend(sensors.iter().take(count).map(|quantity| Panel::Chart(*quantity)).zip(cells));
    panels
}

#[cfg(test)]
mod tests;
