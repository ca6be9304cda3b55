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
    /// Follow the newest step, or hold the charts still.
    Follow,
    /// Over steps, samples or time.
    Axis,
    /// Read exact values.
    Cursor,
    /// Mark a run to compare; in the replay, play or hold.
    Toggle,
    /// The run as it was.
    Replay,
    /// Every action, searched by letters.
    Palette,
    /// Look for words in journal and log.
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
    /// Back to the shell; `fg` comes back.
    Suspend,
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

    /// The key of a name in a keymap: `d`, `Space`, `Ctrl-l`, `PgUp`, `F5`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let (ctrl, name) = match name.strip_prefix("Ctrl-") {
            Some(rest) if !rest.is_empty() => (true, rest),
            _ => (false, name),
        };
        let mut letters = name.chars();
        let code = match (name, letters.next(), letters.next()) {
            (_, Some(letter), None) if !letter.is_control() && letter != ' ' => KeyCode::Char(letter),
            ("Space", ..) => KeyCode::Char(' '),
            ("Left", ..) => KeyCode::Left,
            ("Right", ..) => KeyCode::Right,
            ("Up", ..) => KeyCode::Up,
            ("Down", ..) => KeyCode::Down,
            ("Tab", ..) => KeyCode::Tab,
            ("Shift-Tab", ..) => KeyCode::BackTab,
            ("Enter", ..) => KeyCode::Enter,
            ("Esc", ..) => KeyCode::Esc,
            ("PgUp", ..) => KeyCode::PageUp,
            ("PgDn", ..) => KeyCode::PageDown,
            ("Home", ..) => KeyCode::Home,
            ("End", ..) => KeyCode::End,
            ("Backspace", ..) => KeyCode::Backspace,
            ("Delete", ..) => KeyCode::Delete,
            (name, Some('F'), Some(_)) => KeyCode::F(name[1..].parse().ok().filter(|key| (1..=12).contains(key))?),
            _ => return None,
        };
        Some(Self { code, ctrl })
    }

    /// Its name in a keymap.
    #[must_use]
    pub fn plain_name(self) -> String {
        let name = match self.code {
            KeyCode::Left => "Left".to_owned(),
            KeyCode::Right => "Right".to_owned(),
            KeyCode::Up => "Up".to_owned(),
            KeyCode::Down => "Down".to_owned(),
            _ => return self.name(),
        };
        if self.ctrl { format!("Ctrl-{name}") } else { name }
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
    /// Its name in a keymap.
    pub name: &'static str,
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
    ($($group:ident $name:literal $action:expr, [$($key:expr),*], $word:literal, $help:literal;)*) => {
        &[$(Entry { action: $action, name: $name, keys: &[$($key),*], word: $word, help: $help, group: Group::$group }),*]
    };
}

