//! Progress of the run: a thin line below the header.

use crate::cockpit::ratio::Ratio;
use crate::cockpit::state::State;
use crate::cockpit::ui;
use crate::theme::Theme;
use ratatui::{Frame, layout::Rect};

/// Draws the line.
pub fn render(frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
    if let Some(done) = completed(state) {
        ui::render_line(frame, area, ui::bar(area.width, &[(done, theme.accent)], None, theme));
    }
}

/// Returns the fraction of the run's clock that has passed.
#[must_use]
pub fn completed(state: &State) -> Option<Ratio> {
    let status = state.status()?;
    Ratio::of(status.samples, status.total_samples?)
}
