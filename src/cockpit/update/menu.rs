//! The menu of a run or a checkpoint, and the questions that its entries ask.

use super::actions::{close_box, open_box, refuse_action, switch_view};
use super::copy;
use super::message::{Effect, RunChange};
use crate::cockpit::errand::Errand;
use crate::cockpit::state::State;
use crate::cockpit::state::menu::{MenuItem, Subject};
use crate::cockpit::state::requests::Refusal;
use crate::cockpit::state::screen::{Mode, Panel, Prompt, View};
use crate::format::bytes;
use crate::protocol::claim::{Move, QueueChange};
use crate::store::labels::{LabelEdit, NOTE, Tag};
use crate::store::removal::RunSize;
use crossterm::event::KeyCode;
use std::collections::BTreeSet;

/// Maximum length of a line that is typed, except a note.
const LINE: usize = 240;

/// Opens the menu for what the cursor is on: a checkpoint, a run of the table, or else the open run.
pub fn open_menu(state: &mut State) -> Vec<Effect> {
    let subject = match (state.screen.view, state.screen.focus) {
        (View::Runs, _) => state.runs.chosen().map(|row| Subject::new(&row.name, None)),
        (_, Panel::Checkpoints) => return open_checkpoint_menu(state),
        _ => None,
    };
    let subject = subject.unwrap_or_else(|| Subject::new(state.run_name(), None));
    open_for(state, subject)
}

/// Opens the menu of the checkpoint under the cursor.
pub fn open_checkpoint_menu(state: &mut State) -> Vec<Effect> {
    let Some(checkpoint) = state.shown().chosen_checkpoint().map(|row| row.step) else {
        return refuse_action(state, &Refusal::NoCheckpoint);
    };
    let subject = Subject::new(state.run_name(), Some(checkpoint));
    open_for(state, subject)
}

fn open_for(state: &mut State, subject: Subject) -> Vec<Effect> {
    if state.moment.is_some() || state.replay.is_some() {
        let back = state.keys.key_of(crate::cockpit::action::Action::Back);
        return refuse_action(state, &Refusal::Past(back));
    }
    state.subject = subject;
    let first = state.menu_items().iter().position(|(_, refusal)| refusal.is_none()).unwrap_or(0);
    let mut effects = open_box(state, Mode::Menu { chosen: first });
    // Its labels come with the list.
    effects.push(Effect::ListRuns);
    effects
}

/// Moves the cursor of the menu; positive is down.
pub fn move_menu(state: &mut State, chosen: usize, rows: isize) -> Vec<Effect> {
    state.subject.awaited = None;
    let last = state.menu_items().len().saturating_sub(1);
    state.screen.mode = Mode::Menu { chosen: chosen.saturating_add_signed(rows).min(last) };
    vec![Effect::Redraw]
}

/// Performs the entry that waited for the labels, if its menu is still open.
pub fn perform_awaited(state: &mut State) -> Vec<Effect> {
    let awaited = state.subject.awaited.take().filter(|_| matches!(state.screen.mode, Mode::Menu { .. }));
    let place = awaited.and_then(|item| state.menu_items().iter().position(|(known, _)| *known == item));
    let Some(place) = place else { return Vec::new() };
    state.notice = None;
    perform_item(state, place)
}

/// Performs an entry of the menu.
pub fn perform_item(state: &mut State, place: usize) -> Vec<Effect> {
    let Some((item, refusal)) = state.menu_items().get(place).cloned() else { return Vec::new() };
    if let Some(why) = refusal {
        state.subject.awaited = (why == Refusal::ReadingLabels).then_some(item);
        return refuse_action(state, &why);
    }
    state.screen.mode = Mode::Normal;
    let Subject { run, checkpoint, .. } = state.subject.clone();
    let labels = || state.subject_labels().cloned().unwrap_or_default();
    match item {
        MenuItem::Open => vec![Effect::Leave(Errand::Open(run))],
        MenuItem::Resume => vec![Effect::Leave(Errand::Resume { run, from: checkpoint })],
        MenuItem::Branch => vec![Effect::Leave(Errand::Branch { run, from: checkpoint })],
        MenuItem::Compare => vec![Effect::Leave(Errand::Compare { run })],
        MenuItem::Export => {
            let step = checkpoint.unwrap_or_default();
            open_prompt(state, Prompt::Export, format!("{run}-step-{step}.safetensors"))
        }
        MenuItem::First => change_queue(run, QueueChange::Move(Move::First)),
        MenuItem::Hold => change_queue(run, QueueChange::Hold),
        MenuItem::Release => change_queue(run, QueueChange::Release),
        MenuItem::Remove => change_queue(run, QueueChange::Remove),
        MenuItem::CopyPath => copy_path(state),
        MenuItem::Tags => {
            let tags = labels().tags.iter().map(Tag::as_str).collect::<Vec<_>>().join(" ");
            open_prompt(state, Prompt::Tags, tags)
        }
        MenuItem::Note => {
            let note = labels().note;
            open_prompt(state, Prompt::Note, note)
        }
        MenuItem::Archive => {
            let archived = labels().archived;
            vec![Effect::EditLabels(run, LabelEdit::Archive(!archived)), Effect::Redraw]
        }
        MenuItem::ShowArchived => {
            state.runs.archived = !state.runs.archived;
            switch_view(state, View::Runs)
        }
        MenuItem::Delete => {
            state.screen.delete_size = None;
            let mut effects = open_box(state, Mode::Delete);
            effects.push(Effect::MeasureRun(run));
            effects
        }
    }
}

