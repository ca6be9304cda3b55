//! The run failed or needs attention: the reason, the latest events, and the command that resumes it.

use crate::cockpit::action::Action;
use crate::cockpit::panels::log;
use crate::cockpit::state::State;
use crate::cockpit::ui::{self, KeyLine, Popup, Stand};
use crate::cockpit::verdict::Tone;
use crate::format::{clock, count};
use crate::outlook::continuation::How;
use crate::protocol::control::{JournalKind, JournalRow, RunState};
use crate::protocol::worker::Level;
use crate::theme::Theme;
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
    lines.extend(evidence(state, (width, room), theme));
    lines.truncate(usize::from(within.height.saturating_sub(2)).saturating_sub(tail.len()));
    lines.extend(tail);
    let high = u16::try_from(lines.len()).unwrap_or(u16::MAX);
    let inner =
        Popup { title, size: (WIDTH, high), tone: Tone::Danger, stand: Stand::Middle }.open(frame, within, theme);
    ui::render_lines(frame, inner, lines);
}

/// Returns the newest events before the end, and the end of the log, in at most `room` rows. The last line of the log often
/// names the cause, so the log keeps a third of them.
fn evidence(state: &State, (width, room): (usize, usize), theme: &Theme) -> Vec<Line<'static>> {
    let troubles = state.facts.journal.iter().rev().filter(|row| row.level != Level::Info);
    // The reason of the end repeats the end of the run, and that of the worker right before it.
    let mut told = [JournalKind::Run, JournalKind::Worker].into_iter();
    let is_told = |row: &&JournalRow| row.level == Level::Error && told.next() == Some(row.kind);
    let troubles: Vec<_> = troubles.skip_while(is_told).take(JOURNAL).collect();
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

#[cfg(test)]
mod tests {
    use super::{Theme, evidence};
    use crate::cockpit::fixture;
    use crate::protocol::control::{JournalKind, RunState};
    use crate::protocol::worker::Level;

    #[test]
    fn the_end_is_no_evidence_of_itself_and_an_earlier_end_is() {
        let mut history = fixture::eventful_history();
        let end = history.journal[history.journal.len() - 2].clone();
        let run = |text: &str| (Level::Error, JournalKind::Run, text.to_owned());
        let rows = [(end.level, end.kind, end.text.clone()), run("needs attention: twice in the same way")];
        for (level, kind, text) in rows {
            let id = history.journal.len() as i64 + 1;
            history.journal.push(crate::protocol::control::JournalRow { id, level, kind, text, ..end.clone() });
        }
        let state = fixture::at((120, 40), fixture::status(RunState::NeedsPerson, 700), history);
        let lines = evidence(&state, (200, 20), &Theme::plain());
        let shown: Vec<String> = lines.iter().map(ToString::to_string).collect();
        assert!(shown.iter().all(|line| !line.contains("needs attention")), "{shown:?}");
        let ends = shown.iter().filter(|line| line.contains("worker ended at step 700")).count();
        assert_eq!(ends, 1, "{shown:?}");
    }
}
