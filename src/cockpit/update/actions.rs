//! Performs the actions that keys, mouse and palette request.

use super::focus::{focus_visible_panel, move_focus};
use super::message::Effect;
use super::{charts, copy, layers, menu, replay, run_list, samples, worker_end};
use crate::cockpit::action::Action;
use crate::cockpit::chart_picture::{ChartPicture, PictureFormat};
use crate::cockpit::errand::Errand;
use crate::cockpit::layout::{SMALLEST, lay_out_state};
use crate::cockpit::state::State;
use crate::cockpit::state::journal::Kinds;
use crate::cockpit::state::opened::Opened;
use crate::cockpit::state::requests::Refusal;
use crate::cockpit::state::screen::{Mode, Panel, Prompt, View, WorkerEnd};
use crate::protocol::claim::Move;
use crate::protocol::control::{Request, Target};

/// Performs an action the user requested.
pub fn perform_action(state: &mut State, action: Action) -> Vec<Effect> {
    let own = match state.screen.view {
        View::Samples => samples::perform_sample_action(state, action),
        View::Layers => layers::perform_layer_action(state, action),
        _ => None,
    };
    if let Some(effects) = own {
        return effects;
    }
    match action {
        Action::Quit => vec![Effect::Quit],
        Action::Suspend => vec![Effect::Suspend],
        Action::Repaint => repaint(state),
        Action::ShiftDown => preview_neighbour(state, &Target::Down),
        Action::ShiftUp => preview_neighbour(state, &Target::Up),
        Action::Checkpoint => send_request(state, Request::Checkpoint, "checkpoint requested"),
        Action::Restart => worker_end::request(state, WorkerEnd::Restart),
        Action::Pause => worker_end::pause_or_resume(state),
        Action::Autopilot => toggle_autopilot(state),
        Action::Accept => send_request(state, Request::Accept, "proposal accepted"),
        Action::Stop => worker_end::request(state, WorkerEnd::Stop),
        Action::View(view) => uncover_view(state, view),
        Action::NextPanel => move_focus(state, 1),
        Action::PreviousPanel => move_focus(state, -1),
        Action::Up => state.screen.focus.component().scroll(state, 1),
        Action::Down => state.screen.focus.component().scroll(state, -1),
        Action::PageUp if state.screen.view == View::Charts => charts::page_charts(state, -1),
        Action::PageDown if state.screen.view == View::Charts => charts::page_charts(state, 1),
        Action::NextGroup => charts::page_groups(state, 1),
        Action::PreviousGroup => charts::page_groups(state, -1),
        Action::Pin => charts::toggle_pin(state),
        Action::PageUp => state.screen.focus.component().page(state, 1),
        Action::PageDown => state.screen.focus.component().page(state, -1),
        Action::Confirm => open_focused(state),
        Action::Back => go_back(state),
        Action::Palette => open_palette(state),
        Action::Help => open_box(state, Mode::Help { from: 0 }),
        Action::Replay => replay::toggle_replay(state),
        Action::Toggle if state.screen.view == View::Runs => run_list::toggle_mark(state),
        Action::Menu => menu::open_menu(state),
        Action::Sort if state.screen.view == View::Runs => run_list::sort_by_next(state),
        Action::ReverseSort if state.screen.view == View::Runs => run_list::reverse_sort(state),
        Action::Sooner if state.screen.view == View::Runs => run_list::move_in_queue(state, Move::Up),
        Action::Later if state.screen.view == View::Runs => run_list::move_in_queue(state, Move::Down),
        Action::Filter if state.screen.view == View::Runs => {
            let filter = state.runs.filter.clone();
            menu::open_prompt(state, Prompt::FindRuns, filter)
        }
        Action::Filter => open_filter(state),
        Action::Kinds => next_kinds(state),
        Action::Alerts => open_box(state, Mode::Alerts { from: 0 }),
        Action::Copy => copy::copy_item(state),
        Action::WriteChart(format) => write_chart(state, format),
        Action::Theme => switch_theme(state),
        Action::Chart(action) => charts::perform_chart_action(state, action),
        // These act on a list of runs, and on a replay.
        Action::Toggle | Action::Sort | Action::ReverseSort | Action::Sooner | Action::Later => Vec::new(),
    }
}

/// Draws every cell again, and sends pictures again: the terminal may have lost them.
pub fn repaint(state: &mut State) -> Vec<Effect> {
    state.samples.pictures.clear();
    vec![Effect::Repaint]
}

