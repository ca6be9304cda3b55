//! The question before a stop, or before a pause or restart that repeats steps.

use crate::cockpit::action::Action;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::WorkerEnd;
use crate::cockpit::ui::{self, Popup, Stand};
use crate::cockpit::verdict::Tone;
use crate::format::count;
use crate::outlook::continuation::{Continuation, How};
use crate::outlook::cost::{Cost, Reached, lost, repeated};
use crate::protocol::control::{RunState, Status};
use crate::theme::Theme;
use ratatui::{
    Frame,
    layout::Rect,
    text::{Line, Span},
};
use unicode_width::UnicodeWidthStr;

/// Draws the box.
pub fn render(frame: &mut Frame<'_>, within: Rect, kind: WorkerEnd, state: &State, theme: &Theme) {
    if state.status().is_none() {
        return;
    }
    let mut lines: Vec<Line<'static>> = question_lines(within, kind, state).into_iter().map(Line::from).collect();
    lines.push(Line::default());
    if kind == WorkerEnd::Stop {
        let way = way_after_stop(state);
        let label = label_of(&way);
        lines.extend(resume_lines(within, &way).into_iter().map(|row| match row.strip_prefix(label) {
            Some(rest) => Line::from(vec![Span::styled(label, theme.dim), Span::raw(rest.to_owned())]),
            None => Line::from(row),
        }));
        lines.push(Line::default());
    }
    let (size, keys) = measure_box(within, kind, state);
    lines.push(keys.render(inner_width(within), theme));
    let title = match kind {
        WorkerEnd::Stop => "stop the run",
        WorkerEnd::Pause => "pause the run",
        WorkerEnd::Restart => "restart the command",
    };
    let inner = Popup { title, size, tone: Tone::Warn, stand: Stand::Middle }.open(frame, within, theme);
    ui::render_lines(frame, inner, lines);
}

/// Returns how the run goes on once it has stopped: from the checkpoint that the stop saves, if it saves one.
fn way_after_stop(state: &State) -> Continuation {
    let is_stopping = state.run_state() == Some(RunState::Stopping);
    let saves = !is_stopping && cost_now(state).is_some_and(Cost::saves_first);
    let mut way = state.continuation();
    if saves && way.how == How::StartOver {
        way.how = How::Resume(state.status().map_or(0, |status| status.step));
    }
    way
}

/// Returns what an end of the worker costs now; none if it cannot go on afterwards.
fn cost_now(state: &State) -> Option<Cost> {
    Cost::of(state.capability(), Reached::of_status(state.status()?))
}

/// Returns the words before the command that continues the run.
fn label_of(way: &Continuation) -> &'static str {
    match way.how {
        How::Resume(_) | How::Nothing => "Resume later:",
        How::TakeOver => "Watch it again:",
        How::StartOver => "Start over later:",
        How::RunAgain => "Start anew later:",
    }
}

/// Returns the columns inside the box.
fn inner_width(within: Rect) -> usize {
    usize::from(within.width.saturating_sub(6)).clamp(1, 60)
}

/// Returns the command that continues the run, unbroken, on its own line if needed.
fn resume_lines(within: Rect, way: &Continuation) -> Vec<String> {
    let (label, command) = (label_of(way), &way.command);
    let joined = format!("{label}  {command}");
    if joined.width() <= inner_width(within) {
        vec![joined]
    } else {
        [vec![label.to_owned()], ui::wrap(command, inner_width(within))].concat()
    }
}

/// Returns the inner size of the box and the keys on its last line.
#[must_use]
pub fn measure_box(within: Rect, kind: WorkerEnd, state: &State) -> ((u16, u16), ui::KeyLine) {
    let way = match kind {
        WorkerEnd::Stop => resume_lines(within, &way_after_stop(state)).len() + 1,
        WorkerEnd::Pause | WorkerEnd::Restart => 0,
    };
    let rows = question_lines(within, kind, state).len() + way + 2;
    let high = u16::try_from(rows).unwrap_or(u16::MAX);
    let confirm = match (kind, &state.command) {
        (WorkerEnd::Stop, _) if state.run_state() == Some(RunState::Stopping) => "stop now",
        (WorkerEnd::Stop, Some(_)) if state.watched_process().is_some() => "stop watching",
        (WorkerEnd::Stop, None) if has_begun(state) => "save and stop",
        (WorkerEnd::Stop, _) => "stop",
        (WorkerEnd::Pause, _) => "pause",
        (WorkerEnd::Restart, _) => "restart",
    };
    let keys = ui::KeyLine(vec![
        (state.keys.key_of(Action::Confirm), confirm, Action::Confirm),
        (state.keys.key_of(Action::Back), if has_begun(state) { "keep training" } else { "keep it" }, Action::Back),
    ]);
    ((60, high), keys)
}

