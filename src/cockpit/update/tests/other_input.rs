//! Input beyond single keys: the palette, the mouse, the replay, other runs.

use super::{SIZE, key, letter, press_all, sent_requests};
use crate::cockpit::fixture;
use crate::cockpit::state::State;
use crate::cockpit::state::screen::{Mode, WorkerEnd};
use crate::cockpit::update::{Effect, HistoryBox, Msg, update};
use crate::protocol::control::{Request, RunState, Target};
use crossterm::event::{KeyCode, KeyModifiers, MouseButton, MouseEvent, MouseEventKind};

#[test]
fn a_cockpit_to_look_only_asks_nothing() {
    for code in ['d', 'u', 'c', 'r', 'p', 'a', 'x'] {
        let mut state = fixture::training(SIZE);
        state.read_only = true;
        assert_eq!(press_all(&mut state, &[KeyCode::Char(code), KeyCode::Enter]), [], "{code}");
        assert!(state.notice.unwrap().text.contains("--read-only"));
    }
}

#[test]
fn the_palette_finds_and_does() {
    use KeyCode::{Backspace, Char, Down, Enter, Esc};
    let mut state = fixture::training(SIZE);
    let typed = [Char(':'), Char('c'), Char('k'), Char('p'), Char('t'), Enter];
    assert_eq!(press_all(&mut state, &typed), [Request::Checkpoint]);
    assert_eq!(state.screen.mode, Mode::Normal);
    // Letters are plain text there, whatever they trigger elsewhere.
    assert_eq!(press_all(&mut state, &[Char(':'), Char('x'), Backspace, Down, Down, Esc]), []);
    // Actions that ask for confirmation ask there too.
    assert_eq!(press_all(&mut state, &[Char(':'), Char('s'), Char('t'), Char('o'), Char('p'), Enter]), []);
    assert_eq!(state.screen.mode, Mode::WorkerEnd(WorkerEnd::Stop));
    assert_eq!(press_all(&mut state, &[Enter]), [Request::Stop]);
}

fn click(state: &mut State, button: MouseButton, column: u16, row: u16) -> Vec<Effect> {
    let kind = MouseEventKind::Down(button);
    update(state, Msg::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE }))
}

/// Returns the position of a text on the screen.
fn find_text(state: &State, words: &str) -> (u16, u16) {
    let mut terminal = ratatui::Terminal::new(ratatui::backend::TestBackend::new(SIZE.0, SIZE.1)).unwrap();
    let theme = crate::theme::Theme::plain();
    terminal.draw(|frame| crate::cockpit::view::render(frame, state, &theme)).unwrap();
    let buffer = terminal.backend().buffer();
    // Search from below: text in the last line may also appear in the journal.
    for row in (0..SIZE.1).rev() {
        let line: Vec<&str> = (0..SIZE.0).map(|column| buffer[(column, row)].symbol()).collect();
        if let Some(place) = (0..line.len()).find(|place| line[*place..].concat().starts_with(words)) {
            return (u16::try_from(place).unwrap(), row);
        }
    }
    panic!("no {words:?} on the screen");
}

#[test]
fn the_mouse_does_what_the_words_under_it_say() {
    let mut state = fixture::training(SIZE);
    let (column, row) = find_text(&state, "d down");
    click(&mut state, MouseButton::Left, column + 3, row);
    assert_eq!(state.screen.mode, Mode::Preview { to: 2 });
    let (column, row) = find_text(&state, "safer rung");
    click(&mut state, MouseButton::Left, column, row);
    assert_eq!(state.screen.mode, Mode::Preview { to: 3 });
    let (column, row) = find_text(&state, "Enter shift");
    let effects = click(&mut state, MouseButton::Left, column + 7, row);
    assert_eq!(sent_requests(&effects), [Request::Shift { to: Target::Rung("safe".to_owned()) }]);
    // Stop asks for confirmation; a click outside the box declines.
    let (column, row) = find_text(&state, "x stop");
    click(&mut state, MouseButton::Left, column, row);
    assert_eq!(state.screen.mode, Mode::WorkerEnd(WorkerEnd::Stop));
    assert_eq!(sent_requests(&click(&mut state, MouseButton::Left, 1, 1)), []);
    assert_eq!(state.screen.mode, Mode::Normal);
    // The right button opens the palette; a click picks an action.
    click(&mut state, MouseButton::Right, 30, 12);
    let (column, row) = find_text(&state, "save a checkpoint now");
    assert_eq!(sent_requests(&click(&mut state, MouseButton::Left, column, row)), [Request::Checkpoint]);
}

