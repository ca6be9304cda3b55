//! The last line: keys and what they do, from the table of actions. What is not possible just now
//! is dimmed; what does not fit is left out from the end, but for help and close.

use crate::cockpit::action::{Action, entry_of};
use crate::cockpit::state::State;
use crate::cockpit::state::screen::{Mode, View};
use crate::cockpit::update::act::{is_possible, refusal};
use crate::config::theme::Theme;
use crate::protocol::control::RunState;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};

const SHOWN: [Action; 12] = [
    Action::ShiftDown,
    Action::ShiftUp,
    Action::Checkpoint,
    Action::Restart,
    Action::Pause,
    Action::Autopilot,
    Action::Stop,
    Action::View(View::Overview),
    Action::Filter,
    Action::LogScale,
    Action::Smoothing,
    Action::Theme,
];

/// Draws the line.
pub fn render(frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
    frame.buffer_mut().set_style(area, theme.bar);
    let inner = Rect { x: area.x + 1, width: area.width.saturating_sub(2), ..area };
    if state.screen.mode == Mode::Filter {
        let text = vec![
            Span::styled("filter the log: ", theme.dim),
            Span::styled(state.screen.filter.clone(), theme.strong),
            Span::styled("▏", theme.accent),
            Span::styled("   Enter keep   Esc clear", theme.dim),
        ];
        return frame.render_widget(Line::from(text), inner);
    }
    let last: Vec<_> = [Action::Help, Action::Quit].into_iter().map(|action| item(state, action, theme)).collect();
    let mut room = usize::from(inner.width).saturating_sub(last.iter().map(|item| item.width() + 2).sum());
    let mut line = Line::default();
    // What acts on the run goes away with the run, and makes room.
    let gone = refusal(state).is_some();
    for action in SHOWN.into_iter().filter(|action| !gone || is_possible(state, *action)) {
        let item = item(state, action, theme);
        if item.width() + 2 > room {
            break;
        }
        room -= item.width() + 2;
        line.spans.extend(item.spans);
        line.push_span(Span::raw("  "));
    }
    for item in last {
        line.spans.extend(item.spans);
        line.push_span(Span::raw("  "));
    }
    frame.render_widget(line, inner);
}

fn item(state: &State, action: Action, theme: &Theme) -> Line<'static> {
    let Some(entry) = entry_of(action) else { return Line::default() };
    let key = entry.keys.first().map_or_else(String::new, |key| key.name());
    let (key, word) = match action {
        Action::View(_) => ("1-5".to_owned(), "views"),
        Action::Pause if state.run_state() == Some(RunState::Paused) => (key, "go on"),
        _ => (key, entry.word),
    };
    if is_possible(state, action) {
        Line::from(vec![Span::styled(key, theme.key), Span::raw(format!(" {word}"))])
    } else {
        Line::from(Span::styled(format!("{key} {word}"), theme.faint))
    }
}
