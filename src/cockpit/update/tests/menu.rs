//! The menu of a run and of a checkpoint, and the table of runs.

use super::{SIZE, key, letter};
use crate::cockpit::errand::Errand;
use crate::cockpit::fixture;
use crate::cockpit::layout::lay_out_state;
use crate::cockpit::state::State;
use crate::cockpit::state::menu::MenuItem;
use crate::cockpit::state::requests::Refusal;
use crate::cockpit::state::screen::{Mode, Panel, Prompt, View};
use crate::cockpit::update::{ChangeError, Effect, Msg, RunChange, update};
use crate::config::run::{AsWritten, Run, Source};
use crate::outlook::capability::capability_of;
use crate::outlook::continuation::{Commands, NewRun};
use crate::protocol::claim::{Move, Place, QueueChange, Wait};
use crate::protocol::control::RunState;
use crate::store::labels::{LabelEdit, Tag};
use crate::store::removal::RunSize;
use crate::store::run_summary::RunSummary;
use crate::store::run_summary::column::Column;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};
use std::path::Path;

const HERE: &str = "digits-20261120-140115";

fn ended() -> State {
    let mut state = fixture::training(SIZE);
    fixture::apply_status(&mut state, fixture::status(RunState::Stopped, 700));
    state.screen.trouble_hidden = true;
    state
}

fn row(name: &str, state: RunState) -> RunSummary {
    let mut status = fixture::status(state, 10);
    name.clone_into(&mut status.run);
    status.pid_keeper = (!state.is_over()).then_some(1);
    RunSummary { name: name.to_owned(), status: Some(status), ..RunSummary::default() }
}

/// Opens the table with the cursor on `other`.
fn on_other(other: RunState) -> State {
    let mut state = fixture::training(SIZE);
    update(&mut state, letter('6'));
    update(&mut state, Msg::Runs(vec![row(HERE, RunState::Training), row("other", other)]));
    update(&mut state, key(KeyCode::Down));
    state
}

/// Opens the menu, lists the runs again if they were listed, and performs an entry.
fn choose(state: &mut State, item: MenuItem) -> Vec<Effect> {
    assert!(update(state, letter('m')).contains(&Effect::ListRuns));
    if let Some(rows) = state.runs.rows.clone() {
        update(state, Msg::Runs(rows));
    }
    let Mode::Menu { chosen } = state.screen.mode else { panic!("no menu") };
    let place = state.menu_items().iter().position(|(known, _)| *known == item).unwrap();
    let code = if place < chosen { KeyCode::Up } else { KeyCode::Down };
    for _ in 0..place.abs_diff(chosen) {
        update(state, key(code));
    }
    update(state, key(KeyCode::Enter))
}

fn type_line(state: &mut State, text: &str) {
    while !state.screen.input.is_empty() {
        update(state, key(KeyCode::Backspace));
    }
    for code in text.chars() {
        update(state, letter(code));
    }
}

#[test]
fn an_ended_run_is_resumed_from_its_newest_checkpoint_or_from_the_chosen_one() {
    let run = || HERE.to_owned();
    let mut state = ended();
    assert_eq!(choose(&mut state, MenuItem::Resume), [Effect::Leave(Errand::Resume { run: run(), from: None })]);
    let mut state = ended();
    (state.screen.focus, state.screen.chosen_checkpoint) = (Panel::Checkpoints, 0);
    update(&mut state, letter('5'));
    update(&mut state, key(KeyCode::Down));
    update(&mut state, key(KeyCode::Enter));
    assert_eq!(state.subject.checkpoint, Some(400), "the second newest on disk");
    update(&mut state, key(KeyCode::Esc));
    for (item, errand) in [
        (MenuItem::Resume, Errand::Resume { run: run(), from: Some(400) }),
        (MenuItem::Branch, Errand::Branch { run: run(), from: Some(400) }),
        (MenuItem::Compare, Errand::Compare { run: run() }),
    ] {
        assert_eq!(choose(&mut state, item), [Effect::Leave(errand)]);
    }
    choose(&mut state, MenuItem::Export);
    assert_eq!(state.screen.input, format!("{HERE}-step-400.safetensors"));
    type_line(&mut state, "w.safetensors");
    let errand = Errand::Export { run: run(), step: 400, out: "w.safetensors".to_owned() };
    assert_eq!(update(&mut state, key(KeyCode::Enter)), [Effect::Leave(errand)]);
    choose(&mut state, MenuItem::CopyPath);
    let path = format!("/home/ada/runs/{HERE}/checkpoints/step-000000400");
    assert_eq!(state.subject_path(), Some(path));
}