#[test]
fn the_past_is_read_one_moment_at_a_time_and_the_newest_request_wins() {
    let mut state = fixture::training(SIZE);
    let read = |effects: &[Effect]| -> Vec<i64> {
        effects
            .iter()
            .filter_map(|effect| match effect {
                Effect::LoadMoment(at) => Some(*at),
                _ => None,
            })
            .collect()
    };
    let first = read(&update(&mut state, letter('g')))[0];
    // While one moment is being read, further requests only change which one is next.
    for _ in 0..5 {
        assert!(read(&update(&mut state, key(KeyCode::Left))).is_empty());
    }
    let history = |steps| Ok(HistoryBox(Box::new(fixture::history(steps, false))));
    let next = read(&update(&mut state, Msg::Moment { at_ms: first, history: history(700) }));
    assert!(next.len() == 1 && next[0] < first);
    assert!(update(&mut state, Msg::Moment { at_ms: first, history: history(700) }).is_empty(), "stale");
    update(&mut state, Msg::Moment { at_ms: next[0], history: history(440) });
    let past = state.replay.as_ref().unwrap().shown.as_ref().unwrap();
    let status = past.status().unwrap();
    assert_eq!((status.step, status.rung, past.moment), (440, 1, Some(next[0])));
    assert_eq!((status.rungs[0].steps, status.rungs[1].steps, status.rungs[2].steps), (430, 10, 0));
    assert_eq!(press_all(&mut state, &[KeyCode::Char('c')]), []);
    assert!(state.notice.as_ref().unwrap().text.contains("this is the past"));
    update(&mut state, key(KeyCode::Esc));
    assert!(state.replay.is_none());
    assert_eq!(press_all(&mut state, &[KeyCode::Char('c')]), [Request::Checkpoint]);
}

#[test]
fn runs_are_listed_marked_and_opened() {
    use crate::cockpit::errand::Errand;
    use crate::store::run_summary::RunSummary;
    let mut state = fixture::training(SIZE);
    assert!(update(&mut state, letter('6')).contains(&Effect::ListRuns));
    let row = |name: &str| {
        let mut status = fixture::status(RunState::Finished, 10);
        name.clone_into(&mut status.run);
        RunSummary { name: name.to_owned(), status: Some(status), ..RunSummary::default() }
    };
    let here = state.run_name().to_owned();
    update(&mut state, Msg::Runs(vec![row(&here), row("other-1")]));
    let effects = update(&mut state, key(KeyCode::Down));
    assert!(effects.contains(&Effect::LoadOther("other-1".to_owned(), false)), "{effects:?}");
    let effects = update(&mut state, letter(' '));
    assert!(effects.contains(&Effect::LoadOther("other-1".to_owned(), true)), "{effects:?}");
    assert_eq!(update(&mut state, key(KeyCode::Enter)), [Effect::Leave(Errand::Open("other-1".to_owned()))]);
    // A run that disappears loses its mark.
    update(&mut state, Msg::Runs(vec![row(&here)]));
    assert!(state.runs.marked.is_empty() && state.runs.cursor() == 0);
}

#[test]
fn esc_and_a_key_in_quick_succession_are_two_keys() {
    let mut state = fixture::training(SIZE);
    update(&mut state, letter('d'));
    let event = crossterm::event::KeyEvent::new(KeyCode::Char('c'), KeyModifiers::ALT);
    assert_eq!(sent_requests(&update(&mut state, Msg::Key(event))), [Request::Checkpoint]);
    assert_eq!(state.screen.mode, Mode::Normal);
}
