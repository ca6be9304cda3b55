mod charts;
mod copy;
mod menu;
mod other_input;
mod recovery;
mod replay;
mod typing;

use super::{Effect, HistoryBox, Msg, update};
use crate::cockpit::fixture::{self, NOW};
use crate::cockpit::quantity::Quantity;
use crate::cockpit::read_error::ReadError;
use crate::cockpit::state::facts::{History, Loading};
use crate::cockpit::state::screen::{Mode, Panel, View, WorkerEnd};
use crate::cockpit::state::shift_progress::ShiftProgress;
use crate::cockpit::state::{Link, State};
use crate::protocol::control::{Request, RunState, StageName, Target, Update};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};

const SIZE: (u16, u16) = (120, 40);
const LOSS: Panel = Panel::Chart(Quantity::Loss);

fn key(code: KeyCode) -> Msg {
    Msg::Key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn letter(letter: char) -> Msg {
    key(KeyCode::Char(letter))
}

fn history_of(asked: u64, history: History) -> Msg {
    Msg::History { asked, history: Ok(HistoryBox(Box::new(history))) }
}

fn sent_requests(effects: &[Effect]) -> Vec<Request> {
    let request = |effect: &Effect| match effect {
        Effect::Send(request) => Some(request.clone()),
        _ => None,
    };
    effects.iter().filter_map(request).collect()
}

/// Returns the requests that a sequence of keys causes, pressed at the pace of someone who reads.
fn press_all(state: &mut State, keys: &[KeyCode]) -> Vec<Request> {
    let press = |code: &KeyCode| {
        update(state, Msg::Tick(state.now_ms + 400));
        sent_requests(&update(state, key(*code)))
    };
    keys.iter().flat_map(press).collect()
}

#[test]
fn a_preview_of_a_command_that_imports_ahead_announces_the_shift() {
    use KeyCode::{Char, Enter, Esc};
    let stand_by = |rung: Option<&str>| Request::StandBy { rung: rung.map(str::to_owned) };
    let mut state = fixture::training(SIZE);
    assert_eq!(press_all(&mut state, &[Char('d'), Esc]), [], "a built-in trainer starts at once");
    let mut status = state.status().unwrap().clone();
    let companion = serde_json::json!({
        "framework": "loop", "version": null, "python": null, "torch": null, "grade": "exact", "reason": null,
        "saves": true, "guards": true, "parameters": null, "epoch_units": null, "unit": null, "world": 1,
        "knobs": {}, "ignored": [], "imports_ahead": true,
    });
    status.companion = Some(serde_json::from_value(companion).unwrap());
    state.facts.set_status(status, NOW);
    let (plain, safe) = (stand_by(Some("plain")), stand_by(Some("safe")));
    assert_eq!(press_all(&mut state, &[Char('d'), Char('d'), Esc]), [plain.clone(), safe, stand_by(None)]);
    let shift = Request::Shift { to: Target::Rung("plain".to_owned()) };
    assert_eq!(press_all(&mut state, &[Char('d'), Enter]), [plain, shift, stand_by(None)]);
}

#[test]
fn each_key_sends_its_request() {
    use KeyCode::{Char, Down, Enter, Esc};
    let rung = |name: &str| Request::Shift { to: Target::Rung(name.to_owned()) };
    let table: [(&[KeyCode], Vec<Request>); 15] = [
        (&[Char('c')], vec![Request::Checkpoint]),
        (&[Char('r')], vec![Request::Restart]),
        (&[Char('p')], vec![Request::Pause]),
        (&[Char('a')], vec![Request::Autopilot { on: true }]),
        (&[Char('d')], vec![]),
        (&[Char('d'), Enter], vec![rung("plain")]),
        (&[Char('u'), Enter], vec![rung("full")]),
        (&[Char('d'), Char('d'), Enter], vec![rung("safe")]),
        // Moving up from the preview of the next rung skips the current one.
        (&[Char('d'), Char('u'), Enter], vec![rung("full")]),
        (&[Char('d'), Down, Down, Down, Enter], vec![rung("safe")]),
        (&[Char('d'), Esc, Enter], vec![]),
        (&[Char('d'), Char('q'), Char('c')], vec![Request::Checkpoint]),
        (&[Char('x')], vec![]),
        (&[Char('x'), Enter], vec![Request::Stop]),
        (&[Char('x'), Esc, Enter], vec![]),
    ];
    for (keys, requests) in table {
        let mut state = fixture::training(SIZE);
        assert_eq!(press_all(&mut state, keys), requests, "{keys:?}");
        assert_eq!(state.screen.mode == Mode::Normal, keys.len() > 1 || !matches!(keys[0], Char('d' | 'x')));
    }
}

#[test]
fn the_pause_key_resumes_a_paused_run() {
    let mut state = fixture::training(SIZE);
    fixture::apply_status(&mut state, fixture::status(RunState::Paused, 700));
    assert_eq!(press_all(&mut state, &[KeyCode::Char('p')]), [Request::Resume]);
}

#[test]
fn a_pause_promises_a_save_only_if_the_worker_saves_when_asked() {
    let pressed = |more: Option<&str>, keys: &[KeyCode]| {
        let mut state = fixture::training(SIZE);
        state.command = more.map(fixture::command::spec);
        assert_eq!(press_all(&mut state, keys), [Request::Pause], "{more:?}");
        state.notice.unwrap().text
    };
    let resumes = "checkpoints: { match: 'out/*' }\nresume: {}\n";
    let pause = &[KeyCode::Char('p')];
    assert!(pressed(None, pause).contains("saves first"));
    assert!(pressed(Some(&format!("{resumes}save: {{ signal: USR1 }}\n")), pause).contains("saves first"));
    let mut lost = fixture::training(SIZE);
    lost.command = Some(fixture::command::spec(""));
    assert_eq!(press_all(&mut lost, pause), []);
    assert!(lost.notice.is_some_and(|notice| notice.refused && notice.text.contains("this would lose 700 steps")));
    // A pause that repeats steps asks first.
    for more in [resumes, "restart: from_start\n"] {
        assert!(!pressed(Some(more), &[KeyCode::Char('p'), KeyCode::Enter]).contains("saves first"), "{more}");
    }
}

#[test]
fn impossible_actions_are_refused_with_a_reason() {
    let refused = |state: &mut State, code: char| {
        assert_eq!(press_all(state, &[KeyCode::Char(code)]), []);
        let notice = state.notice.clone().unwrap();
        assert!(notice.refused && state.screen.mode == Mode::Normal, "{notice:?}");
        notice.text
    };
    let mut lowest = fixture::training(SIZE);
    let mut status = fixture::status(RunState::Training, 700);
    (status.rung, status.rung_name) = (3, "safe".to_owned());
    fixture::apply_status(&mut lowest, status);
    assert_eq!(refused(&mut lowest, 'd'), "safe is the safest rung");
    for code in ['d', 'u', 'c', 'r', 'p', 'a', 'x'] {
        assert!(refused(&mut fixture::orphaned(SIZE), code).contains("no keeper answers"));
        assert!(refused(&mut fixture::connected(SIZE), code).contains("not connected"));
        let mut over = fixture::training(SIZE);
        fixture::apply_status(&mut over, fixture::status(RunState::Stopped, 700));
        assert!(refused(&mut over, code).contains("downshift resume digits-20261120-140115"));
    }
}

#[test]
fn closing_the_cockpit_sends_no_request() {
    let mut state = fixture::training(SIZE);
    state.screen.mode = Mode::Help { from: 0 };
    assert_eq!(update(&mut state, letter('q')), [Effect::Redraw], "as any box, the keys close first");
    assert_eq!(update(&mut state, letter('q')), [Effect::Quit]);
    // Ctrl-C closes from every mode and types nothing into the filter.
    for mode in
        [Mode::Normal, Mode::Help { from: 0 }, Mode::WorkerEnd(WorkerEnd::Stop), Mode::Filter, Mode::Preview { to: 2 }]
    {
        let mut state = fixture::training(SIZE);
        state.screen.mode = mode;
        let event = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(update(&mut state, Msg::Key(event)), [Effect::Quit]);
    }
}

#[test]
fn views_and_panels_are_reached_by_keys_and_mouse() {
    let mut state = fixture::training(SIZE);
    for (code, view) in
        [('2', View::Charts), ('3', View::Ladder), ('4', View::Log), ('5', View::Health), ('6', View::Runs)]
    {
        update(&mut state, letter(code));
        assert_eq!(state.screen.view, view);
    }
    update(&mut state, key(KeyCode::Esc));
    assert_eq!((state.screen.view, state.screen.focus), (View::Overview, LOSS));
    update(&mut state, key(KeyCode::BackTab));
    assert_eq!(state.screen.focus, Panel::Journal);
    update(&mut state, key(KeyCode::Tab));
    assert_eq!(state.screen.focus, LOSS);
    update(&mut state, key(KeyCode::Enter));
    assert_eq!((state.screen.view, state.screen.full), (View::Charts, Some(Quantity::Loss)));
    update(&mut state, key(KeyCode::Enter));
    assert_eq!((state.screen.view, state.screen.full), (View::Charts, None));
    update(&mut state, letter('1'));
    let mouse = |kind, column, row| Msg::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE });
    update(&mut state, mouse(MouseEventKind::Down(MouseButton::Left), 100, 35));
    assert_eq!(state.screen.focus, Panel::Journal);
    update(&mut state, mouse(MouseEventKind::ScrollUp, 20, 10));
    assert!(!state.screen.chart.is_fit());
    assert_eq!(update(&mut state, mouse(MouseEventKind::Moved, 20, 10)), []);
    assert_eq!(update(&mut state, mouse(MouseEventKind::ScrollUp, 5000, 10)), []);
}