fn switch_theme(state: &mut State) -> Vec<Effect> {
    state.screen.theme = state.screen.theme.wrapping_add(1);
    let name = state.themes.get(state.screen.theme % state.themes.len().max(1)).cloned();
    if let Some(name) = name {
        state.show_notice(format!("theme: {name}"), false);
    }
    vec![Effect::Redraw]
}

/// Shows the next kinds of entries in the journal, in the view of the log if the journal is not visible.
fn next_kinds(state: &mut State) -> Vec<Effect> {
    if !lay_out_state(state.shown()).panels.iter().any(|(panel, _)| *panel == Panel::Journal) {
        state.screen.view = View::Log;
    }
    state.screen.focus = Panel::Journal;
    state.screen.journal_kinds = state.screen.journal_kinds.next();
    state.screen.journal_back = 0;
    vec![Effect::Redraw, Effect::ReadLog]
}

fn write_chart(state: &mut State, format: PictureFormat) -> Vec<Effect> {
    match ChartPicture::of_focused(state, format) {
        Some(picture) => vec![Effect::WriteChart(picture)],
        None => refuse_action(state, &Refusal::NoPicture),
    }
}

fn open_filter(state: &mut State) -> Vec<Effect> {
    if state.screen.view == View::Charts {
        (state.screen.full, state.screen.mode) = (None, Mode::Filter);
        return vec![Effect::Redraw];
    }
    let is_filtered = |panel: &Panel| matches!(panel, Panel::Log | Panel::Journal);
    if !lay_out_state(state.shown()).panels.iter().any(|(panel, _)| *panel == Panel::Log) {
        state.screen.view = View::Log;
    }
    if !is_filtered(&state.screen.focus) {
        state.screen.focus = Panel::Log;
    }
    state.screen.mode = Mode::Filter;
    vec![Effect::Redraw, Effect::ReadLog]
}

/// Refuses to open a box that the screen is too small to show.
fn box_refusal(state: &State) -> Option<Refusal> {
    let (width, height) = state.screen.size;
    (width < SMALLEST.0 || height < SMALLEST.1).then_some(Refusal::TooSmall(SMALLEST.0, SMALLEST.1))
}

/// Closes a box that no longer fits the screen: no key may answer a question that is not visible.
pub fn close_hidden_box(state: &mut State) {
    let is_box = !matches!(state.screen.mode, Mode::Normal | Mode::Filter | Mode::Prompt(_));
    if let Some(why) = box_refusal(state).filter(|_| is_box) {
        state.screen.mode = Mode::Normal;
        state.show_notice(why.to_string(), true);
    }
}

/// Closes the open box.
pub fn close_box(state: &mut State) -> Vec<Effect> {
    state.screen.mode = Mode::Normal;
    vec![Effect::Redraw]
}

/// Opens a box, unless the screen is too small to show it.
pub fn open_box(state: &mut State, mode: Mode) -> Vec<Effect> {
    if let Some(why) = box_refusal(state) {
        return refuse_action(state, &why);
    }
    state.screen.mode = mode;
    vec![Effect::Redraw]
}

fn open_palette(state: &mut State) -> Vec<Effect> {
    state.screen.search.clear();
    open_box(state, Mode::Palette { chosen: 0 })
}

/// Shows why an action is refused.
pub fn refuse_action(state: &mut State, why: &Refusal) -> Vec<Effect> {
    state.show_notice(why.to_string(), true);
    vec![Effect::Redraw]
}

/// Sends a request to the keeper, unless the run takes none.
pub fn send_request(state: &mut State, request: Request, notice: &str) -> Vec<Effect> {
    if let Err(why) = state.check_request(&request) {
        return refuse_action(state, &why);
    }
    state.show_notice(notice, false);
    vec![Effect::Send(request), Effect::Redraw]
}

/// Opens the preview of a shift to the rung below or above.
fn preview_neighbour(state: &mut State, to: &Target) -> Vec<Effect> {
    if let Some(why) = state.request_refusal() {
        return refuse_action(state, &why);
    }
    match state.situation().map(|now| now.resolve(to)) {
        Some(Ok(to)) => open_box(state, Mode::Preview { to }),
        Some(Err(why)) => refuse_action(state, &why.into()),
        None => Vec::new(),
    }
}