#[test]
fn what_is_not_possible_is_refused_with_its_reason_and_the_menu_stays() {
    let refusal = |state: &mut State, item: MenuItem| {
        let effects = choose(state, item);
        assert!(effects == [Effect::Redraw] && matches!(state.screen.mode, Mode::Menu { .. }), "{item:?}: {effects:?}");
        let refusal = state.menu_items().into_iter().find(|(known, _)| *known == item).unwrap().1.unwrap();
        assert_eq!(state.notice.as_ref().unwrap().text, refusal.to_string());
        update(state, key(KeyCode::Esc));
        refusal
    };
    let mut alive = fixture::training(SIZE);
    assert_eq!(refusal(&mut alive, MenuItem::Resume), Refusal::Alive);
    assert_eq!(refusal(&mut alive, MenuItem::Delete), Refusal::Alive);
    let mut other = on_other(RunState::Training);
    assert_eq!(refusal(&mut other, MenuItem::Delete), Refusal::Alive);
    let mut watcher = ended();
    watcher.read_only = true;
    for item in [MenuItem::Resume, MenuItem::Branch, MenuItem::Tags, MenuItem::Archive, MenuItem::Delete] {
        assert_eq!(refusal(&mut watcher, item), Refusal::ReadOnly);
    }
    let mut own_files = ended();
    own_files.facts.checkpoints.get_mut(&600).unwrap().path = "adopted/step-600.json".to_owned();
    assert_eq!(refusal(&mut own_files, MenuItem::Branch), Refusal::OwnFiles);
    let source =
        Source { file: "x", text: "name: x\ntask: command\ncommand: [train]\n", base: Path::new("/"), overrides: &[] };
    let mut lost = ended();
    lost.command = Run::read(&source, &AsWritten).unwrap_or_else(|refusal| panic!("{refusal}")).command;
    let again = Some(NewRun { command: "downshift run x.yaml".to_owned(), init: None });
    let capability = capability_of(lost.command.as_ref());
    lost.commands = Some(Commands { again, capability, ..Commands::built_in("downshift resume x") });
    assert_eq!(refusal(&mut lost, MenuItem::Resume), Refusal::NothingResumes);
    let mut young = fixture::young(SIZE);
    young.screen.focus = Panel::Checkpoints;
    update(&mut young, letter('5'));
    update(&mut young, letter('m'));
    assert_eq!(young.notice.unwrap().text, Refusal::NoCheckpoint.to_string());
}

#[test]
fn tags_and_notes_are_edited_where_they_are_and_a_bad_tag_keeps_the_line() {
    let mut state = on_other(RunState::Finished);
    choose(&mut state, MenuItem::Tags);
    type_line(&mut state, "base, -x");
    assert_eq!(update(&mut state, key(KeyCode::Enter)), [Effect::Redraw]);
    assert!(state.notice.as_ref().unwrap().text.contains("`-x` is not a tag"));
    assert_eq!((state.screen.mode, state.screen.input.as_str()), (Mode::Prompt(Prompt::Tags), "base, -x"));
    type_line(&mut state, "#wide base");
    let tags = ["base", "wide"].map(|tag| Tag::parse(tag).unwrap()).into();
    let edit = Effect::EditLabels("other".to_owned(), LabelEdit::SetTags(tags));
    assert_eq!(update(&mut state, key(KeyCode::Enter)), [edit, Effect::Redraw]);
    choose(&mut state, MenuItem::Note);
    type_line(&mut state, "a q in a note is a letter");
    let note = LabelEdit::SetNote("a q in a note is a letter".to_owned());
    assert_eq!(update(&mut state, key(KeyCode::Enter))[0], Effect::EditLabels("other".to_owned(), note));
    let archive = Effect::EditLabels("other".to_owned(), LabelEdit::Archive(true));
    assert_eq!(choose(&mut state, MenuItem::Archive)[0], archive);
    let why = ChangeError("the disk is full".to_owned());
    let effects = update(&mut state, Msg::RunChanged { name: "other".to_owned(), change: RunChange::Refused(why) });
    assert!(effects.contains(&Effect::ListRuns) && state.notice.unwrap().text == "the disk is full");
}

#[test]
fn a_run_is_deleted_only_after_its_size_was_shown_and_confirmed() {
    let mut state = on_other(RunState::Finished);
    let effects = choose(&mut state, MenuItem::Delete);
    assert!(effects.contains(&Effect::MeasureRun("other".to_owned())), "{effects:?}");
    let read = |state: &mut State| update(state, Msg::Tick(state.now_ms + 400));
    read(&mut state);
    assert_eq!(update(&mut state, key(KeyCode::Enter)), [], "not measured yet");
    let measured = |name: &str| Msg::RunMeasured { name: name.to_owned(), size: RunSize { bytes: 7, files: 1 } };
    update(&mut state, measured("another"));
    assert_eq!(update(&mut state, letter('y')), [], "the size of another run");
    update(&mut state, measured("other"));
    update(&mut state, letter('n'));
    assert_eq!(state.screen.mode, Mode::Normal);
    choose(&mut state, MenuItem::Delete);
    update(&mut state, measured("other"));
    read(&mut state);
    assert_eq!(update(&mut state, key(KeyCode::Enter))[0], Effect::DeleteRun("other".to_owned()));
    let deleted = |name: &str| Msg::RunChanged {
        name: name.to_owned(),
        change: RunChange::Deleted(RunSize { bytes: 7, files: 1 }),
    };
    assert!(!update(&mut state, deleted("other")).contains(&Effect::Quit));
    assert_eq!(update(&mut state, deleted(HERE)), [Effect::Quit], "nothing is left of the open run");
}