#[test]
fn a_rung_can_be_chosen_on_the_ladder() {
    let mut state = fixture::training(SIZE);
    state.screen.focus = Panel::Ladder;
    let requests = press_all(&mut state, &[KeyCode::Down, KeyCode::Down, KeyCode::Enter, KeyCode::Enter]);
    assert_eq!(requests, [Request::Shift { to: Target::Rung("safe".to_owned()) }]);
}

#[test]
fn the_filter_takes_letters_that_are_keys_elsewhere() {
    let mut state = fixture::training(SIZE);
    assert_eq!(
        press_all(&mut state, &[KeyCode::Char('/'), KeyCode::Char('d'), KeyCode::Char('x'), KeyCode::Char('q')]),
        []
    );
    update(&mut state, Msg::Paste("ed\n".to_owned()));
    assert_eq!((state.screen.filter.as_str(), state.screen.view), ("dxqed", View::Log));
    update(&mut state, key(KeyCode::Backspace));
    update(&mut state, key(KeyCode::Enter));
    assert_eq!((state.screen.filter.as_str(), state.screen.mode), ("dxqe", Mode::Normal));
    update(&mut state, letter('/'));
    update(&mut state, key(KeyCode::Esc));
    assert_eq!(state.screen.filter, "");
}

#[test]
fn the_history_is_read_once_the_keeper_spoke_and_joins_without_a_gap() {
    let mut state = fixture::connected(SIZE);
    let status = Update::Status(Box::new(fixture::status(RunState::Training, 5)));
    assert!(update(&mut state, Msg::Keeper(status.clone())).contains(&Effect::LoadHistory(1)));
    assert!(!update(&mut state, Msg::Keeper(status)).contains(&Effect::LoadHistory(1)));
    let rows =
        |steps: std::ops::RangeInclusive<u64>| steps.map(|step| fixture::step_row(1, step, NOW)).collect::<Vec<_>>();
    // Rows 3 to 5 arrive while the store, which holds 1 to 4 by then, is being read.
    update(&mut state, Msg::Keeper(Update::Steps { rows: rows(3..=5) }));
    assert!(state.facts.series.is_empty());
    let history = History::default().with_steps(rows(1..=4));
    update(&mut state, history_of(1, history));
    assert_eq!((state.facts.series.len(), state.facts.series.ends()), (5, Some((1, 5))));
    update(&mut state, Msg::Keeper(Update::Steps { rows: rows(5..=6) }));
    assert_eq!(state.facts.series.len(), 6);
}

