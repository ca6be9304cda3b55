//! The keeper dies; its parent restarts it, or is dead too.

use super::{SIZE, key, letter, press_all};
use crate::cockpit::fixture::{self, NOW};
use crate::cockpit::state::requests::Refusal;
use crate::cockpit::state::screen::View;
use crate::cockpit::state::{Link, State};
use crate::cockpit::update::{Effect, Msg, update};
use crate::protocol::control::{RunState, Status};
use crossterm::event::KeyCode;

fn stored(state: RunState) -> Msg {
    Msg::StoredStatus(Some(Box::new(fixture::status(state, 700))))
}

fn lost_keeper() -> State {
    let mut state = fixture::training(SIZE);
    let effects = update(&mut state, Msg::KeeperLost("connection refused".to_owned()));
    assert!(effects.contains(&Effect::LoadStatus) && !effects.contains(&Effect::Bell), "{effects:?}");
    assert!(!state.is_orphaned(), "nothing is known yet");
    state
}

#[test]
fn a_keeper_that_is_restarted_raises_no_alarm() {
    let mut state = lost_keeper();
    assert!(!update(&mut state, stored(RunState::Recovering)).contains(&Effect::Bell));
    assert!(state.is_recovering() && !state.is_orphaned());
    // No keeper answers requests; everything else works.
    for code in ['d', 'u', 'c', 'r', 'p', 'a', 'x'] {
        assert_eq!(press_all(&mut state, &[KeyCode::Char(code)]), []);
        assert_eq!(state.notice.clone().unwrap().text, Refusal::KeeperRestarting.to_string(), "{code}");
    }
    update(&mut state, letter('2'));
    assert_eq!(state.screen.view, View::Charts);
    // No dialog takes the key.
    update(&mut state, key(KeyCode::Esc));
    assert_eq!(state.screen.view, View::Overview);
    update(&mut state, letter('c'));
    update(&mut state, Msg::KeeperBack);
    assert_eq!(state.notice, None, "the refusal no longer holds");
    fixture::apply_status(&mut state, fixture::status(RunState::Training, 701));
    assert_eq!((&state.link, state.request_refusal()), (&Link::Live, None));
}

#[test]
fn a_keeper_that_is_not_restarted_raises_an_alarm() {
    for status in [None, Some(RunState::Training), Some(RunState::Interrupted), Some(RunState::Stopped)] {
        let mut state = lost_keeper();
        let stored = status.map(|run| Box::new(fixture::status(run, 700)));
        assert!(update(&mut state, Msg::StoredStatus(stored)).contains(&Effect::Bell), "{status:?}");
        assert_eq!(state.is_orphaned(), status != Some(RunState::Stopped), "{status:?}");
    }
}

#[test]
fn a_recovery_that_fails_asks_for_attention() {
    let mut state = lost_keeper();
    update(&mut state, stored(RunState::Recovering));
    state.screen.trouble_hidden = true;
    update(&mut state, Msg::Tick(NOW + 600_000));
    assert!(update(&mut state, Msg::KeeperLost("connection refused".to_owned())).contains(&Effect::LoadStatus));
    let effects = update(&mut state, stored(RunState::NeedsPerson));
    assert!(effects.contains(&Effect::Bell) && effects.contains(&Effect::ReadLog), "{effects:?}");
    assert!(state.is_broken() && !state.screen.trouble_hidden);
    update(&mut state, letter('4'));
    assert!(state.screen.view == View::Log && state.screen.trouble_hidden, "a view that was asked for is not covered");
}

#[test]
fn a_status_read_late_does_not_replace_that_of_a_live_keeper() {
    let mut state = lost_keeper();
    update(&mut state, Msg::KeeperBack);
    let live: Status = fixture::status(RunState::Training, 710);
    fixture::apply_status(&mut state, live);
    update(&mut state, stored(RunState::Recovering));
    assert_eq!((state.run_state(), state.status().unwrap().step), (Some(RunState::Training), 710));
}
