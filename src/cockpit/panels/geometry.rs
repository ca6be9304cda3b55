//! Where a chart draws: the cells of its curve and the scales of both axes. Drawing and the mouse share it,
//! so a click reads the step that is drawn under it.

use crate::cockpit::plot::{axis, curve};
use crate::cockpit::quantity::Quantity;
use crate::cockpit::state::State;
use crate::cockpit::state::chart::ValueScale;
use crate::series::Axis;
use crate::series::scale::Scale;
use ratatui::layout::Rect;

/// Parameters of a curve.
#[derive(Debug, Clone, Copy)]
pub struct Curve {
    /// The quantity.
    pub quantity: Quantity,
    /// Weight of the past in the smoothed line; 0 shows only the raw values.
    pub weight: f64,
    /// How values are mapped to rows.
    pub scale: ValueScale,
    /// Additional values the range must include.
    pub hold: Option<(f64, f64)>,
}

/// Geometry of a curve.
#[derive(Debug, Clone, Copy)]
pub struct Geometry {
    /// Cells of the curve itself.
    pub area: Rect,
    /// Maps values to rows.
    pub scale: Scale,
    /// The x axis.
    pub axis: Axis,
    /// First and last visible position.
    pub window: (f64, f64),
    /// Largest value in the unit of the quantity, if it exceeds the range.
    pub cut: Option<f64>,
    /// Unit of the y axis, for a quantity that has several.
    pub unit: &'static str,
    /// Number of those units per unit of the quantity.
    pub factor: f64,
    /// Row for the names of rungs, if they are shown.
    pub names_row: Option<u16>,
}

/// Columns reserved for the newest value.
pub const RIGHT: u16 = 8;

impl Geometry {
    /// Lays out a curve; returns `None` if there is nothing to draw yet, or no room.
    #[must_use]
    pub fn lay_out(area: Rect, curve: Curve, state: &State) -> Option<Self> {
        let axis = state.screen.chart.axis;
        let window = state.screen.chart.window(state.curve_ends()?);
        let with_names =
            curve.quantity == Quantity::Loss && area.height >= 12 && state.facts.series.segments().len() > 1;
        let names = u16::from(with_names);
        if area.width < 20 || area.height < 4 + names {
            return None;
        }
        // The gutter depends on the labels, and these on the range: thin once to measure, then again to draw.
        let rough = curve.quantity.columns(state, axis, window.0..window.1, usize::from(area.width));
        let (low, high, cut) = curve::value_range(&rough)?;
        let (low, high) = curve.hold.map_or((low, high), |(least, most)| (low.min(least), high.max(most)));
        // Values that the range includes anyway are not cut off.
        let cut = cut.filter(|cut| *cut > high);
        let (unit, factor) = curve.quantity.memory_unit(high);
        let log = curve.scale.is_log(curve::mean_range(&rough)?);
        let above_zero = curve::least_above_zero(&rough).filter(|_| log && low <= 0.0);
        let low = above_zero.unwrap_or(low);
        let scale = Scale::new(low * factor, high * factor, log)?;
        let left = axis::gutter_width(scale, area.height - 3) + 1;
        // Above: names of rungs and skips. Below: the axis and its labels. On the right: the newest value.
        let plot_area = Rect {
            x: area.x + left,
            y: area.y + 1 + names,
            width: area.width.saturating_sub(left + RIGHT),
            height: area.height - 3 - names,
        };
        let names_row = with_names.then_some(area.y);
        Some(Self { area: plot_area, scale, axis, window, cut, unit, factor, names_row })
    }

    /// Returns the column of a position, if visible.
    #[must_use]
    pub fn column(&self, place: f64) -> Option<u16> {
        let (start, end) = self.window;
        let share = if end > start { (place - start) / (end - start) } else { 0.0 };
        (0.0..=1.0).contains(&share).then(|| self.area.x + (share * self.last_column()).round() as u16)
    }

    /// Returns the column of dots of a position, if visible; a cell has two.
    #[must_use]
    pub fn dot(&self, place: f64) -> Option<usize> {
        let (start, end) = self.window;
        let share = if end > start { (place - start) / (end - start) } else { 0.0 };
        let last = f64::from(self.area.width) * 2.0 - 1.0;
        (0.0..=1.0).contains(&share).then(|| (share * last).round().max(0.0) as usize)
    }

    /// Returns the position drawn at a column; the nearest end for a column beside the curve.
    #[must_use]
    pub fn place_at(&self, column: u16) -> f64 {
        let (start, end) = self.window;
        let share = f64::from(column.saturating_sub(self.area.x)) / self.last_column().max(1.0);
        (start + (end - start) * share.min(1.0)).min(end)
    }

    /// Returns the row of a value.
    #[must_use]
    pub fn row(&self, value: f64) -> u16 {
        let dots = usize::from(self.area.height) * 4;
        self.area.y + u16::try_from(self.scale.row(value, dots) / 4).unwrap_or(0)
    }

    fn last_column(&self) -> f64 {
        f64::from(self.area.width.saturating_sub(1))
    }
}
