//! A fault in full: what ended the worker, the evidence, the response, the outcome and the times.

use crate::cockpit::action::Action;
use crate::cockpit::state::State;
use crate::cockpit::state::journal::{Fault, Outcome, find_fault};
use crate::cockpit::ui::{self, Popup, Stand};
use crate::cockpit::verdict::Tone;
use crate::format::{clock, counted, took};
use crate::protocol::control::JournalRow;
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

const WIDTH: u16 = 92;
const LABEL: usize = 10;
const TIME: usize = 10;

/// A row of the box before it has a style.
struct Row {
    label: &'static str,
    time: String,
    text: String,
}

/// Draws the box of the fault with this id, from a line on.
pub fn render(frame: &mut Frame<'_>, within: Rect, (id, from): (i64, usize), state: &State, theme: &Theme) {
    let Some(fault) = find_fault(state, id) else { return };
    let width = inner_width(within);
    let title = ui::wrap(&fault.end.text, width).into_iter().map(|row| Line::styled(row, theme.strong));
    let rows = fault_rows(&fault, width, state.utc_offset_s).into_iter().map(|row| {
        Line::from(vec![
            Span::styled(ui::pad(row.label, LABEL), theme.dim),
            Span::styled(ui::pad(&row.time, TIME), theme.dim),
            Span::raw(row.text),
        ])
    });
    let lines: Vec<_> = title.chain([Line::default()]).chain(rows).collect();
    let keys = ui::KeyLine(vec![(state.keys.key_of(Action::Back), "close", Action::Back)]);
    let tone = if matches!(fault.outcome, Outcome::Recovered(_)) { Tone::Warn } else { Tone::Danger };
    let popup = Popup { title: "fault", size: (WIDTH, ui::scroll_box_height(lines.len())), tone, stand: Stand::Middle };
    popup.open_scrolled(frame, within, lines, from, &keys, theme);
}

/// Returns the number of lines of the box that do not fit.
#[must_use]
pub fn hidden_rows(state: &State, id: i64) -> usize {
    let (width, height) = state.screen.size;
    let within = super::box_room(Rect::new(0, 0, width, height));
    let Some(fault) = find_fault(state, id) else { return 0 };
    let width = inner_width(within);
    let lines = ui::wrap(&fault.end.text, width).len() + 1 + fault_rows(&fault, width, 0).len();
    ui::hidden_in_box(within, lines)
}

fn inner_width(within: Rect) -> usize {
    usize::from(within.width.saturating_sub(6).min(WIDTH)).max(1)
}

fn fault_rows(fault: &Fault<'_>, width: usize, offset_s: i32) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut block = |label: &'static str, lines: &[&JournalRow]| {
        if lines.is_empty() {
            return;
        }
        for (place, line) in lines.iter().enumerate() {
            let label = if place == 0 { label } else { "" };
            let text = ui::wrap(&line.text, width.saturating_sub(LABEL + TIME).max(1));
            rows.extend(text.into_iter().enumerate().map(|(part, text)| Row {
                label: if part == 0 { label } else { "" },
                time: if part == 0 { clock(line.time_ms, offset_s) } else { String::new() },
                text,
            }));
        }
        rows.push(Row { label: "", time: String::new(), text: String::new() });
    };
    block("evidence", &fault.evidence);
    block("response", &fault.response);
    if let Outcome::Recovered(row) = fault.outcome {
        block("outcome", &[row]);
    }
    let times = ui::wrap(&describe_times(fault, offset_s), width.saturating_sub(LABEL + TIME).max(1));
    rows.extend(times.into_iter().enumerate().map(|(part, text)| Row {
        label: if part == 0 { "times" } else { "" },
        time: String::new(),
        text,
    }));
    rows
}

/// Describes when the fault began, ended the worker and was over, and the work it cost.
fn describe_times(fault: &Fault<'_>, offset_s: i32) -> String {
    let mut parts = Vec::new();
    if let Some(sign) = fault.evidence.first() {
        parts.push(format!("first sign {}", clock(sign.time_ms, offset_s)));
    }
    parts.push(format!("ended {}", clock(fault.end.time_ms, offset_s)));
    match fault.outcome {
        Outcome::Recovered(row) => {
            let after = row.time_ms.saturating_sub(fault.end.time_ms).max(0).cast_unsigned();
            parts.push(format!("training again {}, {} later", clock(row.time_ms, offset_s), took(after)));
            let redone = fault.end.step.zip(row.step).map_or(0, |(end, first)| (end + 1).saturating_sub(first));
            parts.push(if redone > 0 {
                format!("{} redone", counted(redone, "step"))
            } else {
                "no step lost".to_owned()
            });
        }
        Outcome::Ended => parts.push("the run ended".to_owned()),
        Outcome::Open => parts.push("not training again yet".to_owned()),
        Outcome::Unknown => {}
    }
    parts.join(" · ")
}