/// Moves the open preview to another rung, skipping the current one.
pub fn move_preview(state: &mut State, to: usize, direction: isize) -> Vec<Effect> {
    let last = state.ladder.len().saturating_sub(1);
    let mut next = to.saturating_add_signed(direction).min(last);
    if Some(next) == state.rung() {
        next = next.saturating_add_signed(direction).min(last);
    }
    if Some(next) != state.rung() {
        state.screen.mode = Mode::Preview { to: next };
    }
    vec![Effect::Redraw]
}

/// Confirms the open preview.
pub fn confirm_shift(state: &mut State, to: usize) -> Vec<Effect> {
    state.screen.mode = Mode::Normal;
    let Some(name) = state.ladder.get(to).map(|rung| rung.name.clone()) else { return vec![Effect::Redraw] };
    let notice = format!("shift to {name} requested");
    send_request(state, Request::Shift { to: Target::Rung(name) }, &notice)
}

fn toggle_autopilot(state: &mut State) -> Vec<Effect> {
    let on = !state.status().is_some_and(|status| status.autopilot);
    let notice = if on { "autopilot on requested" } else { "autopilot off requested" };
    send_request(state, Request::Autopilot { on }, notice)
}

/// Shows a view that was asked for, without the box over it that tells why the run is over.
fn uncover_view(state: &mut State, view: View) -> Vec<Effect> {
    state.screen.trouble_hidden |= state.is_orphaned() || state.is_broken();
    switch_view(state, view)
}

/// Switches to a view, and focuses one of its panels.
pub fn switch_view(state: &mut State, view: View) -> Vec<Effect> {
    state.screen.view = view;
    state.runs.forget_click();
    state.screen.full = None;
    if state.screen.mode == Mode::Filter {
        state.screen.mode = Mode::Normal;
    }
    focus_visible_panel(state);
    state.layers.retry(state.now_ms);
    let list = match view {
        View::Runs => Some(Effect::ListRuns),
        View::Samples => Some(Effect::ListSamples),
        _ => None,
    };
    [Effect::Redraw, Effect::ReadLog].into_iter().chain(list).collect()
}

/// Handles Enter.
fn open_focused(state: &mut State) -> Vec<Effect> {
    match state.screen.focus.component().open(state.shown()) {
        Ok(Opened::Chart(quantity)) => charts::toggle_full_chart(state, quantity),
        Ok(Opened::Run(name)) => vec![Effect::Leave(Errand::Open(name))],
        Ok(Opened::Fault(id)) => open_box(state, Mode::Fault { id, from: 0 }),
        Ok(Opened::CheckpointMenu) => menu::open_checkpoint_menu(state),
        Ok(Opened::Preview(to)) => open_box(state, Mode::Preview { to }),
        Ok(Opened::View(view)) => switch_view(state, view),
        Err(why) => refuse_action(state, &why),
    }
}

/// Handles Esc: closes the innermost thing that can be closed.
fn go_back(state: &mut State) -> Vec<Effect> {
    // The notice expires on its own, so it does not consume the key.
    state.notice = None;
    // An invisible panel does not consume the key either.
    let panels = lay_out_state(state.shown()).panels;
    let is_visible = |wanted: fn(&Panel) -> bool| panels.iter().any(|(panel, _)| wanted(panel));
    if (state.is_orphaned() || state.is_broken()) && !state.screen.trouble_hidden {
        state.screen.trouble_hidden = true;
    } else if state.shift_progress.is_shown(state.now_ms) {
        state.shift_progress = state.shift_progress.closed();
    } else if !state.screen.filter.is_empty() && is_visible(|panel| *panel == Panel::Journal) {
        state.screen.filter.clear();
    } else if state.screen.journal_kinds != Kinds::All && is_visible(|panel| *panel == Panel::Journal) {
        state.screen.journal_kinds = Kinds::All;
    } else if state.screen.chart.cursor.is_some() && is_visible(|panel| matches!(panel, Panel::Chart(_))) {
        state.screen.chart.cursor = None;
    } else if !state.runs.filter.is_empty() && is_visible(|panel| *panel == Panel::RunList) {
        state.runs.filter.clear();
    } else if state.screen.full.is_some() {
        state.screen.full = None;
    } else if state.screen.view == View::Charts && !state.screen.chart_search.is_empty() {
        state.screen.chart_search.clear();
        focus_visible_panel(state);
    } else if state.screen.chosen_rung.is_some() && is_visible(|panel| *panel == Panel::Ladder) {
        state.screen.chosen_rung = None;
    } else {
        return switch_view(state, View::Overview);
    }
    vec![Effect::Redraw]
}