/// Every action, in the order of the help, with the keys it has unless a keymap says otherwise.
pub const TABLE: &[Entry] = table![
    Run "shift-down" Action::ShiftDown, [key('d')], "down", "shift down: see what changes, then Enter";
    Run "shift-up" Action::ShiftUp, [key('u')], "up", "shift up: see what changes, then Enter";
    Run "checkpoint" Action::Checkpoint, [key('c')], "checkpoint", "save a checkpoint now";
    Run "restart" Action::Restart, [key('r')], "restart", "save, then start again on the same rung";
    Run "pause" Action::Pause, [key('p')], "pause", "pause (saves, frees the memory), or go on";
    Run "autopilot" Action::Autopilot, [key('a')], "autopilot", "may the keeper shift alone, or not";
    Run "accept" Action::Accept, [key('y')], "accept", "do what the keeper proposes";
    Run "stop" Action::Stop, [key('x')], "stop", "stop the run; asks first";
    Look "overview" Action::View(View::Overview), [key('1')], "all", "everything at a glance";
    Look "charts" Action::View(View::Curves), [key('2')], "charts", "charts of every figure";
    Look "ladder" Action::View(View::Rungs), [key('3')], "ladder", "the ladder, and a rung in full";
    Look "log" Action::View(View::Words), [key('4')], "log", "journal and the worker's log";
    Look "health" Action::View(View::Health), [key('5')], "health", "checkpoints, GPU and machine";
    Look "runs" Action::View(View::Runs), [key('6')], "runs", "all runs: open, overlay, compare";
    Look "next-panel" Action::NextPanel, [named(KeyCode::Tab)], "panel", "focus the next panel";
    Look "previous-panel" Action::PreviousPanel, [named(KeyCode::BackTab)], "panel", "focus the panel before";
    Look "up" Action::Up, [named(KeyCode::Up), key('k')], "up", "up in the focused panel";
    Look "down" Action::Down, [named(KeyCode::Down), key('j')], "down", "down in the focused panel";
    Look "page-up" Action::PageUp, [named(KeyCode::PageUp), key('N')], "page up", "a page up, or the charts before";
    Look "page-down" Action::PageDown, [named(KeyCode::PageDown), key('n')], "page down", "a page down, or the next charts";
    Look "open" Action::Confirm, [named(KeyCode::Enter)], "open", "open the focused panel, or say yes";
    Look "back" Action::Back, [named(KeyCode::Esc)], "back", "back to where you were";
    Look "filter" Action::Filter, [key('/')], "filter", "filter journal and log by some words";
    Look "mark" Action::Toggle, [key(' ')], "mark", "mark a run to overlay; play the replay";
    Look "replay" Action::Replay, [key('g')], "replay", "the run as it was: go back in time";
    Chart "left" Action::Left, [named(KeyCode::Left)], "older", "towards older steps";
    Chart "right" Action::Right, [named(KeyCode::Right)], "newer", "towards newer steps";
    Chart "zoom-in" Action::ZoomIn, [key('+'), key('=')], "nearer", "from nearer; the mouse wheel does it too";
    Chart "zoom-out" Action::ZoomOut, [key('-')], "farther", "from farther";
    Chart "fit" Action::Fit, [key('0')], "fit", "the whole run, following the newest step";
    Chart "follow" Action::Follow, [key('f')], "follow", "follow the newest step, or hold still";
    Chart "cursor" Action::Cursor, [key('v')], "values", "exact values, by arrows or a click";
    Chart "axis" Action::Axis, [key('b')], "axis", "over steps, samples or time";
    Chart "log-scale" Action::LogScale, [key('l')], "log scale", "logarithmic or linear";
    Chart "smoothing" Action::Smoothing, [key('s')], "smoothing", "smoothing: 0.90, 0.97, 0.99, none, 0.60";
    Cockpit "palette" Action::Palette, [key(':')], "actions", "find any action by its words";
    Cockpit "theme" Action::Theme, [key('t')], "theme", "the next theme";
    Cockpit "help" Action::Help, [key('?')], "help", "this list";
    Cockpit "repaint" Action::Repaint, [ctrl('l')], "repaint", "draw everything anew";
    Cockpit "suspend" Action::Suspend, [ctrl('z')], "suspend", "back to the shell; fg comes back";
    Cockpit "close" Action::Quit, [key('q'), ctrl('c')], "close", "close the cockpit; the run goes on";
];

/// The row of an action.
#[must_use]
pub fn entry_of(action: Action) -> Option<&'static Entry> {
    TABLE.iter().find(|entry| entry.action == action)
}

#[cfg(test)]
mod tests {
    use super::TABLE;
    use std::collections::HashSet;

    #[test]
    fn no_key_no_name_and_no_action_stands_twice() {
        let (mut keys, mut actions, mut names) = (HashSet::new(), HashSet::new(), HashSet::new());
        for entry in TABLE {
            assert!(actions.insert(entry.action) && names.insert(entry.name), "{:?}", entry.action);
            assert!(!entry.keys.is_empty() && !entry.help.is_empty());
            // Two columns of the help have no more room.
            assert!(entry.help.chars().count() <= 41, "{}", entry.help);
            for key in entry.keys {
                assert!(keys.insert(*key), "{}", key.name());
            }
        }
    }
}
