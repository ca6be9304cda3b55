//! The verdict, or the response to the latest key, and the run's progress in words.

use super::progress::completed;
use crate::cockpit::action::{Action, ChartAction};
use crate::cockpit::state::{Notice, State};
use crate::cockpit::ui;
use crate::cockpit::verdict::{Tone, verdict};
use crate::format::{age, percent};
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    style::Style,
    text::{Line, Span},
};
use unicode_width::UnicodeWidthStr;

/// The most rows of a response.
const RESPONSE_ROWS: usize = 3;

/// Returns the rows that it needs: a response that is longer than a line hides nothing below.
#[must_use]
pub fn rows(state: &State) -> u16 {
    let rows = state.notice.as_ref().map_or(1, |notice| response_rows(notice, response_room(state)).len());
    u16::try_from(rows).unwrap_or(1).max(1)
}

/// Returns the columns of a response beside the progress.
fn response_room(state: &State) -> usize {
    let width = state.screen.size.0.saturating_sub(2);
    // The theme changes no width.
    let progress = progress_text(state, width, &Theme::plain());
    usize::from(width).saturating_sub(progress.width() + 2)
}

/// Draws the lines.
pub fn render(frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
    let area = Rect { x: area.x + 1, width: area.width.saturating_sub(2), ..area };
    let progress = progress_text(state, area.width, theme);
    // Progress and the time left keep their place, whatever there is to say.
    let room = usize::from(area.width).saturating_sub(progress.width() + 2);
    let first = Rect { height: area.height.min(1), ..area };
    ui::render_two_sides(frame, first, verdict_line(state, theme, room), progress);
    let Some(notice) = &state.notice else { return };
    let rest = response_rows(notice, room).into_iter().skip(1);
    let lines = rest.map(|text| Line::styled(format!("  {text}"), response_style(notice, theme))).collect();
    ui::render_lines(frame, Rect { y: area.y + 1, height: area.height.saturating_sub(1), ..area }, lines);
}

/// Returns the rows of a response beside the progress.
fn response_rows(notice: &Notice, room: usize) -> Vec<String> {
    let width = room.saturating_sub(2);
    let mut rows = ui::wrap(&notice.text, width);
    if rows.len() > RESPONSE_ROWS {
        let rest = rows.split_off(RESPONSE_ROWS - 1).join(" ");
        rows.push(ui::cut(&rest, width));
    }
    rows
}

fn response_style(notice: &Notice, theme: &Theme) -> Style {
    if notice.refused { theme.warn } else { theme.accent }
}

/// Columns reserved for the sentence beside the advice.
const LEAST: usize = 24;

/// Builds the verdict or the response, cut to the width, with the key to press and as many notes as fit
/// before the right side.
fn verdict_line(state: &State, theme: &Theme, room: usize) -> Line<'static> {
    let width = room.saturating_sub(2);
    if let Some(notice) = &state.notice {
        let first = response_rows(notice, room).into_iter().next().unwrap_or_default();
        return Line::styled(format!("▸ {first}"), response_style(notice, theme));
    }
    if state.moment.is_some() {
        return replay_keys(state, theme);
    }
    let verdict = verdict(state);
    let advice = verdict.advice.map(|(action, why)| {
        vec![
            Span::styled(" · ", theme.dim),
            Span::styled(state.keys.key_of(action), theme.accent),
            Span::styled(format!(" {why}"), theme.dim),
        ]
    });
    let advice = advice.unwrap_or_default();
    let kept: usize = advice.iter().map(Span::width).sum();
    // The sentence is cut in favour of the advice, but stays readable.
    let least = LEAST.min(verdict.text.width());
    let command = verdict.command.and_then(|(command, effect)| {
        let (long, short) = (format!(" · {command} {effect}"), format!(" · {command}"));
        // The reason matters more than the effect of the command.
        let fits = |part: &String, text: usize| kept + part.width() + text <= width;
        Some(long).filter(|long| fits(long, verdict.text.width())).or(Some(short).filter(|short| fits(short, least)))
    });
    let kept = kept + command.as_ref().map_or(0, |words| words.width());
    let text = ui::cut_clause(&verdict.text, width.saturating_sub(kept).max(LEAST.min(width)));
    let mut line = Line::from(match verdict.tone {
        // Good news stays uncoloured; the dot says enough.
        Tone::Good | Tone::Busy => {
            vec![Span::styled("● ", ui::tone_style(theme, verdict.tone)), Span::raw(text)]
        }
        tone => vec![Span::styled(text, ui::tone_style(theme, tone))],
    });
    for more in verdict.more {
        let more = Span::raw(format!(" · {more}"));
        if line.width() + more.width() + kept > room {
            break;
        }
        line.push_span(more);
    }
    line.spans.extend(command.map(Span::raw));
    line.spans.extend(advice);
    line
}

/// Describes the keys of the replay.
fn replay_keys(state: &State, theme: &Theme) -> Line<'static> {
    let mut line = Line::styled("the past", theme.accent);
    let keys =
        |actions: &[Action]| actions.iter().map(|action| state.keys.key_of(*action)).collect::<Vec<_>>().join(" ");
    for (keys, word) in [
        (keys(&[Action::Back]), "back to now"),
        (keys(&[Action::Chart(ChartAction::Left), Action::Chart(ChartAction::Right)]), "step"),
        (keys(&[Action::Toggle]), "play"),
        (keys(&[Action::PageUp, Action::PageDown]), "jump"),
    ] {
        line.push_span(Span::styled(format!(" · {keys}"), theme.accent));
        line.push_span(Span::styled(format!(" {word}"), theme.dim));
    }
    line
}

fn time_left(state: &State) -> Option<String> {
    let held = state.silence_ms().or(state.stalled_ms()).is_some();
    if held || !state.is_moving() || state.is_cut_off() || state.moment.is_some() {
        return None;
    }
    Some(format!("{} left", age(state.facts.left_ms(state.now_ms)?)))
}

fn progress_text(state: &State, width: u16, theme: &Theme) -> Line<'static> {
    let Some(done) = completed(state) else {
        return time_left(state).map_or_else(Line::default, |left| Line::from(Span::styled(left, theme.dim)));
    };
    let mut line = Line::from(Span::styled(percent(done.get()), theme.strong));
    let (gap, and) = if width < 100 { ("  ", ", ") } else { ("   ", "   ") };
    let word = if width < 100 { "in" } else { "elapsed" };
    // A run that stands still needs the room for the command that continues it, a response for its words.
    let has_room = width >= 100 || (time_left(state).is_some() && state.notice.is_none());
    let elapsed = state.elapsed_ms().filter(|_| has_room);
    let elapsed = elapsed.map(|elapsed| format!("{} {word}", age(elapsed)));
    let times: Vec<String> = [elapsed, time_left(state)].into_iter().flatten().collect();
    if !times.is_empty() {
        line.push_span(Span::styled(format!("{gap}{}", times.join(and)), theme.dim));
    }
    line
}
