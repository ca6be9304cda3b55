//! Everything a person can ask for, in one table: keys, the footer and the help come from it.

use super::state::screen::View;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// Something a person can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Preview of the next safer rung.
    ShiftDown,
    /// Preview of the next faster rung.
    ShiftUp,
    /// Save now.
    Checkpoint,
    /// Save, then start again on the same rung.
    Restart,
    /// Save, end the worker and free its memory; or go on.
    Pause,
    /// May the keeper shift alone?
    Autopilot,
    /// Do what the keeper proposes.
    Accept,
    /// Save and end the run, after a question.
    Stop,
    /// Another view.
    View(View),
    /// Focus the next panel.
    NextPanel,
    /// Focus the panel before.
    PreviousPanel,
    /// Towards older steps.
    Left,
    /// Towards newer steps.
    Right,
    /// Up in the focused panel.
    Up,
    /// Down in the focused panel.
    Down,
    /// A page up.
    PageUp,
    /// A page down.
    PageDown,
    /// The chart from nearer.
    ZoomIn,
    /// The chart from farther.
    ZoomOut,
    /// The whole run on the chart.
    Fit,
    /// Logarithmic values or linear ones.
    LogScale,
    /// The next amount of smoothing.
    Smoothing,
    /// Look for words in the worker's log.
    Filter,
    /// The next theme.
    Theme,
    /// Every key.
    Help,
    /// Yes; or open what is focused.
    Confirm,
    /// Back.
    Back,
    /// Draw everything anew.
    Repaint,
    /// Close the cockpit; the run goes on.
    Quit,
}

/// A key as the terminal reports it, without what differs between terminals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// Which key.
    pub code: KeyCode,
    /// Whether Ctrl was held.
    pub ctrl: bool,
}

impl Key {
    /// The key of an event.
    #[must_use]
    pub fn of(event: KeyEvent) -> Self {
        Self { code: event.code, ctrl: event.modifiers.contains(KeyModifiers::CONTROL) }
    }

    /// Its name for people.
    #[must_use]
    pub fn name(self) -> String {
        let name = match self.code {
            KeyCode::Char(' ') => "Space".to_owned(),
            KeyCode::Char(letter) => letter.to_string(),
            KeyCode::Left => "←".to_owned(),
            KeyCode::Right => "→".to_owned(),
            KeyCode::Up => "↑".to_owned(),
            KeyCode::Down => "↓".to_owned(),
            KeyCode::BackTab => "Shift-Tab".to_owned(),
            KeyCode::PageUp => "PgUp".to_owned(),
            KeyCode::PageDown => "PgDn".to_owned(),
            other => format!("{other}"),
        };
        if self.ctrl { format!("Ctrl-{name}") } else { name }
    }
}

/// What an action is about: a heading in the help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Acts on the run.
    Run,
    /// Changes what is seen.
    Look,
    /// Changes the chart.
    Chart,
    /// The cockpit itself.
    Cockpit,
}

impl Group {
    /// The heading.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Run => "the run",
            Self::Look => "where to look",
            Self::Chart => "the chart",
            Self::Cockpit => "the cockpit",
        }
    }
}

/// An action with its keys and words.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// What it does.
    pub action: Action,
    /// Its keys; the first is the one people are told.
    pub keys: &'static [Key],
    /// One or two words for the last line of the screen.
    pub word: &'static str,
    /// A sentence for the help.
    pub help: &'static str,
    /// Its heading there.
    pub group: Group,
}

const fn key(letter: char) -> Key {
    Key { code: KeyCode::Char(letter), ctrl: false }
}

const fn ctrl(letter: char) -> Key {
    Key { code: KeyCode::Char(letter), ctrl: true }
}

const fn named(code: KeyCode) -> Key {
    Key { code, ctrl: false }
}

macro_rules! table {
    ($($group:ident $action:expr, [$($key:expr),*], $word:literal, $help:literal;)*) => {
        &[$(Entry { action: $action, keys: &[$($key),*], word: $word, help: $help, group: Group::$group }),*]
    };
}

