//! The first line: the run's name, state and position. If space is short, the least important fields
//! are dropped first.

use crate::cockpit::state::State;
use crate::cockpit::ui;
use crate::cockpit::verdict::Tone;
use crate::cockpit::verdict::alerts::{Alert, alerts};
use crate::format::{age, clock, count};
use crate::protocol::control::{RunState, Status};
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

/// Draws the line.
pub fn render(frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
    frame.buffer_mut().set_style(area, theme.bar);
    let Some(status) = state.status() else {
        return ui::render_line(frame, area, Line::from(vec![Span::raw(" "), Span::styled("downshift", theme.strong)]));
    };
    let (left, right) = kept_fields(area, state, status, theme);
    let join = |fields: Vec<Field>| {
        let mut spans = Vec::new();
        for field in fields {
            if !spans.is_empty() {
                spans.push(Span::raw(" ".repeat(GAP)));
            }
            spans.extend(field.spans);
        }
        Line::from(spans)
    };
    let inner = Rect { x: area.x + 1, width: area.width.saturating_sub(2), ..area };
    ui::render_two_sides(frame, inner, join(left), join(right));
}

/// Reports whether the number of alerts is at a column of the line.
#[must_use]
pub fn is_alert_at(state: &State, area: Rect, column: u16) -> bool {
    let Some(status) = state.status() else { return false };
    let mut x = usize::from(area.x) + 1;
    for field in kept_fields(area, state, status, &Theme::plain()).0 {
        let end = x + field.width();
        if field.rank == ALERTS && (x..end - GAP).contains(&usize::from(column)) {
            return true;
        }
        x = end;
    }
    false
}

/// Returns the fields that fit, of the left and the right side.
fn kept_fields(area: Rect, state: &State, status: &Status, theme: &Theme) -> (Vec<Field>, Vec<Field>) {
    let (mut left, mut right) = header_fields(area.width >= WIDE, state, status, theme);
    let room = usize::from(area.width).saturating_sub(2);
    let kept = ranks_that_fit(&left, &right, room);
    left.retain(|field| kept.contains(&field.rank));
    right.retain(|field| kept.contains(&field.rank));
    (left, right)
}

/// Columns from which fields say more.
const WIDE: u16 = 160;
/// Columns between two fields.
const GAP: usize = 3;
/// Rank of the number of alerts.
const ALERTS: u8 = 1;

/// A field of the line; the lowest rank is dropped last.
struct Field {
    rank: u8,
    spans: Vec<Span<'static>>,
}

impl Field {
    fn new(rank: u8, spans: Vec<Span<'static>>) -> Self {
        Self { rank, spans }
    }

    fn width(&self) -> usize {
        self.spans.iter().map(Span::width).sum::<usize>() + GAP
    }
}

fn header_fields(wide: bool, state: &State, status: &Status, theme: &Theme) -> (Vec<Field>, Vec<Field>) {
    let text = |text: String| Span::raw(text);
    let label = |text: &'static str| Span::styled(text, theme.dim);
    let value = |text: String| Span::styled(text, theme.strong);
    let (dot, tone) = state_dot(state, status.state);
    let style = ui::tone_style(theme, tone);
    let since = state.silence_ms().map_or_else(String::new, |silence| format!(", {} ago", age(silence)));
    let mut left = vec![
        Field::new(9, vec![label("downshift")]),
        Field::new(3, vec![value(ui::cut(&status.run, 32))]),
        Field::new(0, vec![Span::styled(format!("{dot} {}{since}", status.state.word()), style)]),
    ];
    if let Some(moment) = state.moment {
        let text = format!("◐ at {}", clock(moment, state.utc_offset_s));
        left[2] = Field::new(0, vec![Span::styled(text, theme.accent)]);
    }
    let alerts = alerts(state);
    if !alerts.is_empty() {
        let style = if alerts.iter().any(Alert::is_danger) { theme.danger } else { theme.warn };
        left.push(Field::new(ALERTS, vec![Span::styled(format!("⚠ {}", alerts.len()), style)]));
    }
    // Counted from 0, as everywhere: the body of a run file is rung 0.
    let last = state.ladder.len().saturating_sub(1).max(status.rung);
    let mut rung = vec![value(status.rung_name.clone())];
    // Without a ladder there is nothing to count.
    if last > 0 {
        rung.splice(0..0, [label("rung "), text(format!("{} ", status.rung))]);
    }
    left.push(Field::new(5, rung));
    left.extend(status.describe_resume().map(|resume| Field::new(8, vec![text(resume)])));
    if let Some(host) = &status.host {
        let way = if wide { ", through the run's folder" } else { "" };
        left.push(Field::new(4, vec![Span::styled(format!("on host {}{way}", ui::cut(host, 24)), theme.accent)]));
    }
    if state.read_only {
        left.push(Field::new(4, vec![Span::styled("read-only", theme.accent)]));
    }
    let mut right = Vec::new();
    if let (Some(epoch), Some(total)) = (status.epoch_samples.filter(|samples| *samples > 0), status.total_samples) {
        let now = status.samples.div_ceil(epoch).max(1);
        let epochs = vec![label("epoch "), value(count(now)), label(" of "), text(count(total.div_ceil(epoch)))];
        right.push(Field::new(6, epochs));
    }
    right.push(Field::new(2, vec![label("step "), value(count(status.step))]));
    if let Some(device) = &status.device {
        // The vendor and brand names add nothing to the model name.
        let device = device.replace("NVIDIA ", "").replace("GeForce ", "");
        right.push(Field::new(7, vec![Span::styled(ui::cut(&device, 32), theme.dim)]));
    }
    (left, right)
}

fn state_dot(state: &State, run: RunState) -> (&'static str, Tone) {
    if run == RunState::Recovering {
        return ("◐", Tone::Warn);
    }
    if state.is_orphaned() {
        return ("○", Tone::Danger);
    }
    if state.is_cut_off() || state.silence_ms().is_some() || state.stalled_ms().is_some() {
        return ("○", Tone::Warn);
    }
    match run {
        RunState::Training | RunState::Evaluating | RunState::Checkpointing | RunState::Finished => ("●", Tone::Good),
        RunState::Starting | RunState::Compiling | RunState::Stopping | RunState::AwaitingVram => ("◐", Tone::Busy),
        RunState::Paused
        | RunState::AwaitingCard
        | RunState::BackingOff
        | RunState::Recovering
        | RunState::Unattended => ("○", Tone::Warn),
        RunState::Stopped => ("○", Tone::Plain),
        RunState::Interrupted => ("○", Tone::Danger),
        RunState::Failed | RunState::NeedsPerson => ("●", Tone::Danger),
    }
}

fn ranks_that_fit(left: &[Field], right: &[Field], room: usize) -> Vec<u8> {
    let mut fields: Vec<_> = left.iter().chain(right).collect();
    fields.sort_by_key(|field| field.rank);
    let mut used = 0;
    fields
        .into_iter()
        .take_while(|field| {
            used += field.width();
            used <= room
        })
        .map(|field| field.rank)
        .collect()
}
