//! The run failed or needs attention: the reason, the latest events, and the command that resumes it.

use crate::cockpit::action::Action;
use crate::cockpit::panels::log;
use crate::cockpit::state::State;
use crate::cockpit::ui::{self, KeyLine, Popup, Stand};
use crate::cockpit::verdict::Tone;
use crate::config::theme::Theme;
use crate::format::{clock, count};
use crate::protocol::continuation::How;
use crate::protocol::control::{JournalRow, RunState};
use crate::protocol::worker::Level;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

const WIDTH: u16 = 86;
const JOURNAL: usize = 3;
const LOG: usize = 6;

/// Draws the box.
pub fn render(frame: &mut Frame<'_>, within: Rect, state: &State, theme: &Theme) {
    let Some(status) = state.status() else { return };
    let width = usize::from(within.width.saturating_sub(8)).clamp(1, usize::from(WIDTH));
    let why = status.why.as_deref().unwrap_or("the journal has the details");
    let mut lines: Vec<Line<'static>> =
        ui::wrap(why, width).into_iter().map(|row| Line::styled(row, theme.strong)).collect();
    lines.push(Line::default());
    let durable = match status.durable_step {
        Some(step) => format!("Durable up to step {}. ", count(step)),
        None if state.command.is_some() => "No checkpoint. ".to_owned(),
        None => "No durable step yet. ".to_owned(),
    };
    let title = if status.state == RunState::NeedsPerson { "needs attention" } else { "failed" };
    let way = state.continuation();
    let next = match way.how {
        How::RunAgain => "Fix the cause, then start the command anew:",
        _ => "Fix the cause, then resume from the menu, or run:",
    };
    let mut tail = vec![Line::default(), Line::from(vec![Span::raw(durable), Span::styled(next, theme.dim)])];
    let resume = ui::wrap(&way.command, width.saturating_sub(2));
    tail.extend(resume.into_iter().map(|row| Line::styled(format!("  {row}"), theme.strong)));
    let key = |action: Action, word| (state.keys.key_of(action), word, action);
    let keys = KeyLine(vec![key(Action::Menu, "menu"), key(Action::Back, "close")]);
    tail.extend([Line::default(), keys.render(width, theme)]);
    // The command to type stays, whatever else is cut.
    let room = usize::from(within.height.saturating_sub(2)).saturating_sub(tail.len() + lines.len());
    lines.extend(evidence(state, why, (width, room), theme));
    lines.truncate(usize::from(within.height.saturating_sub(2)).saturating_sub(tail.len()));
    lines.extend(tail);
    let high = u16::try_from(lines.len()).unwrap_or(u16::MAX);
    let inner =
        Popup { title, size: (WIDTH, high), tone: Tone::Danger, stand: Stand::Middle }.open(frame, within, theme);
    ui::render_lines(frame, inner, lines);
}

/// Returns the newest events that the reason does not repeat, and the end of the log, in at most `room` rows. The last line of
/// the log often names the cause, so the log keeps a third of them.
fn evidence(state: &State, why: &str, (width, room): (usize, usize), theme: &Theme) -> Vec<Line<'static>> {
    // `worker ended at step 7: REASON`
    let is_told = |text: &str| {
        let reason = text.strip_prefix("worker ended").and_then(|rest| rest.split_once(": "));
        text.ends_with(why) || reason.is_some_and(|(_, reason)| why.starts_with(reason))
    };
    let new = |row: &&JournalRow| row.level != Level::Info && !is_told(&row.text);
    let troubles: Vec<_> = state.facts.journal.iter().rev().filter(new).take(JOURNAL).collect();
    let events = troubles
        .into_iter()
        .rev()
        .flat_map(|row| ui::wrap(&format!("{}  {}", clock(row.time_ms, state.utc_offset_s), row.text), width));
    let mut events: Vec<Line<'static>> = events.map(Line::from).collect();
    let log = state.facts.log.iter().rev().filter(|text| says_something(text)).take(LOG);
    let mut log: Vec<_> = log.map(|text| Line::styled(log::fit(text, width), theme.dim)).collect();
    let least = log.len().min(room.div_ceil(3));
    let most = room - least;
    if events.len() > most {
        // The newest say the most.
        events.drain(..=events.len() - most.max(1));
        events.insert(0, Line::styled("…", theme.dim));
    }
    events.truncate(most);
    log.truncate(room.saturating_sub(events.len()));
    events.extend(log.into_iter().rev());
    events
}

/// Reports whether a line is more than blanks, or the marks that Python draws below the code of a frame.
fn says_something(line: &str) -> bool {
    line.chars().any(|letter| !letter.is_whitespace() && letter != '^' && letter != '~')
}