#[test]
fn runs_are_found_by_typing_and_sorted_by_key_and_heading() {
    let mut state = on_other(RunState::Finished);
    update(&mut state, letter('/'));
    type_line(&mut state, "finished");
    assert_eq!(state.runs.shown().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["other"]);
    update(&mut state, key(KeyCode::Enter));
    assert_eq!((state.screen.mode, state.runs.shown_count()), (Mode::Normal, 1));
    update(&mut state, key(KeyCode::Esc));
    assert_eq!((state.runs.shown_count(), state.runs.filter.as_str()), (2, ""));
    update(&mut state, letter('o'));
    assert_eq!((state.runs.sort.column, state.runs.sort.reverse), (Column::Name, false));
    update(&mut state, letter('O'));
    assert!(state.runs.sort.reverse);
    // The headings are on the second row of the panel; the first column is the name, then the state.
    let area = lay_out_state(&state).area_of(Panel::RunList).unwrap();
    let click = |x: u16| {
        let kind = MouseEventKind::Down(MouseButton::Left);
        Msg::Mouse(MouseEvent { kind, column: area.x + x, row: area.y + 1, modifiers: KeyModifiers::NONE })
    };
    update(&mut state, click(30));
    assert_eq!((state.runs.sort.column, state.runs.sort.reverse), (Column::State, false));
    update(&mut state, click(30));
    assert!(state.runs.sort.reverse, "a second click reverses");
    update(&mut state, click(4));
    assert_eq!((state.runs.sort.column, state.runs.sort.reverse), (Column::Name, false));
    let ctrl = KeyEvent::new(KeyCode::Char('l'), KeyModifiers::CONTROL);
    assert_eq!(update(&mut state, Msg::Key(ctrl)), [Effect::Repaint]);
}

#[test]
fn tags_are_edited_only_once_they_are_known() {
    let mut state = fixture::training(SIZE);
    let mut tagged = row(HERE, RunState::Training);
    for tag in ["base", "wide"] {
        for item in [MenuItem::Tags, MenuItem::Archive] {
            let effects = choose_unlisted(&mut state, item);
            assert!(effects == [Effect::Redraw] && matches!(state.screen.mode, Mode::Menu { .. }), "{effects:?}");
            assert_eq!(state.notice.as_ref().unwrap().text, Refusal::ReadingLabels.to_string());
            update(&mut state, key(KeyCode::Esc));
        }
        choose_unlisted(&mut state, MenuItem::Tags);
        tagged.labels.tags = [Tag::parse(tag).unwrap()].into();
        update(&mut state, Msg::Runs(vec![tagged.clone()]));
        // The line opens by itself, with the tags that another program changed meanwhile.
        assert_eq!((state.screen.mode, state.screen.input.as_str()), (Mode::Prompt(Prompt::Tags), tag));
        update(&mut state, key(KeyCode::Esc));
    }
    choose_unlisted(&mut state, MenuItem::Tags);
    update(&mut state, key(KeyCode::Down));
    update(&mut state, Msg::Runs(vec![tagged]));
    assert!(matches!(state.screen.mode, Mode::Menu { .. }), "the user has moved on");
    update(&mut state, key(KeyCode::Esc));
    choose_unlisted(&mut state, MenuItem::Tags);
    update(&mut state, Msg::Runs(Vec::new()));
    assert_eq!(state.notice.unwrap().text, Refusal::NotListed.to_string());
}

/// Opens the menu and presses Enter on an entry before the runs are listed.
fn choose_unlisted(state: &mut State, item: MenuItem) -> Vec<Effect> {
    update(state, letter('m'));
    let place = state.menu_items().iter().position(|(known, _)| *known == item).unwrap();
    state.screen.mode = Mode::Menu { chosen: place };
    update(state, key(KeyCode::Enter))
}

#[test]
fn archived_runs_are_shown_with_the_focus_on_the_table() {
    let mut state = fixture::training(SIZE);
    let effects = choose(&mut state, MenuItem::ShowArchived);
    assert!(effects.contains(&Effect::ListRuns) && state.runs.archived);
    assert_eq!((state.screen.view, state.screen.focus), (View::Runs, Panel::RunList));
}