#[test]
fn a_command_that_goes_back_has_its_history_read_again() {
    let mut state = fixture::connected(SIZE);
    let status = Update::Status(Box::new(fixture::status(RunState::Training, 5)));
    update(&mut state, Msg::Keeper(status.clone()));
    let rows = |steps: std::ops::RangeInclusive<u64>| steps.map(|step| fixture::step_row(1, step, NOW));
    update(&mut state, history_of(1, History::default().with_steps(rows(1..=9))));
    update(&mut state, Msg::Keeper(Update::WentBack { step: 4 }));
    assert!(update(&mut state, Msg::Keeper(status)).contains(&Effect::LoadHistory(2)));
    update(&mut state, Msg::Keeper(Update::Steps { rows: rows(5..=6).collect() }));
    update(&mut state, history_of(2, History::default().with_steps(rows(1..=4))));
    assert_eq!(state.facts.series.ends(), Some((1, 6)));
}

#[test]
fn without_a_keeper_the_history_alone_is_shown() {
    let mut state = State::new(fixture::ladder(), crate::config::knobs::Watch::default(), SIZE, NOW, 0);
    assert!(update(&mut state, Msg::KeeperLost("no such file".to_owned())).contains(&Effect::LoadHistory(1)));
    assert!(!update(&mut state, Msg::KeeperLost("no such file".to_owned())).contains(&Effect::LoadHistory(1)));
    let mut history = fixture::history(100, false);
    history.status = Some(fixture::status(RunState::Finished, 100));
    update(&mut state, history_of(1, history));
    assert_eq!((state.run_state(), state.facts.series.len()), (Some(RunState::Finished), 100));
    assert!(!state.is_orphaned());
}

