//! The last line: the keys that are useful in this view and panel, from the table of actions. Actions that
//! are currently impossible are dimmed. If space is short, entries are dropped from the end, except for the
//! palette, help and close.

use super::samples;
use crate::cockpit::action::{Action, ChartAction, entry_of};
use crate::cockpit::layout::charts_per_page;
use crate::cockpit::state::State;
use crate::cockpit::state::opened::Opened;
use crate::cockpit::state::screen::{Mode, Panel, Prompt, View};
use crate::cockpit::ui;
use crate::protocol::control::RunState;
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};
use unicode_width::UnicodeWidthStr;

/// Actions on the run.
const RUN: [Action; 7] = [
    Action::ShiftDown,
    Action::ShiftUp,
    Action::Pause,
    Action::Checkpoint,
    Action::Restart,
    Action::Autopilot,
    Action::Stop,
];

/// Actions that every view has.
const ANYWHERE: [Action; 2] = [Action::Replay, Action::Filter];

/// Returns the actions of a panel, most useful first.
fn panel_actions(panel: Panel, has_matrix: bool) -> &'static [Action] {
    match panel {
        Panel::Chart(_) => &[
            Action::Chart(ChartAction::Cursor),
            Action::Filter,
            Action::PageDown,
            Action::Pin,
            Action::Chart(ChartAction::Smoothing),
            Action::NextGroup,
            Action::Chart(ChartAction::ZoomIn),
            Action::Chart(ChartAction::LogScale),
            Action::Chart(ChartAction::Axis),
        ],
        Panel::Ladder | Panel::Rung | Panel::Checkpoints => &[Action::Down, Action::Confirm],
        Panel::Journal => &[Action::Down, Action::Confirm, Action::Kinds, Action::Filter],
        Panel::Log => &[Action::Filter, Action::Down],
        Panel::RunList | Panel::Difference => &[
            Action::Confirm,
            Action::Menu,
            Action::Sooner,
            Action::Later,
            Action::Toggle,
            Action::Filter,
            Action::Sort,
        ],
        Panel::Compare => &[Action::PageDown, Action::Chart(ChartAction::Axis)],
        Panel::Samples if has_matrix => {
            &[Action::Chart(ChartAction::Left), Action::NextPanel, Action::Down, Action::Confirm, Action::PageDown]
        }
        Panel::Samples => &[Action::Chart(ChartAction::Left), Action::Down, Action::Confirm, Action::PageDown],
        Panel::Confusion => &[Action::Down, Action::NextPanel],
        Panel::Layers => &[Action::Confirm, Action::Chart(ChartAction::Left), Action::Down],
        Panel::Ranks => &[Action::Down],
        Panel::Gauges => &[],
    }
}

/// Draws the line.
pub fn render(frame: &mut Frame<'_>, area: Rect, state: &State, theme: &Theme) {
    // The tabs may stand on the same line.
    let line = Rect { x: 0, width: area.right(), ..area };
    frame.buffer_mut().set_style(line, theme.bar);
    let inner = inner(area);
    if state.screen.mode == Mode::Filter {
        let mut text = Vec::new();
        // The search for charts is written above them.
        if state.screen.view != View::Charts {
            text.extend([
                Span::styled("filter: ", theme.dim),
                Span::styled(state.screen.filter.clone(), theme.strong),
                Span::styled("▏   ", theme.accent),
            ]);
        }
        text.push(Span::styled("Enter keep   Esc clear", theme.dim));
        return ui::render_line(frame, inner, Line::from(text));
    }
    if let Mode::Prompt(prompt) = state.screen.mode {
        return render_prompt(frame, inner, prompt, &state.screen.input, theme);
    }
    for (x, action) in place_actions(state, inner) {
        let item = action_item(state, action, theme);
        let width = inner.right().saturating_sub(x);
        ui::render_line(frame, Rect { x, width, ..inner }, item);
    }
}

/// Draws a line to type in; of a long text, its end.
fn render_prompt(frame: &mut Frame<'_>, area: Rect, prompt: Prompt, input: &str, theme: &Theme) {
    let keys = if prompt == Prompt::FindRuns { "   Enter keep   Esc clear" } else { "   Enter save   Esc back" };
    let room = usize::from(area.width).saturating_sub(prompt.label().width() + keys.width() + 2);
    let text = vec![
        Span::styled(prompt.label(), theme.dim),
        Span::styled(ui::cut_start(input, room), theme.strong),
        Span::styled("▏", theme.accent),
        Span::styled(keys, theme.dim),
    ];
    ui::render_line(frame, area, Line::from(text));
}

fn inner(area: Rect) -> Rect {
    Rect { x: area.x + 1, width: area.width.saturating_sub(2), ..area }
}

/// Returns the actions worth a place here, most important first: on the overview those on the run, in
/// other views those of the focused panel.
fn useful_actions(state: &State) -> Vec<Action> {
    // The menu of an ended run comes first, then a decision waiting for the user, then the alerts.
    let ended = state.is_over().then_some(Action::Menu);
    let asked = [Action::Accept, Action::Alerts].into_iter().filter(|action| state.is_possible(*action));
    let here = panel_actions(state.screen.focus, state.confusion().is_some() && !state.screen.samples.alone);
    let here: Vec<Action> = here.iter().copied().filter(|action| acts_here(state, *action)).collect();
    let (first, second) =
        if state.screen.view == View::Overview { (&RUN[..], &here[..]) } else { (&here[..], &RUN[..]) };
    let mut actions: Vec<Action> = Vec::new();
    let all = ended.into_iter().chain(asked).chain(first.iter().copied()).chain(second.iter().copied());
    for action in all.chain(ANYWHERE) {
        if !actions.contains(&action) {
            actions.push(action);
        }
    }
    // Once the run is gone, actions on it give up their place.
    let gone = state.request_refusal().is_some();
    actions.retain(|action| !gone || state.is_possible(*action));
    actions
}

