//! Moves through the past: one moment is read at a time; the latest request is read next.

use super::message::Effect;
use crate::cockpit::action::{Action, ChartAction};
use crate::cockpit::read_error::ReadError;
use crate::cockpit::state::State;
use crate::cockpit::state::facts::History;
use crate::cockpit::state::replay::{Replay, replay_range};

/// Handles the replay key: opens the replay at the run's end, or closes it.
pub fn toggle_replay(state: &mut State) -> Vec<Effect> {
    if state.replay.take().is_some() {
        return vec![Effect::Redraw];
    }
    let Some((_, last)) = replay_range(state) else {
        state.show_notice("nothing to replay yet", true);
        return vec![Effect::Redraw];
    };
    // The keys of the replay take the place of a notice.
    state.notice = None;
    state.replay = Some(Replay { at_ms: last, playing: false, reading: None, error: None, shown: None });
    read_moment(state)
}

/// Handles an action during the replay; returns `None` if the action keeps its usual meaning.
pub fn perform_replay_action(state: &mut State, action: Action) -> Option<Vec<Effect>> {
    state.replay.as_ref()?;
    let (first, last) = replay_range(state)?;
    let hundredth = ((last - first) / 100).max(1);
    let by = match action {
        Action::Chart(ChartAction::Left) => -hundredth,
        Action::Chart(ChartAction::Right) => hundredth,
        Action::PageUp => -10 * hundredth,
        Action::PageDown => 10 * hundredth,
        Action::Back | Action::Replay => return Some(toggle_replay(state)),
        Action::Toggle => {
            let replay = state.replay.as_mut()?;
            replay.playing = !replay.playing;
            if replay.playing && replay.at_ms >= last {
                replay.at_ms = first;
            }
            return Some(read_moment(state));
        }
        _ => return None,
    };
    Some(move_moment(state, by))
}

fn move_moment(state: &mut State, by: i64) -> Vec<Effect> {
    let Some((first, last)) = replay_range(state) else { return Vec::new() };
    if let Some(replay) = &mut state.replay {
        replay.at_ms = replay.at_ms.saturating_add(by).clamp(first, last);
        replay.playing &= replay.at_ms < last;
    }
    read_moment(state)
}

fn read_moment(state: &mut State) -> Vec<Effect> {
    let mut effects = vec![Effect::Redraw];
    if let Some(replay) = &mut state.replay
        && replay.reading.is_none()
        && replay.shown.as_ref().is_none_or(|shown| shown.moment != Some(replay.at_ms))
    {
        replay.reading = Some(replay.at_ms);
        effects.push(Effect::LoadMoment(replay.at_ms));
    }
    effects
}

/// Shows a moment that was read; reads the next one if the user moved on meanwhile.
pub fn show_moment(state: &mut State, at_ms: i64, history: Result<History, ReadError>) -> Vec<Effect> {
    if state.replay.as_ref().is_none_or(|replay| replay.reading != Some(at_ms)) {
        return Vec::new();
    }
    let past = history.map(|history| Box::new(state.at_moment(at_ms, history)));
    if let Some(replay) = &mut state.replay {
        replay.reading = None;
        match past {
            Ok(past) => (replay.shown, replay.error) = (Some(past), None),
            Err(why) => (replay.playing, replay.error) = (false, Some(why)),
        }
        if replay.error.is_some() {
            return vec![Effect::Redraw];
        }
    }
    read_moment(state)
}

/// Advances a replay that is playing: a whole run takes half a minute, whatever its length.
pub fn advance_replay(state: &mut State) -> Vec<Effect> {
    let playing = state.replay.as_ref().is_some_and(|replay| replay.playing && replay.reading.is_none());
    match replay_range(state) {
        Some((first, last)) if playing => move_moment(state, ((last - first) / 120).max(1)),
        _ => Vec::new(),
    }
}