fn click(state: &mut State, column: u16, row: u16) -> Vec<Effect> {
    let kind = MouseEventKind::Down(MouseButton::Left);
    update(state, Msg::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE }))
}

#[test]
fn a_run_opens_with_the_second_click_on_its_row() {
    let mut state = on_other(RunState::Finished);
    let area = lay_out_state(&state).area_of(Panel::RunList).unwrap();
    let (here, other) = (area.y + 2, area.y + 3);
    let leave = Effect::Leave(Errand::Open("other".to_owned()));
    assert!(!click(&mut state, area.x + 4, other).contains(&leave), "the cursor is there, but not by a click");
    assert!(click(&mut state, area.x + 4, other).contains(&leave));
    click(&mut state, area.x + 4, here);
    assert!(!click(&mut state, area.x + 4, other).contains(&leave), "a click elsewhere came in between");
    for keys in [[KeyCode::Up, KeyCode::Down], [KeyCode::Char('1'), KeyCode::Char('6')]] {
        for code in keys {
            update(&mut state, key(code));
        }
        assert!(!click(&mut state, area.x + 4, other).contains(&leave), "{keys:?}");
    }
    assert_eq!(click(&mut state, area.x + 4, other), [leave]);
}

#[test]
fn only_a_row_of_the_table_selects_its_run() {
    let mut state = fixture::training(SIZE);
    update(&mut state, letter('6'));
    let mut rows = vec![row(HERE, RunState::Training)];
    rows.extend((0..60).map(|number| row(&format!("run-{number:02}"), RunState::Finished)));
    for row in &mut rows {
        row.labels.note = "a note".to_owned();
    }
    update(&mut state, Msg::Runs(rows));
    let area = lay_out_state(&state).area_of(Panel::RunList).unwrap();
    for page in 1..=3 {
        let before = state.runs.chosen().unwrap().name.clone();
        // The last two rows count the hidden runs and show the note.
        for above in [1, 2] {
            click(&mut state, area.x + 4, area.bottom() - above);
            assert_eq!(state.runs.chosen().unwrap().name, before);
        }
        update(&mut state, key(KeyCode::PageDown));
        assert_eq!(state.runs.cursor(), 10 * page);
    }
    // The cursor is on the last row for runs; the first one is two rows below the title.
    click(&mut state, area.x + 4, area.bottom() - 3);
    assert_eq!(state.runs.cursor(), 30);
    click(&mut state, area.x + 4, area.y + 2);
    assert_eq!(state.runs.cursor(), 30 - usize::from(area.height - 5));
}

/// Opens the table with the cursor on `other`, which waits or is held.
fn on_queued(wait: Wait) -> State {
    let state = if wait == Wait::Held { RunState::Paused } else { RunState::AwaitingCard };
    let mut screen = fixture::training(SIZE);
    update(&mut screen, letter('6'));
    let other = RunSummary { place: Some(Place { rank: 2, wait }), ..row("other", state) };
    update(&mut screen, Msg::Runs(vec![other, row(HERE, RunState::Training)]));
    assert_eq!(screen.runs.shown().map(|row| row.name.as_str()).collect::<Vec<_>>(), [HERE, "other"]);
    update(&mut screen, key(KeyCode::Down));
    screen
}

#[test]
fn a_waiting_run_is_moved_held_and_removed() {
    let change = |change| Effect::ChangeQueue("other".to_owned(), change);
    let mut state = on_queued(Wait::Number(1));
    assert_eq!(update(&mut state, letter('<')), [change(QueueChange::Move(Move::Up))]);
    assert_eq!(update(&mut state, letter('>')), [change(QueueChange::Move(Move::Down))]);
    for (item, wanted) in [
        (MenuItem::First, QueueChange::Move(Move::First)),
        (MenuItem::Hold, QueueChange::Hold),
        (MenuItem::Remove, QueueChange::Remove),
    ] {
        assert!(choose(&mut state, item).contains(&change(wanted)), "{item:?}");
    }
    let mut held = on_queued(Wait::Held);
    assert!(choose(&mut held, MenuItem::Release).contains(&change(QueueChange::Release)));
    let told = RunChange::Queued("other: next in the queue".to_owned());
    let effects = update(&mut held, Msg::RunChanged { name: "other".to_owned(), change: told });
    assert!(effects.contains(&Effect::ListRuns) && held.notice.unwrap().text == "other: next in the queue");
}

#[test]
fn a_run_outside_the_queue_is_not_moved() {
    let mut state = on_other(RunState::Training);
    assert_eq!(update(&mut state, letter('<')), [Effect::Redraw]);
    assert_eq!(state.notice.as_ref().unwrap().text, "this run does not wait in the queue");
    let mut reader = on_queued(Wait::Number(1));
    reader.read_only = true;
    assert_eq!(update(&mut reader, letter('>')), [Effect::Redraw]);
}