#[test]
fn an_unreadable_store_is_reported_and_not_fatal() {
    let mut state = fixture::connected(SIZE);
    fixture::apply_status(&mut state, fixture::status(RunState::Training, 5));
    update(&mut state, Msg::History { asked: 1, history: Err(ReadError::Store("file is not a database".to_owned())) });
    assert_eq!(state.facts.loading, Loading::Done);
    update(&mut state, Msg::Keeper(Update::Steps { rows: vec![fixture::step_row(1, 6, NOW)] }));
    assert_eq!(state.facts.series.len(), 1);
}

#[test]
fn a_keeper_that_comes_back_is_read_again() {
    let mut state = fixture::orphaned(SIZE);
    update(&mut state, Msg::KeeperBack);
    assert_eq!((&state.link, &state.facts.loading), (&Link::Live, &Loading::Needed));
    let status = Update::Status(Box::new(fixture::status(RunState::Training, 900)));
    assert!(update(&mut state, Msg::Keeper(status)).contains(&Effect::LoadHistory(2)));
    // A reply to the request sent before the keeper was lost is stale.
    update(&mut state, history_of(1, fixture::history(800, false)));
    assert_eq!(state.facts.series.len(), 700);
    update(&mut state, history_of(2, fixture::history(900, false)));
    assert_eq!(state.facts.series.len(), 900);
}

#[test]
fn the_bell_rings_for_what_needs_attention_and_not_twice_at_once() {
    let mut state = fixture::training(SIZE);
    let status = |state| Msg::Keeper(Update::Status(Box::new(fixture::status(state, 700))));
    assert!(update(&mut state, status(RunState::NeedsPerson)).contains(&Effect::Bell));
    assert!(!update(&mut state, status(RunState::NeedsPerson)).contains(&Effect::Bell));
    update(&mut state, status(RunState::Training));
    assert!(!update(&mut state, status(RunState::Finished)).contains(&Effect::Bell));
    update(&mut state, Msg::Tick(NOW + 60_000));
    update(&mut state, status(RunState::Training));
    assert!(!update(&mut state, Msg::KeeperLost("gone".to_owned())).contains(&Effect::Bell));
    assert!(update(&mut state, Msg::StoredStatus(None)).contains(&Effect::Bell), "nothing brings the keeper back");
}

