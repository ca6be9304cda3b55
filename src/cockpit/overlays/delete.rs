//! Confirmation before a run is deleted.

use crate::cockpit::action::Action;
use crate::cockpit::state::State;
use crate::cockpit::ui::{self, KeyLine, Popup, Stand};
use crate::cockpit::verdict::Tone;
use crate::format::{bytes, counted};
use crate::theme::Theme;
use ratatui::{Frame, layout::Rect, text::Line};

/// Draws the box.
pub fn render(frame: &mut Frame<'_>, within: Rect, state: &State, theme: &Theme) {
    let (size, keys) = measure_box(within, state);
    let inner =
        Popup { title: "delete the run", size, tone: Tone::Danger, stand: Stand::Middle }.open(frame, within, theme);
    let mut lines: Vec<Line<'static>> = question(within, state).into_iter().map(Line::from).collect();
    lines.push(Line::default());
    lines.push(keys.render(usize::from(inner.width), theme));
    ui::render_lines(frame, inner, lines);
}

/// Returns the inner size of the box and the keys on its last line.
#[must_use]
pub fn measure_box(within: Rect, state: &State) -> ((u16, u16), KeyLine) {
    let rows = question(within, state).len() + 2;
    let mut keys = vec![(state.keys.key_of(Action::Back), "keep it", Action::Back)];
    if state.screen.delete_size.is_some() {
        keys.insert(0, (state.keys.key_of(Action::Confirm), "delete", Action::Confirm));
    }
    ((60, u16::try_from(rows).unwrap_or(u16::MAX)), KeyLine(keys))
}

fn question(within: Rect, state: &State) -> Vec<String> {
    let run = &state.subject.run;
    let text = match state.screen.delete_size {
        Some(size) => {
            let (size, files) = (bytes(size.bytes), counted(size.files, "file"));
            format!(
                "Delete {run}? {size} in {files} leave the disk: checkpoints, curve, logs, notes. This cannot be undone."
            )
        }
        None => format!("Measuring {run} …"),
    };
    ui::wrap(&text, usize::from(within.width.saturating_sub(8)).clamp(1, 58))
}
