//! The palette: search results and key handling.

use super::Effect;
use super::act::act;
use super::keys::close;
use crate::cockpit::action::{Action, Entry, TABLE};
use crate::cockpit::state::State;
use crate::cockpit::state::screen::Mode;
use crossterm::event::KeyCode;

/// Maximum length of the search text in characters.
const SEARCH: usize = 60;

/// Opens the palette.
pub fn open(state: &mut State) -> Vec<Effect> {
    state.screen.search.clear();
    state.screen.mode = Mode::Palette { chosen: 0 };
    vec![Effect::Redraw]
}

/// Returns the actions that match a search, best first; an empty search returns all of them in help order.
#[must_use]
pub fn found(search: &str) -> Vec<&'static Entry> {
    let mut scored: Vec<_> = TABLE
        .iter()
        .filter(|entry| entry.action != Action::Palette)
        .filter_map(|entry| {
            let more = |found: Option<(bool, i32)>, by: i32| found.map(|(whole, score)| (whole, score + by));
            let named = more(score(entry.name, search), 20);
            let told = score(entry.help, search).max(more(score(entry.word, search), 10));
            let (whole, score) = named.max(told)?;
            Some((whole, score, entry))
        })
        .collect();
    // Scattered letters are only a guess; next to a contiguous match they mislead.
    let whole = scored.iter().any(|(whole, ..)| *whole);
    let mut scored: Vec<_> =
        scored.drain(..).filter(|(held, ..)| *held || !whole).map(|(_, score, entry)| (score, entry)).collect();
    // The sort is stable: equal scores keep help order.
    scored.sort_by_key(|(score, _)| std::cmp::Reverse(*score));
    scored.into_iter().map(|(_, entry)| entry).collect()
}

/// Scores how well the letters occur in a text, in order: word starts and consecutive letters count
/// more. Returns `None` if one is missing; the flag is true if every letter starts a
/// word or directly follows the previous match.
fn score(text: &str, search: &str) -> Option<(bool, i32)> {
    let text: Vec<char> = text.to_lowercase().chars().collect();
    let (mut at, mut total, mut last, mut whole) = (0, 0, None, true);
    for letter in search.to_lowercase().chars().filter(|letter| !letter.is_whitespace()) {
        let rest = text.get(at..)?;
        let begins =
            |place: &usize| text[at + place] == letter && (at + place == 0 || !text[at + place - 1].is_alphanumeric());
        let follows = (last == at.checked_sub(1) && rest.first() == Some(&letter)).then_some(0);
        let place = follows
            .or_else(|| (0..rest.len()).find(begins))
            .or_else(|| rest.iter().position(|other| *other == letter))?;
        total += if follows.is_some() && last.is_some() {
            8
        } else if begins(&place) {
            6
        } else {
            whole = false;
            1
        };
        total -= i32::try_from(place).unwrap_or(i32::MAX).min(3);
        last = Some(at + place);
        at += place + 1;
    }
    Some((whole, total))
}

/// Handles a key while the palette is open.
pub fn typed(state: &mut State, code: KeyCode, action: Option<Action>, chosen: usize) -> Vec<Effect> {
    let last = found(&state.screen.search).len().saturating_sub(1);
    let mut choose = |chosen: usize| {
        state.screen.mode = Mode::Palette { chosen };
        vec![Effect::Redraw]
    };
    match (code, action) {
        (KeyCode::Up | KeyCode::BackTab, _) => choose(chosen.saturating_sub(1)),
        (KeyCode::Down | KeyCode::Tab, _) => choose((chosen + 1).min(last)),
        (KeyCode::PageUp, _) => choose(chosen.saturating_sub(8)),
        (KeyCode::PageDown, _) => choose((chosen + 8).min(last)),
        (KeyCode::Esc, _) => close(state),
        (KeyCode::Enter, _) => take(state, chosen),
        (KeyCode::Backspace, _) => {
            state.screen.search.pop();
            state.screen.mode = Mode::Palette { chosen: 0 };
            vec![Effect::Redraw]
        }
        (KeyCode::Char(letter), _) if state.screen.search.chars().count() < SEARCH => {
            state.screen.search.push(letter);
            state.screen.mode = Mode::Palette { chosen: 0 };
            vec![Effect::Redraw]
        }
        _ => Vec::new(),
    }
}

/// Performs the action at this position in the list.
pub fn take(state: &mut State, chosen: usize) -> Vec<Effect> {
    let entry = found(&state.screen.search).get(chosen).copied();
    state.screen.mode = Mode::Normal;
    entry.map_or_else(|| vec![Effect::Redraw], |entry| act(state, entry.action))
}

#[cfg(test)]
mod tests {
    use super::found;
    use crate::cockpit::action::{Action, TABLE};
    use crate::cockpit::state::screen::View;

    #[test]
    fn a_few_letters_find_an_action() {
        for (search, action) in [
            ("stop", Action::Stop),
            ("shd", Action::ShiftDown),
            ("shift up", Action::ShiftUp),
            ("theme", Action::Theme),
            ("log scale", Action::LogScale),
            ("ckpt", Action::Checkpoint),
            ("runs", Action::View(View::Runs)),
            ("smo", Action::Smoothing),
        ] {
            assert_eq!(found(search).first().map(|entry| entry.action), Some(action), "{search}");
        }
        assert_eq!(found("").len(), TABLE.len() - 1);
        assert!(found("zzzz").is_empty());
        assert!(found("chec").iter().all(|entry| entry.action != Action::Quit));
    }
}
