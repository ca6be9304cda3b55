//! Where everything stands: a function of the size and the view alone, used for drawing and for
//! finding what the mouse points at.
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

use super::state::screen::{Panel, View};
use ratatui::layout::{Constraint, Layout, Rect};

/// How much room there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Not enough for panels.
    Tiny,
    /// As on 80 × 24.
    Compact,
    /// From 110 × 30.
    Wide,
}

/// The places of a screen.
#[derive(Debug, Clone)]
pub struct Places {
    /// How much room there is.
    pub room: Room,
    /// First line.
    pub header: Rect,
    /// How far the run is; empty where there is no room for it.
    pub progress: Rect,
    /// How it is.
    pub verdict: Rect,
    /// The panels, in the order of Tab.
    pub panels: Vec<(Panel, Rect)>,
    /// Last line.
    pub footer: Rect,
}

impl Places {
    /// The panel at a place.
    #[must_use]
    pub fn panel_at(&self, column: u16, row: u16) -> Option<Panel> {
        self.panels.iter().find(|(_, area)| area.contains((column, row).into())).map(|(panel, _)| *panel)
    }

    /// The area of a panel that is shown.
    #[must_use]
    pub fn area_of(&self, wanted: Panel) -> Option<Rect> {
        self.panels.iter().find(|(panel, _)| *panel == wanted).map(|(_, area)| *area)
    }
}

/// The smallest screen with panels.
pub const SMALLEST: (u16, u16) = (60, 16);

/// Lays out a screen of so many columns and rows.
#[must_use]
pub fn places((width, height): (u16, u16), view: View) -> Places {
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
    // A column of air at both sides.
    let body = Rect { x: 1, width: width - 2, ..body };
    let panels = match (view, room) {
        (View::Overview, Room::Wide) => overview_wide(body),
        (View::Overview, _) => overview_compact(body),
        (View::Curves, _) => curves(body),
        (View::Rungs, _) => rungs(body),
        (View::Words, _) => words(body),
        (View::Health, _) => health(body),
    };
    Places { room, header, progress, verdict, panels, footer }
}

fn rows<const N: usize>(area: Rect, constraints: [Constraint; N]) -> [Rect; N] {
    Layout::vertical(constraints).areas(area)
}

fn columns<const N: usize>(area: Rect, constraints: [Constraint; N], gap: u16) -> [Rect; N] {
    Layout::horizontal(constraints).spacing(gap).areas(area)
}

fn overview_wide(body: Rect) -> Vec<(Panel, Rect)> {
    let side = (body.width / 4).clamp(38, 52);
    let bottom = (body.height * 3 / 8).clamp(11, 26);
    let [top, lower] = rows(body, [Constraint::Min(8), Constraint::Length(bottom)]);
    let [loss, gauges] = columns(top, [Constraint::Min(40), Constraint::Length(side)], 3);
    let loss = Rect { height: loss.height.saturating_sub(1), ..loss };
    let left = (body.width / 2).clamp(46, 60);
    let [left, right] = columns(lower, [Constraint::Length(left), Constraint::Min(40)], 3);
    let ladder = (lower.height / 2).clamp(6, 8);
    let [ladder, checkpoints] = rows(left, [Constraint::Length(ladder), Constraint::Min(3)]);
    let log = if lower.height >= 18 { lower.height / 2 } else { 0 };
    let mut panels = vec![(Panel::Loss, loss), (Panel::Gauges, gauges)];
    panels.extend([(Panel::Ladder, ladder), (Panel::Checkpoints, checkpoints)]);
    if right.width >= 120 {
        let [journal, log] = columns(right, [Constraint::Fill(1), Constraint::Fill(1)], 3);
        panels.extend([(Panel::Journal, journal), (Panel::Log, log)]);
    } else {
        let [journal, log] = rows(right, [Constraint::Min(3), Constraint::Length(log)]);
        panels.push((Panel::Journal, journal));
        panels.extend((log.height > 0).then_some((Panel::Log, log)));
    }
    panels
}

fn overview_compact(body: Rect) -> Vec<(Panel, Rect)> {
    let journal = (body.height / 4).clamp(3, 9);
    let [top, journal] = rows(body, [Constraint::Min(8), Constraint::Length(journal)]);
    let side = (body.width * 3 / 8).clamp(26, 40);
    let [loss, right] = columns(top, [Constraint::Min(20), Constraint::Length(side)], 2);
    let [gauges, ladder] = rows(right, [Constraint::Min(5), Constraint::Length((top.height / 3).clamp(3, 7))]);
    vec![(Panel::Loss, loss), (Panel::Gauges, gauges), (Panel::Ladder, ladder), (Panel::Journal, journal)]
}

fn curves(body: Rect) -> Vec<(Panel, Rect)> {
    if body.height < 24 {
        return vec![(Panel::Loss, body)];
    }
    let [loss, norm, time] =
        Layout::vertical([Constraint::Fill(3), Constraint::Fill(1), Constraint::Fill(1)]).spacing(1).areas(body);
    vec![(Panel::Loss, loss), (Panel::GradNorm, norm), (Panel::StepTime, time)]
}

fn rungs(body: Rect) -> Vec<(Panel, Rect)> {
    let [ladder, checkpoints] = Layout::vertical([Constraint::Fill(1), Constraint::Fill(1)]).spacing(1).areas(body);
    vec![(Panel::Ladder, ladder), (Panel::Checkpoints, checkpoints)]
}

fn words(body: Rect) -> Vec<(Panel, Rect)> {
    let [journal, log] = if body.width >= 160 {
        columns(body, [Constraint::Fill(1), Constraint::Fill(1)], 3)
    } else {
        Layout::vertical([Constraint::Fill(1), Constraint::Fill(1)]).spacing(1).areas(body)
    };
    vec![(Panel::Journal, journal), (Panel::Log, log)]
}

fn health(body: Rect) -> Vec<(Panel, Rect)> {
    let side = (body.width / 3).clamp(26, 52);
    let [trends, gauges] = columns(body, [Constraint::Min(20), Constraint::Length(side)], 3);
    vec![(Panel::Trends, trends), (Panel::Gauges, gauges)]
}

#[cfg(test)]
mod tests {
    use super::{Room, SMALLEST, places};
    use crate::cockpit::state::screen::View;
    use proptest::prelude::*;
    use ratatui::layout::Rect;

    proptest! {
        #[test]
        fn panels_lie_within_the_screen_and_apart(width in 0u16..300, height in 0u16..120, view in 0usize..5) {
            let view = [View::Overview, View::Curves, View::Rungs, View::Words, View::Health][view];
            let places = places((width, height), view);
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
