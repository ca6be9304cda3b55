//! Finds actions by a few letters of their name, label, help, or another word for them, as the palette does.

use super::action::{Action, ActionEntry, ChartAction, TABLE};
use super::chart_picture::PictureFormat;
use super::state::screen::View;

/// Other words that users type for an action.
const SYNONYMS: &[(Action, &[&str])] = &[
    (Action::Quit, &["quit", "exit", "leave", "detach"]),
    (Action::Stop, &["end", "abort", "cancel", "kill", "terminate"]),
    (Action::Pause, &["resume", "continue", "unpause", "free memory"]),
    (Action::Checkpoint, &["save", "snapshot"]),
    (Action::ShiftDown, &["safer", "slower", "less memory"]),
    (Action::ShiftUp, &["faster"]),
    (Action::Restart, &["reload", "again"]),
    (Action::Accept, &["approve", "yes", "confirm"]),
    (Action::Copy, &["clipboard", "yank"]),
    (Action::Sooner, &["move up", "reorder", "first"]),
    (Action::Later, &["move down", "reorder", "last"]),
    (Action::WriteChart(PictureFormat::Svg), &["save picture", "plot", "image", "download", "write"]),
    (Action::WriteChart(PictureFormat::Png), &["save picture", "plot", "image", "screenshot", "write"]),
    (
        Action::View(View::Runs),
        &["delete", "resume", "branch", "archive", "list", "experiments", "switch run", "queue"],
    ),
    (Action::View(View::Log), &["output", "stdout", "errors", "events", "history"]),
    (Action::View(View::Health), &["temperature", "memory", "vram", "nvidia-smi", "disk"]),
    (Action::View(View::Charts), &["metrics", "plots", "graphs", "curves"]),
    (Action::View(View::Ladder), &["rungs", "presets"]),
    (Action::View(View::Overview), &["home", "dashboard"]),
    (Action::Filter, &["search", "find", "grep"]),
    (Action::Replay, &["time travel", "rewind", "past", "history"]),
    (Action::Chart(ChartAction::Fit), &["reset zoom", "zoom all"]),
    (Action::Chart(ChartAction::Cursor), &["crosshair", "read", "inspect"]),
    (Action::Chart(ChartAction::Follow), &["live", "freeze", "tail"]),
    (Action::Chart(ChartAction::Smoothing), &["average", "ema"]),
    (Action::Theme, &["dark", "light", "colors", "colours"]),
    (Action::Help, &["shortcuts", "bindings", "manual"]),
    (Action::Repaint, &["refresh", "clear"]),
    (Action::Suspend, &["background", "shell"]),
];

/// Returns the other words for an action.
fn synonyms(action: Action) -> impl Iterator<Item = &'static str> {
    SYNONYMS.iter().filter(move |(known, _)| *known == action).flat_map(|(_, words)| words.iter().copied())
}

/// Returns the actions that match a search, best first; an empty search returns all of them in help order.
#[must_use]
pub fn matching_actions(search: &str) -> Vec<&'static ActionEntry> {
    let mut scored: Vec<_> = TABLE
        .iter()
        .filter(|entry| entry.action != Action::Palette)
        .filter_map(|entry| {
            let more = |found: Option<(bool, i32)>, by: i32| found.map(|(whole, score)| (whole, score + by));
            let named = more(match_score(entry.name, search), 20);
            let described = match_score(entry.help, search).max(more(match_score(entry.label, search), 10));
            let others = synonyms(entry.action).filter_map(|word| more(match_start(word, search), 15)).max();
            let (whole, score) = named.max(described).max(others)?;
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

/// Scores a word that begins with the search; a synonym is too far from the action's name for scattered letters.
fn match_start(word: &str, search: &str) -> Option<(bool, i32)> {
    let begins = word.starts_with(&search.trim().to_lowercase()) && !search.trim().is_empty();
    match_score(word, search).filter(|_| begins)
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
    use super::{SYNONYMS, matching_actions};
    use crate::cockpit::action::{Action, ChartAction, TABLE};
    use crate::cockpit::chart_picture::PictureFormat;
    use crate::cockpit::state::screen::View;

    #[test]
    fn another_word_for_an_action_finds_it() {
        for (search, action) in [
            ("quit", Action::Quit),
            ("exit", Action::Quit),
            ("export", Action::WriteChart(PictureFormat::Svg)),
            ("clip", Action::Copy),
            ("copy", Action::Copy),
            ("resume", Action::Pause),
            ("kill", Action::Stop),
            ("Dark", Action::Theme),
        ] {
            assert_eq!(matching_actions(search).first().map(|entry| entry.action), Some(action), "{search}");
        }
        let about_runs = matching_actions("delete");
        assert!(about_runs.iter().any(|entry| entry.action == Action::View(View::Runs)), "{about_runs:?}");
        // Every action that has other words is one of the table.
        assert!(SYNONYMS.iter().all(|(action, _)| TABLE.iter().any(|entry| entry.action == *action)));
    }

    #[test]
    fn a_few_letters_find_an_action() {
        for (search, action) in [
            ("stop", Action::Stop),
            ("shd", Action::ShiftDown),
            ("shift up", Action::ShiftUp),
            ("theme", Action::Theme),
            ("log scale", Action::Chart(ChartAction::LogScale)),
            ("ckpt", Action::Checkpoint),
            ("runs", Action::View(View::Runs)),
            ("smo", Action::Chart(ChartAction::Smoothing)),
        ] {
            assert_eq!(matching_actions(search).first().map(|entry| entry.action), Some(action), "{search}");
        }
        assert_eq!(matching_actions("").len(), TABLE.len() - 1);
        assert!(matching_actions("zzzz").is_empty());
        assert!(matching_actions("chec").iter().all(|entry| entry.action != Action::Quit));
    }
}