/// Every action, in the order of the help.
pub const TABLE: &[Entry] = table![
    Run Action::ShiftDown, [key('d')], "down", "shift down: see what changes, then Enter";
    Run Action::ShiftUp, [key('u')], "up", "shift up: see what changes, then Enter";
    Run Action::Checkpoint, [key('c')], "checkpoint", "save a checkpoint now";
    Run Action::Restart, [key('r')], "restart", "save, then start again on the same rung";
    Run Action::Pause, [key('p')], "pause", "pause (saves, frees the memory), or go on";
    Run Action::Autopilot, [key('a')], "autopilot", "may the keeper shift alone, or not";
    Run Action::Accept, [key('y')], "accept", "do what the keeper proposes";
    Run Action::Stop, [key('x')], "stop", "stop the run; asks first";
    Look Action::View(View::Overview), [key('1')], "all", "everything at a glance";
    Look Action::View(View::Curves), [key('2')], "curves", "loss, gradient norm and step time";
    Look Action::View(View::Rungs), [key('3')], "rungs", "ladder and checkpoints";
    Look Action::View(View::Words), [key('4')], "log", "journal and the worker's log";
    Look Action::View(View::Health), [key('5')], "health", "GPU and machine over time";
    Look Action::NextPanel, [named(KeyCode::Tab)], "panel", "focus the next panel";
    Look Action::PreviousPanel, [named(KeyCode::BackTab)], "panel", "focus the panel before";
    Look Action::Up, [named(KeyCode::Up), key('k')], "up", "up in the focused panel";
    Look Action::Down, [named(KeyCode::Down), key('j')], "down", "down in the focused panel";
    Look Action::PageUp, [named(KeyCode::PageUp)], "page up", "a page up in the focused panel";
    Look Action::PageDown, [named(KeyCode::PageDown)], "page down", "a page down in the focused panel";
    Look Action::Confirm, [named(KeyCode::Enter)], "open", "open the focused panel, or say yes";
    Look Action::Back, [named(KeyCode::Esc)], "back", "back to where you were";
    Look Action::Filter, [key('/')], "filter", "only lines of the log that hold some words";
    Chart Action::Left, [named(KeyCode::Left)], "older", "towards older steps";
    Chart Action::Right, [named(KeyCode::Right)], "newer", "towards newer steps";
    Chart Action::ZoomIn, [key('+'), key('=')], "nearer", "from nearer; the mouse wheel does it too";
    Chart Action::ZoomOut, [key('-')], "farther", "from farther";
    Chart Action::Fit, [key('0')], "fit", "the whole run, following the newest step";
    Chart Action::LogScale, [key('l')], "log scale", "logarithmic or linear";
    Chart Action::Smoothing, [key('s')], "smoothing", "smoothing: 0.90, 0.97, none, 0.60";
    Cockpit Action::Theme, [key('t')], "theme", "the next theme";
    Cockpit Action::Help, [key('?')], "help", "this list";
    Cockpit Action::Repaint, [ctrl('l')], "repaint", "draw everything anew";
    Cockpit Action::Quit, [key('q'), ctrl('c')], "close", "close the cockpit; the run goes on";
];

/// The action of a key.
#[must_use]
pub fn action_of(key: Key) -> Option<Action> {
    TABLE.iter().find(|entry| entry.keys.contains(&key)).map(|entry| entry.action)
}

/// The row of an action.
#[must_use]
pub fn entry_of(action: Action) -> Option<&'static Entry> {
    TABLE.iter().find(|entry| entry.action == action)
}

/// The name of the key that people are told for an action.
pub fn key_of(action: Action) -> String {
    entry_of(action).and_then(|entry| entry.keys.first()).map_or_else(String::new, |key| key.name())
}

#[cfg(test)]
mod tests {
    use super::{Action, Key, TABLE, action_of, key_of};
    use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    use std::collections::HashSet;

    #[test]
    fn no_key_and_no_action_stands_twice() {
        let mut keys = HashSet::new();
        let mut actions = HashSet::new();
        for entry in TABLE {
            assert!(actions.insert(entry.action), "{:?}", entry.action);
            assert!(!entry.keys.is_empty() && !entry.help.is_empty());
            for key in entry.keys {
                assert!(keys.insert(*key), "{}", key.name());
            }
        }
    }

    #[test]
    fn keys_have_names_and_lead_back() {
        assert_eq!(key_of(Action::ShiftDown), "d");
        assert_eq!(key_of(Action::Left), "←");
        assert_eq!(key_of(Action::Repaint), "Ctrl-l");
        let event = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(action_of(Key::of(event)), Some(Action::Quit));
        // Shift is part of the letter on most terminals and reported beside it on some.
        let event = KeyEvent::new(KeyCode::Char('?'), KeyModifiers::SHIFT);
        assert_eq!(action_of(Key::of(event)), Some(Action::Help));
    }
}