/// Reports whether an action of the focused panel does anything: Enter may have nothing to open, and all may fit on
/// one page.
fn acts_here(state: &State, action: Action) -> bool {
    match (action, state.screen.focus) {
        (Action::Confirm, Panel::Samples | Panel::Layers) => true,
        // Most runs are in no queue.
        (Action::Sooner | Action::Later, _) => state.is_possible(action),
        (Action::Confirm, _) => state.opened_by_enter().is_ok(),
        (Action::PageDown, Panel::Chart(_)) => state.screen.view == View::Charts && has_more_charts(state),
        (Action::PageDown, Panel::Samples) => has_more_samples(state),
        _ => true,
    }
}

fn has_more_charts(state: &State) -> bool {
    let seen = if state.screen.full.is_some() { 1 } else { charts_per_page(state) };
    state.charts().len() > seen
}

fn has_more_samples(state: &State) -> bool {
    let Some(shown) = state.chosen_set().and_then(|set| state.samples_of(set)) else { return false };
    if samples::shows_grid(state) {
        return shown.len() > samples::samples_per_page(state);
    }
    let chosen = shown.get(state.screen.samples.chosen.min(shown.len().saturating_sub(1)));
    chosen.is_some_and(|chosen| chosen.sample.text.is_some())
}

/// Returns the column of each action on the line.
fn place_actions(state: &State, inner: Rect) -> Vec<(u16, Action)> {
    let width = |action: Action| {
        let (key, label) = key_and_label(state, action);
        key.width() + 1 + label.width() + 2
    };
    let last = [Action::Palette, Action::Help, Action::Quit];
    // The last one needs no gap after it.
    let mut room = usize::from(inner.width + 2).saturating_sub(last.iter().map(|action| width(*action)).sum());
    let mut shown: Vec<Action> = Vec::new();
    for action in useful_actions(state) {
        if width(action) > room {
            break;
        }
        room -= width(action);
        shown.push(action);
    }
    let mut x = inner.x;
    let place = |action: Action| {
        let here = x;
        x = x.saturating_add(u16::try_from(width(action)).unwrap_or(u16::MAX));
        (here, action)
    };
    shown.into_iter().chain(last).map(place).collect()
}

/// Returns the action whose text is at a column of the line.
#[must_use]
pub fn action_at(state: &State, area: Rect, column: u16) -> Option<Action> {
    let (_, action) = place_actions(state, inner(area)).into_iter().rev().find(|(x, _)| *x <= column)?;
    state.is_possible(action).then_some(action)
}

/// Returns an action's current key and label.
fn key_and_label(state: &State, action: Action) -> (String, &'static str) {
    let label = entry_of(action).map_or("", |entry| entry.label);
    match action {
        Action::NextPanel if state.screen.focus == Panel::Confusion => (state.keys.key_of(action), "samples"),
        Action::NextPanel => (state.keys.key_of(action), "confusion"),
        Action::Chart(ChartAction::Left) => {
            (format!("{}{}", state.keys.key_of(action), state.keys.key_of(Action::Chart(ChartAction::Right))), "step")
        }
        Action::Confirm if state.screen.focus == Panel::Layers => (state.keys.key_of(action), "measure"),
        Action::Confirm if state.screen.focus == Panel::Samples => {
            (state.keys.key_of(action), if state.screen.samples.alone { "all" } else { "alone" })
        }
        Action::Down if chooses(state.screen.focus) => (arrows(state), "choose"),
        Action::Down => (arrows(state), "scroll"),
        Action::Confirm if state.screen.focus == Panel::Checkpoints => (state.keys.key_of(action), "menu"),
        Action::Confirm
            if matches!(state.screen.focus, Panel::Ladder | Panel::Rung)
                && matches!(state.opened_by_enter(), Ok(Opened::Preview(_))) =>
        {
            (state.keys.key_of(action), "preview")
        }
        Action::Filter if state.screen.view == View::Charts => (state.keys.key_of(action), "find"),
        Action::PageDown if state.screen.focus == Panel::Compare => (state.keys.key_of(action), "metric"),
        Action::PageDown => (state.keys.key_of(action), "more"),
        Action::Pause if state.run_state() == Some(RunState::Paused) => (state.keys.key_of(action), "resume"),
        _ => (state.keys.key_of(action), label),
    }
}

/// Returns whether the arrows move a cursor in the panel, rather than scroll it.
fn chooses(panel: Panel) -> bool {
    use Panel::{Checkpoints, Difference, Journal, Ladder, Layers, RunList, Rung, Samples};
    matches!(panel, Checkpoints | Ladder | Rung | RunList | Difference | Journal | Samples | Layers)
}

fn arrows(state: &State) -> String {
    format!("{}{}", state.keys.key_of(Action::Up), state.keys.key_of(Action::Down))
}

fn action_item(state: &State, action: Action, theme: &Theme) -> Line<'static> {
    let (key, label) = key_and_label(state, action);
    if state.is_possible(action) {
        Line::from(vec![Span::styled(key, theme.key), Span::raw(format!(" {label}"))])
    } else {
        Line::from(Span::styled(format!("{key} {label}"), theme.faint))
    }
}
