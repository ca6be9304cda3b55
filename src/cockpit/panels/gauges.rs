//! The gauges: a value, a bar and a note each, in fewer rows each where space is short.

use super::component::{Click, Component};
use super::meters::{Body, Fill, Meter, NOT_KNOWN, gpu_hint, meters, why_no_gpu, why_stale};
use super::outcome::outcome_meters;
use crate::cockpit::action::Action;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::{Panel, View};
use crate::cockpit::ui;
use crate::cockpit::update::Effect;
use crate::cockpit::verdict::Tone;
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};
use unicode_width::UnicodeWidthStr;

/// Metrics with a limit.
pub struct Gauges;

impl Component for Gauges {
    fn render(&self, frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
        let focused = state.screen.focus == Panel::Gauges;
        let title = if state.is_over() { "outcome" } else { "health" };
        let inner = ui::render_heading(frame, area, title, Line::default(), focused, theme);
        let meters = if state.is_over() { outcome_meters(state) } else { meters(state) };
        let width = usize::from(inner.width);
        let why = match (why_stale(state), state.screen.view) {
            (Some(why), View::Health) => ui::wrap(&why, width),
            (Some(why), _) => vec![ui::cut(&why, width)],
            (None, View::Health) => why_no_gpu(state).map(|why| ui::wrap(&why, width)).unwrap_or_default(),
            (None, _) => gpu_hint(state).into_iter().collect(),
        };
        let room = usize::from(inner.height);
        // In order of preference: value, bar, note and a blank row, dropping the last gauge if needed;
        // without the blank row; value and bar; finally one row each.
        let draw = |(rows, left_out): (usize, usize)| -> Vec<Line<'static>> {
            let shown = &meters[..meters.len() - left_out.min(meters.len())];
            shown.iter().flat_map(|meter| several_rows(meter, inner.width, rows, theme)).collect()
        };
        let mut lines = [(4, 0), (4, 1), (3, 0), (2, 0)]
            .into_iter()
            .map(draw)
            .find(|lines| lines.len() + why.len() <= room + usize::from(why.is_empty()))
            .unwrap_or_else(|| one_row_each(&meters, inner.width, theme));
        if lines.len() + why.len() < room && lines.last().is_some_and(|line| line.width() > 0) {
            lines.push(Line::default());
        }
        lines.extend(why.into_iter().map(|row| Line::styled(row, theme.dim)));
        ui::render_lines(frame, inner, lines);
    }

    fn own_view(&self) -> View {
        View::Health
    }

    fn actions(&self, _state: &State) -> &'static [Action] {
        &[]
    }

    fn click(&self, state: &mut State, click: Click) -> Vec<Effect> {
        self.open_again(state, click)
    }
}

fn several_rows(meter: &Meter, width: u16, rows: usize, theme: &Theme) -> Vec<Line<'static>> {
    // Without a row for notes, the age goes beside the name.
    let label = match &meter.age {
        Some(age) if rows < 3 => format!("{}, {age} old", meter.label),
        _ => meter.label.to_owned(),
    };
    let value_width = usize::from(width).saturating_sub(label.width());
    let value =
        meter.value.as_deref().filter(|value| value.width() < value_width).unwrap_or_else(|| short_value(meter));
    let value = ui::pad_left(value, value_width);
    let mut lines =
        vec![Line::from(vec![Span::styled(label, theme.dim), Span::styled(value, value_style(meter, theme))])];
    if meter.body != Body::Nothing {
        lines.push(meter_graphic(meter, width, theme));
    }
    if rows >= 3 && !meter.notes.is_empty() {
        lines.push(Line::styled(meter.note(usize::from(width)), theme.dim));
    }
    if rows >= 4 {
        lines.push(Line::default());
    }
    lines
}

/// Renders `skips  0.5 %  ━━━╾─────`: one row per gauge, with values and bars aligned.
fn one_row_each(meters: &[Meter], width: u16, theme: &Theme) -> Vec<Line<'static>> {
    const LABEL: usize = 6;
    let values: Vec<_> = meters.iter().map(short_value).collect();
    let value_width = values.iter().map(|value| value.width()).max().unwrap_or(0);
    let rest = u16::try_from(usize::from(width).saturating_sub(LABEL + value_width + 2)).unwrap_or(0);
    let aged = |age: &String| {
        let long = format!("{age} old");
        let text = if long.width() <= usize::from(rest) { &long } else { age };
        Span::styled(ui::cut(text, usize::from(rest)), theme.warn)
    };
    let row = |(meter, value): (&Meter, &&str)| {
        let mut line = Line::from(vec![
            Span::styled(ui::pad(meter.label, LABEL), theme.dim),
            Span::styled(ui::pad_left(value, value_width), value_style(meter, theme)),
            Span::raw("  "),
        ]);
        if let Some(age) = &meter.age {
            line.push_span(aged(age));
        } else if rest >= 4 {
            line.spans.extend(meter_graphic(meter, rest, theme).spans);
        }
        line
    };
    meters.iter().zip(&values).map(row).collect()
}

fn short_value(meter: &Meter) -> &str {
    meter.short_value.as_deref().or(meter.value.as_deref()).unwrap_or(NOT_KNOWN)
}

fn value_style(meter: &Meter, theme: &Theme) -> ratatui::style::Style {
    match (&meter.body, meter.tone) {
        _ if meter.age.is_some() => theme.dim,
        (_, Tone::Warn | Tone::Danger) => ui::tone_style(theme, meter.tone),
        _ if meter.value.is_none() => theme.dim,
        _ => theme.strong,
    }
}

fn meter_graphic(meter: &Meter, width: u16, theme: &Theme) -> Line<'static> {
    match &meter.body {
        Body::Nothing => Line::default(),
        Body::Spark(values) => ui::spark(width, values, theme.smooth),
        Body::Bar(parts, limit) => {
            let own = if meter.tone == Tone::Warn { theme.warn } else { theme.accent };
            let style = |fill: Fill| if fill == Fill::Own { own } else { theme.second };
            let parts: Vec<_> = parts.iter().map(|(ratio, fill)| (*ratio, style(*fill))).collect();
            ui::bar(width, &parts, *limit, theme)
        }
    }
}