fn question_lines(within: Rect, kind: WorkerEnd, state: &State) -> Vec<String> {
    let Some(status) = state.status() else { return Vec::new() };
    let text = match (kind, &state.command) {
        (WorkerEnd::Stop, _) if status.state == RunState::Stopping => stop_again_question(status),
        (WorkerEnd::Stop, _) if !has_begun(state) => "Stop the run before its first worker starts?".to_owned(),
        (WorkerEnd::Stop, None) if state.facts.run_dir_missing_ms.is_some() => {
            let step = count(status.step);
            format!(
                "The run directory is missing, so step {step} cannot be saved. Move it back first; to end the run without it, stop twice."
            )
        }
        (WorkerEnd::Stop, None) => {
            format!("Save at step {} and stop the run? Worker and keeper end; nothing is lost.", count(status.step))
        }
        (WorkerEnd::Stop, Some(_)) if let Some(pid) = state.watched_process() => {
            format!("Stop watching at step {}? The training goes on in process {pid}.", count(status.step))
        }
        (WorkerEnd::Stop, Some(_)) => stop_question(cost_now(state), status.step),
        (WorkerEnd::Pause | WorkerEnd::Restart, _) => {
            let what = if kind == WorkerEnd::Pause { "Pause the run" } else { "Restart the command" };
            format!("{what} at step {}? {}", count(status.step), end_of_command(cost_now(state)))
        }
    };
    ui::wrap(&text, usize::from(within.width.saturating_sub(8)).clamp(1, 58))
}

/// Reports whether a worker was started: until then the run waits, and has nothing to save.
fn has_begun(state: &State) -> bool {
    state.status().is_none_or(|status| status.attempts > 0)
}

fn stop_again_question(status: &Status) -> String {
    let durable =
        status.durable_step.map_or_else(|| "the beginning".to_owned(), |step| format!("step {}", count(step)));
    format!("The run is already stopping. Stopping now skips the checkpoint: the run will resume from {durable}.")
}

/// Describes what an end of the worker loses that the run survives.
fn end_of_command(cost: Option<Cost>) -> String {
    match cost {
        Some(Cost::BackTo { checkpoint, steps }) => format!(
            "The command cannot be asked to save: it goes on from checkpoint {} and repeats {}.",
            count(checkpoint),
            repeated(steps)
        ),
        Some(Cost::Everything { steps }) => {
            format!("The command cannot be asked to save: it starts over and loses {}.", lost(steps))
        }
        Some(Cost::SavesFirst | Cost::AtMostOneStep) => "It saves first; nothing is lost.".to_owned(),
        None => "It has no checkpoint to go on from.".to_owned(),
    }
}

/// Asks before a command ends: its script resumes only as well as it can itself.
fn stop_question(cost: Option<Cost>, step: u64) -> String {
    let step = count(step);
    match cost {
        Some(Cost::AtMostOneStep) => {
            format!("Save at step {step} and stop the run? Everything the script started ends; nothing is lost.")
        }
        Some(Cost::SavesFirst) => {
            format!("Stop the run at step {step}? The script saves first, and everything it started ends.")
        }
        Some(Cost::BackTo { checkpoint, steps }) => format!(
            "Stop the run at step {step}? Everything the script started ends; it resumes from checkpoint {} and repeats {}.",
            count(checkpoint),
            repeated(steps)
        ),
        Some(Cost::Everything { .. }) | None => {
            format!(
                "Stop the run at step {step}? Everything the script started ends, and there is no checkpoint to resume from."
            )
        }
    }
}
