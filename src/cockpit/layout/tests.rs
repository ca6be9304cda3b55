use super::{LayoutInput, Room, SMALLEST, charts_per_page, lay_out};
use crate::cockpit::fixture;
use crate::cockpit::panels::tabs::Widths;
use crate::cockpit::quantity::Quantity;
use crate::cockpit::state::screen::View;
use proptest::prelude::*;
use ratatui::layout::Rect;

#[test]
fn four_charts_on_80_columns_and_more_on_a_large_screen() {
    assert_eq!([(80, 24), (120, 40), (200, 50)].map(|size| charts_per_page(&fixture::on_gpu(size))), [4, 4, 9]);
}

proptest! {
    #[test]
    fn panels_lie_within_the_screen_and_apart(
        width in 0u16..420, height in 0u16..120, tabs in 0u16..100, view in 0..View::ALL.len(),
        charts_from in 0usize..30, full: bool, few in 0usize..7, evaluated: bool, rungs in 0usize..60,
        classes in proptest::option::of(0usize..3000), matrix: bool, verdict in 1u16..4,
    ) {
        let full = full.then_some(Quantity::Loss);
        let (charts, sensors) = (Quantity::ALL[few..].to_vec(), Quantity::ALL[8 + few.min(5)..].to_vec());
        let learning_charts = Quantity::ALL[1..few.clamp(1, 5)].to_vec();
        let (view, tabs) = (View::ALL[view], Widths { full: tabs, short: tabs / 3 });
        let look = LayoutInput {
            view, charts_from, full, charts, learning_charts, sensors, evaluated, rungs, classes, matrix, tabs, verdict,
        };
        let places = lay_out((width, height), &look);
        prop_assert_eq!(places.room == Room::Tiny, width < SMALLEST.0 || height < SMALLEST.1);
        let screen = Rect::new(0, 0, width, height);
        let lines = [
            places.tabs, places.progress, places.verdict, places.learning, places.chart_bar, places.footer,
        ];
        let areas: Vec<_> = places.panels.iter().map(|(_, area)| *area).chain(lines).collect();
        for (place, area) in areas.iter().enumerate() {
            prop_assert_eq!(area.intersection(screen), *area);
            prop_assert!(areas[..place].iter().all(|other| other.intersection(*area).is_empty()));
        }
    }
}
