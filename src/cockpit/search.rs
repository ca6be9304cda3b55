//! Finds actions by a few letters of their name, label or help, as the palette does.

use super::action::{Action, Entry, TABLE};

/// Returns the actions that match a search, best first; an empty search returns all of them in help order.
#[must_use]
pub fn matching_actions(search: &str) -> Vec<&'static Entry> {
    let mut scored: Vec<_> = TABLE
        .iter()
        .filter(|entry| entry.action != Action::Palette)
        .filter_map(|entry| {
            let more = |found: Option<(bool, i32)>, by: i32| found.map(|(whole, score)| (whole, score + by));
            let named = more(match_score(entry.name, search), 20);
            let described = match_score(entry.help, search).max(more(match_score(entry.label, search), 10));
            let (whole, score) = named.max(described)?;
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
fn match_score(text: &str, search: &str) -> Option<(bool, i32)> {
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

#[cfg(test)]
mod tests {
    use super::matching_actions;
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
            assert_eq!(matching_actions(search).first().map(|entry| entry.action), Some(action), "{search}");
        }
        assert_eq!(matching_actions("").len(), TABLE.len() - 1);
        assert!(matching_actions("zzzz").is_empty());
        assert!(matching_actions("chec").iter().all(|entry| entry.action != Action::Quit));
    }
}
