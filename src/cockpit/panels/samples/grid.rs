//! A grid of samples: the largest pictures of which all fit, else pages of small ones.

use super::{draw_sample, is_wrong, one_line};
use crate::cockpit::state::State;
use crate::cockpit::state::samples::ShownSample;
use crate::cockpit::ui;
use crate::format::{figure, percent};
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};
use unicode_width::UnicodeWidthStr;

/// Columns and rows of a picture, largest first. A cell is about twice as high as wide.
const SIZES: [(u16, u16); 5] = [(48, 24), (32, 16), (24, 12), (16, 8), (12, 6)];
/// Lines below a picture.
const CAPTION: u16 = 2;
/// Columns and rows between tiles.
const GAP: (u16, u16) = (2, 1);

/// Places of the tiles on one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    area: Rect,
    picture: (u16, u16),
    columns: usize,
    first: usize,
    count: usize,
    seen: usize,
}

impl Grid {
    /// Lays out the page with the chosen sample.
    pub fn lay_out(area: Rect, count: usize, chosen: usize) -> Self {
        let fitting = |(width, height): (u16, u16)| {
            let columns = (area.width + GAP.0) / (width + GAP.0);
            let rows = (area.height + GAP.1) / (height + CAPTION + GAP.1);
            (usize::from(columns), usize::from(rows))
        };
        let fits = |size: &(u16, u16)| {
            let (columns, rows) = fitting(*size);
            columns * rows >= count.max(1)
        };
        let smallest = SIZES[SIZES.len() - 1];
        let picture = SIZES.into_iter().find(fits).unwrap_or(smallest);
        let picture = (picture.0.min(area.width.max(1)), picture.1.min(area.height.saturating_sub(CAPTION).max(1)));
        let (columns, rows) = fitting(picture);
        let (columns, rows) = (columns.max(1), rows.max(1));
        let seen = columns * rows;
        let first = chosen.min(count.saturating_sub(1)) / seen * seen;
        Self { area, picture, columns, first, count, seen }
    }

    /// Returns the samples on the page with their areas.
    pub fn tiles(&self) -> impl Iterator<Item = (usize, Rect)> {
        let (width, height) = (self.picture.0, self.picture.1 + CAPTION);
        let (area, columns, first) = (self.area, self.columns, self.first);
        (first..self.count.min(first + self.seen)).map(move |place| {
            let (row, column) = ((place - first) / columns, (place - first) % columns);
            let x = area.x + (width + GAP.0) * u16::try_from(column).unwrap_or(0);
            let y = area.y + (height + GAP.1) * u16::try_from(row).unwrap_or(0);
            (place, Rect { x, y, width, height }.intersection(area))
        })
    }

    /// Returns the part of a tile that holds the picture.
    pub fn picture_room(tile: Rect) -> Rect {
        Rect { height: tile.height.saturating_sub(CAPTION), ..tile }
    }
}

/// Draws the page.
pub fn render(frame: &mut Frame<'_>, grid: &Grid, samples: &[&ShownSample], state: &State, theme: &Theme) {
    let chosen = state.screen.samples.chosen.min(samples.len().saturating_sub(1));
    for (place, tile) in grid.tiles() {
        let Some(shown) = samples.get(place) else { continue };
        let picture = Grid::picture_room(tile);
        draw_sample(frame, picture, shown, state, theme);
        let below = Rect { y: picture.bottom(), height: tile.height - picture.height, ..tile };
        let lines = caption(shown, usize::from(tile.width), theme);
        ui::render_lines(frame, below, lines.into());
        if place == chosen {
            frame.buffer_mut().set_style(below, theme.selected);
        }
    }
}

/// Returns two lines: label and answer with its confidence, then the loss or the name.
fn caption(shown: &ShownSample, width: usize, theme: &Theme) -> [Line<'static>; 2] {
    let sample = &shown.sample;
    let name = || sample.name.as_deref().map(|name| Line::styled(ui::cut(&one_line(name), width), theme.dim));
    let sure = sample.confidence.filter(|sure| sure.is_finite()).map(|sure| percent(f64::from(sure)));
    let sure = sure.unwrap_or_default();
    let room = width.saturating_sub(if sure.is_empty() { 0 } else { sure.width() + 1 });
    let loss = sample.loss.map(|loss| Line::styled(format!("loss {}", figure(f64::from(loss))), theme.dim));
    let mut second = None;
    let spans = match (&sample.label, &sample.answer) {
        (Some(label), Some(answer)) if is_wrong(shown) => {
            let (label, answer) = (one_line(label), one_line(answer));
            if label.width() + answer.width() + 3 <= room {
                vec![Span::raw(label), Span::styled(" → ", theme.dim), Span::styled(answer, theme.danger)]
            } else {
                // Whole names say more than the loss.
                second = Some(Line::styled(ui::cut(&format!("is {label}"), width), theme.dim));
                vec![Span::styled(ui::cut(&answer, room), theme.danger)]
            }
        }
        (_, Some(answer)) => vec![Span::styled(ui::cut(&one_line(answer), room), theme.good)],
        (Some(label), None) => vec![Span::raw(ui::cut(&one_line(label), room))],
        (None, None) => return [name().unwrap_or_default(), loss.unwrap_or_default()],
    };
    let mut first = Line::from(spans);
    let gap = width.saturating_sub(first.width() + sure.width());
    first.push_span(Span::styled(format!("{}{sure}", " ".repeat(gap)), theme.dim));
    [first, second.or(loss).or_else(name).unwrap_or_default()]
}

#[cfg(test)]
mod tests {
    use super::Grid;
    use proptest::prelude::*;
    use ratatui::layout::Rect;

    proptest! {
        #[test]
        fn tiles_lie_apart_and_the_chosen_one_is_on_the_page(
            width in 1u16..300, height in 1u16..100, count in 1usize..200, chosen in 0usize..300,
        ) {
            let area = Rect::new(2, 3, width, height);
            let tiles: Vec<_> = Grid::lay_out(area, count, chosen).tiles().collect();
            prop_assert!(tiles.iter().any(|(place, _)| *place == chosen.min(count - 1)));
            for (index, (_, tile)) in tiles.iter().enumerate() {
                prop_assert_eq!(tile.intersection(area), *tile);
                prop_assert!(tiles[..index].iter().all(|(_, other)| other.intersection(*tile).is_empty()));
            }
        }
    }

    #[test]
    fn pictures_are_as_large_as_all_of_them_allow() {
        let size = |count| {
            let grid = Grid::lay_out(Rect::new(0, 0, 78, 18), count, 0);
            (grid.picture, grid.tiles().count())
        };
        assert_eq!([size(1), size(4), size(10), size(40)], [((32, 16), 1), ((16, 8), 4), ((12, 6), 10), ((12, 6), 10)]);
    }
}