fn change_queue(run: String, change: QueueChange) -> Vec<Effect> {
    vec![Effect::ChangeQueue(run, change), Effect::Redraw]
}

/// Shows the path of the subject.
fn copy_path(state: &State) -> Vec<Effect> {
    let Some(path) = state.subject_path() else { return Vec::new() };
    copy::copy_text(&path)
}

/// Opens a line to type in.
pub fn open_prompt(state: &mut State, prompt: Prompt, text: String) -> Vec<Effect> {
    state.screen.mode = Mode::Prompt(prompt);
    state.screen.input = text;
    vec![Effect::Redraw]
}

/// Handles a key in a line to type in.
pub fn press_prompt_key(state: &mut State, prompt: Prompt, code: KeyCode) -> Vec<Effect> {
    match code {
        KeyCode::Char(letter) => type_text(state, prompt, &letter.to_string()),
        KeyCode::Backspace => {
            state.screen.input.pop();
            after_typing(state, prompt)
        }
        KeyCode::Enter => submit_prompt(state, prompt),
        KeyCode::Esc => {
            state.screen.input.clear();
            let mut effects = after_typing(state, prompt);
            effects.extend(close_box(state));
            effects
        }
        _ => Vec::new(),
    }
}

/// Adds text to the line, as far as there is room.
pub fn type_text(state: &mut State, prompt: Prompt, text: &str) -> Vec<Effect> {
    let most = if prompt == Prompt::Note { NOTE } else { LINE };
    let room = most.saturating_sub(state.screen.input.chars().count());
    state.screen.input.extend(text.chars().filter(|letter| !letter.is_control()).take(room));
    after_typing(state, prompt)
}

/// The table follows its filter at once.
fn after_typing(state: &mut State, prompt: Prompt) -> Vec<Effect> {
    if prompt == Prompt::FindRuns {
        state.runs.filter.clone_from(&state.screen.input);
        return super::run_list::redraw_and_load(state);
    }
    vec![Effect::Redraw]
}

fn submit_prompt(state: &mut State, prompt: Prompt) -> Vec<Effect> {
    let run = state.subject.run.clone();
    let text = state.screen.input.trim().to_owned();
    let edit = match prompt {
        Prompt::FindRuns => return close_box(state),
        Prompt::Export if text.is_empty() => return vec![Effect::Redraw],
        Prompt::Export => {
            state.screen.mode = Mode::Normal;
            let step = state.subject.checkpoint.unwrap_or_default();
            return vec![Effect::Leave(Errand::Export { run, step, out: text })];
        }
        Prompt::Tags => {
            let words = text.split([' ', ',']).filter(|word| !word.is_empty()).map(|word| word.trim_start_matches('#'));
            match words.map(Tag::parse).collect::<Result<BTreeSet<Tag>, _>>() {
                Ok(tags) => LabelEdit::SetTags(tags),
                Err(why) => {
                    // The line stays open, with what was typed.
                    state.show_notice(why.to_string(), true);
                    return vec![Effect::Redraw];
                }
            }
        }
        Prompt::Note => LabelEdit::SetNote(text),
    };
    state.screen.mode = Mode::Normal;
    vec![Effect::EditLabels(run, edit), Effect::Redraw]
}

/// Stores the size of the run that the open question is about.
pub fn store_size(state: &mut State, name: &str, size: RunSize) -> Vec<Effect> {
    if state.subject.run == name {
        state.screen.delete_size = Some(size);
    }
    vec![Effect::Redraw]
}

/// Confirms the deletion, once the size has been shown.
pub fn confirm_delete(state: &mut State) -> Vec<Effect> {
    if state.screen.delete_size.is_none() {
        return Vec::new();
    }
    state.screen.mode = Mode::Normal;
    vec![Effect::DeleteRun(state.subject.run.clone()), Effect::Redraw]
}

/// Shows the outcome of a change to a run.
pub fn show_change(state: &mut State, name: &str, change: RunChange) -> Vec<Effect> {
    match change {
        RunChange::Labelled => state.notice = None,
        // Nothing is left to show.
        RunChange::Deleted(_) if name == state.run_name() => return vec![Effect::Quit],
        RunChange::Deleted(size) => state.show_notice(format!("deleted {name}: {}", bytes(size.bytes)), false),
        RunChange::Queued(answer) => state.show_notice(answer, false),
        RunChange::Refused(why) => state.show_notice(why.to_string(), true),
    }
    vec![Effect::Redraw, Effect::ListRuns]
}
