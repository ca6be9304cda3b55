//! A canvas of braille dots: each cell is 2 dots wide and 4 high.

use ratatui::{buffer::Buffer, layout::Rect, style::Style};
use std::cmp::Ordering;

/// Bit of each dot within its cell, by row and column.
const BITS: [[u8; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];

/// One layer of dots.
#[derive(Debug, Clone)]
pub struct Braille {
    cells_wide: usize,
    cells_high: usize,
    cells: Vec<u8>,
}

impl Braille {
    /// Creates an empty layer of the given number of cells.
    #[must_use]
    pub fn new(cells_wide: usize, cells_high: usize) -> Self {
        Self { cells_wide, cells_high, cells: vec![0; cells_wide * cells_high] }
    }

    /// Returns the width in dots.
    #[must_use]
    pub fn dots_wide(&self) -> usize {
        self.cells_wide * 2
    }

    /// Returns the height in dots.
    #[must_use]
    pub fn dots_high(&self) -> usize {
        self.cells_high * 4
    }

    /// Sets the dot in column `x` and row `y`, counted from the top left; ignores positions outside.
    pub fn set(&mut self, x: usize, y: usize) {
        if x < self.dots_wide() && y < self.dots_high() {
            self.cells[y / 4 * self.cells_wide + x / 2] |= BITS[y % 4][x % 2];
        }
    }

    /// Sets the dots of column `x` between rows `from` and `to`, which may be in either order.
    pub fn vertical(&mut self, x: usize, from: usize, to: usize) {
        for y in from.min(to)..=from.max(to).min(self.dots_high().saturating_sub(1)) {
            self.set(x, y);
        }
    }

    /// Draws a line between two dots, one vertical stroke per column, so that it has no gaps.
    pub fn line(&mut self, from: (usize, usize), to: (usize, usize)) {
        let (start, end) = if from.0 <= to.0 { (from, to) } else { (to, from) };
        let width = end.0 - start.0;
        if width == 0 {
            return self.vertical(start.0, start.1, end.1);
        }
        let at = |x: f64| (start.1 as f64 + (end.1 as f64 - start.1 as f64) * x / width as f64).round() as usize;
        for x in 0..=width {
            // Strokes meet halfway between columns.
            let left = at((x as f64 - 0.5).max(0.0));
            let right = at((x as f64 + 0.5).min(width as f64));
            // The dot where two strokes meet belongs to the right one; otherwise slopes would look doubled.
            let right = match left.cmp(&right) {
                Ordering::Less if x < width => right - 1,
                Ordering::Greater if x < width => right + 1,
                _ => right,
            };
            self.vertical(start.0 + x, left, right);
        }
    }

    /// Paints the cells that contain dots; the others keep their content.
    pub fn paint(&self, area: Rect, buffer: &mut Buffer, style: Style) {
        self.paint_by(area, buffer, |_| style);
    }

    /// Paints like [`Self::paint`], with a style for each column of cells.
    pub fn paint_by(&self, area: Rect, buffer: &mut Buffer, style: impl Fn(usize) -> Style) {
        self.paint_cells(area, buffer, style, |_| 0);
    }

    /// Paints like [`Self::paint`], but keeps the dots of the curves below: none vanishes behind another.
    pub fn paint_beside(&self, area: Rect, buffer: &mut Buffer, style: Style) {
        self.paint_cells(area, buffer, |_| style, dots_of);
    }

    fn paint_cells(&self, area: Rect, buffer: &mut Buffer, style: impl Fn(usize) -> Style, kept: impl Fn(&str) -> u8) {
        let rows = self.cells.chunks(self.cells_wide.max(1)).take(usize::from(area.height));
        for (y, row) in (area.y..).zip(rows) {
            for (place, bits) in row.iter().take(usize::from(area.width)).enumerate() {
                let x = area.x + place as u16;
                let Some(cell) = buffer.cell_mut((x, y)).filter(|_| *bits != 0) else { continue };
                cell.set_char(symbol_of(bits | kept(cell.symbol()))).set_style(style(place));
            }
        }
    }
}

fn symbol_of(bits: u8) -> char {
    char::from_u32(0x2800 + u32::from(bits)).unwrap_or(' ')
}

/// Returns the dots of a cell; none if it holds something else.
fn dots_of(symbol: &str) -> u8 {
    let bits = symbol.chars().next().and_then(|symbol| u32::from(symbol).checked_sub(0x2800));
    bits.and_then(|bits| u8::try_from(bits).ok()).unwrap_or(0)
}

/// Draws values as one row of at most `cells` cells, from the lowest to the highest; empty without two values.
#[must_use]
pub fn sparkline(values: &[f64], cells: usize) -> String {
    let finite = || values.iter().copied().filter(|value| value.is_finite());
    let (Some(low), Some(high)) = (finite().reduce(f64::min), finite().reduce(f64::max)) else { return String::new() };
    let mut canvas = Braille::new(cells, 1);
    let (right, bottom) = (canvas.dots_wide().saturating_sub(1), canvas.dots_high() - 1);
    let last = finite().count() - 1;
    if last == 0 {
        return String::new();
    }
    let share = |value: f64| if high > low { (value - low) / (high - low) } else { 0.0 };
    let dots = finite().enumerate().map(|(place, value)| {
        let y = bottom - (share(value) * bottom as f64).round() as usize;
        (place * right / last, y)
    });
    let dots: Vec<(usize, usize)> = dots.collect();
    for pair in dots.windows(2) {
        canvas.line(pair[0], pair[1]);
    }
    canvas.cells.iter().map(|bits| symbol_of(*bits)).collect()
}

#[cfg(test)]
mod tests {
    use super::{Braille, sparkline};
    use proptest::prelude::*;
    use ratatui::{buffer::Buffer, layout::Rect, style::Style};

    #[test]
    fn dots_become_braille() {
        let mut canvas = Braille::new(3, 1);
        canvas.line((0, 3), (5, 0));
        let mut buffer = Buffer::empty(Rect::new(0, 0, 3, 1));
        canvas.paint(buffer.area, &mut buffer, Style::new());
        assert_eq!(buffer, Buffer::with_lines(["⣀⠤⠊"]));
    }

    #[test]
    fn curves_that_share_a_cell_keep_the_dots_of_both() {
        let curve = |row: usize| {
            let mut canvas = Braille::new(2, 1);
            canvas.line((0, row), (3, row));
            canvas
        };
        let mut buffer = Buffer::with_lines(["┈┈"]);
        curve(3).paint_beside(buffer.area, &mut buffer, Style::new());
        curve(0).paint_beside(buffer.area, &mut buffer, Style::new());
        assert_eq!(buffer, Buffer::with_lines(["⣉⣉"]));
        curve(1).paint(buffer.area, &mut buffer, Style::new());
        assert_eq!(buffer, Buffer::with_lines(["⠒⠒"]), "a line above its band stays crisp");
    }

    #[test]
    fn a_sparkline_spans_its_row() {
        assert_eq!(sparkline(&[3.0, f64::NAN, 2.0, 1.0, 0.0], 2), "⠑⢄");
        assert_eq!(sparkline(&[1.0, 1.0], 3), "⣀⣀⣀");
        assert_eq!((sparkline(&[], 4), sparkline(&[f64::INFINITY, 1.0], 4)), (String::new(), String::new()));
    }

    proptest! {
        #[test]
        fn lines_have_no_holes(from in (0usize..40, 0usize..40), to in (0usize..40, 0usize..40)) {
            let mut canvas = Braille::new(20, 10);
            canvas.line(from, to);
            let lit = |x: usize, y: usize| canvas.cells[y / 4 * 20 + x / 2] & super::BITS[y % 4][x % 2] != 0;
            for x in from.0.min(to.0)..=from.0.max(to.0) {
                prop_assert!((0..40).any(|y| lit(x, y)), "column {} is empty", x);
            }
            prop_assert!(lit(from.0, from.1) && lit(to.0, to.1));
        }
    }
}