#[test]
fn time_alone_redraws_once_a_second_and_ten_times_while_something_is_under_way() {
    let redraws = |state: &mut State| {
        update(state, Msg::Tick(NOW + 1000));
        let effects = (1..=2000).flat_map(|ms| update(state, Msg::Tick(NOW + 1000 + ms)));
        effects.filter(|effect| *effect == Effect::Redraw).count()
    };
    assert_eq!(redraws(&mut fixture::training(SIZE)), 2);
    assert_eq!(redraws(&mut fixture::shifting(SIZE)), 20);
}

#[test]
fn a_shift_shows_its_box_then_its_proof() {
    let mut state = fixture::shifting(SIZE);
    assert!(state.shift_progress.is_shown(state.now_ms));
    // A new stage restarts the stage's clock, not the box's.
    let mut status = fixture::status(RunState::Starting, 700);
    let done = [(StageName::Save, 1), (StageName::Stop, 1), (StageName::AwaitVram, 1), (StageName::Load, 310)];
    status.passage = Some(fixture::shift_stages(&done, Some(StageName::FirstStep)));
    fixture::apply_status(&mut state, status);
    assert_eq!(state.shift_progress, ShiftProgress::Running { stage_since_ms: NOW + 300, stages: 5, hidden: false });
    let mut state = fixture::shifted(SIZE);
    assert!(state.shift_progress.is_shown(state.now_ms) && state.shift_progress.is_news(state.now_ms));
    update(&mut state, Msg::Tick(NOW + 5_000));
    assert!(!state.shift_progress.is_shown(state.now_ms) && state.shift_progress.is_news(state.now_ms));
    update(&mut state, Msg::Tick(NOW + 10_000));
    assert!(!state.shift_progress.is_news(state.now_ms));
    // Esc closes the box early.
    let mut state = fixture::shifting(SIZE);
    update(&mut state, key(KeyCode::Esc));
    assert!(!state.shift_progress.is_shown(state.now_ms));
}

#[test]
fn an_unbound_key_changes_nothing() {
    let mut state = fixture::training(SIZE);
    let before = state.screen.clone();
    assert_eq!(update(&mut state, letter('w')), []);
    assert_eq!(state.screen, before);
}

#[test]
fn evaluations_of_a_stretch_that_was_redone_are_gone() {
    let eval = |attempt, step| {
        let eval = crate::protocol::worker::Eval { step, samples: 0, loss: Some(1.0), ..Default::default() };
        Update::Eval(crate::protocol::control::EvalRow { attempt, time_ms: NOW, eval })
    };
    let rows = |attempt, steps: std::ops::RangeInclusive<u64>| Update::Steps {
        rows: steps.map(|step| fixture::step_row(attempt, step, NOW)).collect(),
    };
    let steps = |state: &State| state.facts.evals.keys().copied().collect::<Vec<_>>();
    let mut state = fixture::young(SIZE);
    for said in [rows(1, 1..=10), eval(1, 5), eval(1, 10), rows(2, 8..=9)] {
        update(&mut state, Msg::Keeper(said));
    }
    assert_eq!(steps(&state), [5]);
    update(&mut state, Msg::Keeper(eval(1, 10)));
    update(&mut state, Msg::Keeper(eval(2, 9)));
    assert_eq!(steps(&state), [5, 9]);
}

#[test]
fn no_key_answers_an_invisible_question() {
    use KeyCode::{Char, Down, Enter};
    for size in [(20, 5), (40, 12), (200, 15), (59, 60)] {
        for keys in [&[Char('d'), Enter][..], &[Char('x'), Enter], &[Char(':'), Down, Enter]] {
            let mut state = fixture::training(size);
            assert_eq!(press_all(&mut state, keys), [], "{keys:?} at {size:?}");
            assert!(state.notice.as_ref().is_some_and(|notice| notice.text.contains("60×16")), "{keys:?} at {size:?}");
        }
        // A box that was open before the window shrank.
        for opened in ['d', 'x', ':'] {
            let mut state = fixture::training(SIZE);
            update(&mut state, letter(opened));
            update(&mut state, Msg::Resize(size.0, size.1));
            assert_eq!((state.screen.mode, press_all(&mut state, &[Enter])), (Mode::Normal, vec![]), "{opened}");
        }
    }
}
