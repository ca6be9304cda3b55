//! Handles keys in the samples view, and requests the files that it needs.

use super::focus::focus_visible_panel;
use super::message::Effect;
use crate::cockpit::action::{Action, ChartAction};
use crate::cockpit::layout::lay_out_state;
use crate::cockpit::panels::confusion::hidden_classes;
use crate::cockpit::panels::samples as panel;
use crate::cockpit::state::State;
use crate::cockpit::state::samples::{Beside, SetId};
use crate::cockpit::state::screen::{Panel, View};

/// Requests the sets and the pictures on the screen that were not read yet.
pub fn request_missing_samples(state: &mut State) -> Vec<Effect> {
    if state.screen.view != View::Samples {
        return Vec::new();
    }
    let beside = [Beside::First, Beside::Best];
    let on_screen = state.shown();
    let wanted: Vec<SetId> = on_screen
        .chosen_set()
        .into_iter()
        .chain(beside.into_iter().filter_map(|beside| on_screen.set_beside(beside)))
        .collect();
    let pictures = panel::wanted_pictures(on_screen);
    let mut effects: Vec<Effect> = Vec::new();
    effects.extend(state.samples.take_unlisted().then_some(Effect::ListSamples));
    effects.extend(state.samples.take_missing(wanted).into_iter().map(Effect::LoadSamples));
    effects.extend(state.samples.pictures.take_missing(&pictures).into_iter().map(Effect::LoadPicture));
    effects
}

/// Performs an action in the samples view; returns `None` if it has its usual meaning.
pub fn perform_sample_action(state: &mut State, action: Action) -> Option<Vec<Effect>> {
    let on_matrix = state.screen.focus == Panel::Confusion;
    let cursor = &mut state.screen.samples;
    match action {
        Action::Chart(ChartAction::Left) if on_matrix => scroll_matrix(state, (0, -1)),
        Action::Chart(ChartAction::Right) if on_matrix => scroll_matrix(state, (0, 1)),
        Action::Chart(ChartAction::Left) => choose_set(state, -1),
        Action::Chart(ChartAction::Right) => choose_set(state, 1),
        Action::Up => return Some(state.screen.focus.component().scroll(state, 1)),
        Action::Down => return Some(state.screen.focus.component().scroll(state, -1)),
        Action::PageUp => page(state, -1),
        Action::PageDown => page(state, 1),
        Action::Toggle | Action::NextPanel | Action::PreviousPanel => switch_panel(state),
        Action::Confirm if on_matrix => {}
        Action::Confirm => (cursor.alone, cursor.text_from) = (!cursor.alone, 0),
        Action::Chart(ChartAction::Fit | ChartAction::Follow) => (cursor.set, cursor.text_from) = (None, 0),
        Action::Back if cursor.alone => cursor.alone = false,
        Action::Back if cursor.matrix => {
            cursor.matrix = false;
            focus_visible_panel(state);
        }
        Action::Back if cursor.set.is_some() => cursor.set = None,
        _ => return None,
    }
    Some(vec![Effect::Redraw])
}

/// Moves between the samples and the matrix. On a narrow screen, one takes the place of the other.
fn switch_panel(state: &mut State) {
    if state.shown().confusion().is_none() || state.screen.samples.alone {
        return;
    }
    let to_matrix = state.screen.focus != Panel::Confusion;
    state.screen.samples.matrix = to_matrix;
    state.screen.focus = if to_matrix { Panel::Confusion } else { Panel::Samples };
    focus_visible_panel(state);
}

/// Chooses an older (-1) or a newer (1) set. At the newest, new sets are followed.
fn choose_set(state: &mut State, by: isize) {
    let sets = state.shown().sample_sets();
    let here = state.shown().chosen_set().and_then(|chosen| sets.iter().position(|id| *id == chosen)).unwrap_or(0);
    let next = here.saturating_add_signed(by).min(sets.len().saturating_sub(1));
    let cursor = &mut state.screen.samples;
    cursor.set = sets.get(next).copied().filter(|_| next + 1 < sets.len());
    cursor.text_from = 0;
}

fn page(state: &mut State, by: isize) {
    if state.screen.focus == Panel::Confusion {
        return scroll_matrix(state, (10 * by, 0));
    }
    if state.screen.samples.alone || !panel::shows_grid(state.shown()) {
        let last = panel::hidden_text_lines(state.shown());
        let cursor = &mut state.screen.samples;
        cursor.text_from = cursor.text_from.min(last).saturating_add_signed(5 * by).min(last);
        return;
    }
    let per_page = panel::samples_per_page(state.shown()).max(1);
    choose_sample(state, by.saturating_mul(per_page.cast_signed()));
}

/// Chooses another sample: positive is down.
pub fn scroll_samples(state: &mut State, by: isize) -> Vec<Effect> {
    choose_sample(state, by);
    vec![Effect::Redraw]
}

fn choose_sample(state: &mut State, by: isize) {
    let on_screen = state.shown();
    let count = on_screen.chosen_set().and_then(|id| on_screen.samples_of(id)).map_or(0, |samples| samples.len());
    let cursor = &mut state.screen.samples;
    cursor.chosen = cursor.chosen.min(count.saturating_sub(1)).saturating_add_signed(by).min(count.saturating_sub(1));
    cursor.text_from = 0;
}

/// Scrolls the matrix by rows and columns: positive is down and right.
pub fn scroll_matrix(state: &mut State, by: (isize, isize)) {
    let last = hidden_classes(state.shown());
    let (row, column) = &mut state.screen.samples.matrix_from;
    *row = (*row).min(last.0).saturating_add_signed(by.0).min(last.0);
    *column = (*column).min(last.1).saturating_add_signed(by.1).min(last.1);
}

/// Chooses the clicked sample; a second click shows it alone.
pub fn click(state: &mut State, at: (u16, u16)) -> Vec<Effect> {
    let on_screen = state.shown();
    let Some(area) = lay_out_state(on_screen).area_of(Panel::Samples) else { return Vec::new() };
    match panel::sample_at(on_screen, area, at) {
        Some(sample) if sample == state.screen.samples.chosen => {
            state.screen.samples.alone = !state.screen.samples.alone;
        }
        Some(sample) => state.screen.samples.chosen = sample,
        None => {}
    }
    vec![Effect::Redraw]
}
