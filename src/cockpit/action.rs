//! Every action the user can request, in one table. Key bindings, the footer and the help all come from it.

use super::state::screen::View;
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// An action the user can request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Preview the next safer rung.
    ShiftDown,
    /// Preview the next faster rung.
    ShiftUp,
    /// Save now.
    Checkpoint,
    /// Save, then restart on the same rung.
    Restart,
    /// Save, end the worker and free its memory; or resume.
    Pause,
    /// Turn autopilot on or off.
    Autopilot,
    /// Apply the keeper's proposal.
    Accept,
    /// Save and end the run, after confirmation.
    Stop,
    /// Switch to another view.
    View(View),
    /// Focus the next panel.
    NextPanel,
    /// Focus the previous panel.
    PreviousPanel,
    /// Move towards older steps.
    Left,
    /// Move towards newer steps.
    Right,
    /// Move up in the focused panel.
    Up,
    /// Move down in the focused panel.
    Down,
    /// Move up one page.
    PageUp,
    /// Move down one page.
    PageDown,
    /// Zoom in on the chart.
    ZoomIn,
    /// Zoom out of the chart.
    ZoomOut,
    /// Fit the whole run on the chart.
    Fit,
    /// Switch between logarithmic and linear values.
    LogScale,
    /// Cycle to the next smoothing level.
    Smoothing,
    /// Follow the newest step, or freeze the charts.
    Follow,
    /// Cycle the x axis: steps, samples or time.
    Axis,
    /// Move the cursor to read exact values.
    Cursor,
    /// Mark a run for comparison; in the replay, play or pause.
    Toggle,
    /// Replay the run.
    Replay,
    /// Search every action.
    Palette,
    /// Filter journal and log.
    Filter,
    /// Cycle to the next theme.
    Theme,
    /// Show every key.
    Help,
    /// Confirm, or open the focused item.
    Confirm,
    /// Go back.
    Back,
    /// Redraw the whole screen.
    Repaint,
    /// Suspend to the shell; `fg` resumes.
    Suspend,
    /// Close the cockpit; the run continues.
    Quit,
}

/// A key as the terminal reports it, normalized across terminals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// Key code.
    pub code: KeyCode,
    /// Whether Ctrl was held.
    pub ctrl: bool,
}

impl Key {
    /// Returns the key of a terminal event.
    #[must_use]
    pub fn of(event: KeyEvent) -> Self {
        Self { code: event.code, ctrl: event.modifiers.contains(KeyModifiers::CONTROL) }
    }

    /// Parses a key from its keymap name: `d`, `Space`, `Ctrl-l`, `PgUp`, `F5`.
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

    /// Returns the key's name in a keymap.
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

    /// Returns the key's display name.
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

/// Topic of an action: a heading in the help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Acts on the run.
    Run,
    /// Changes what is displayed.
    Look,
    /// Changes the chart.
    Chart,
    /// Affects the cockpit itself.
    Cockpit,
}

impl Group {
    /// Returns the heading.
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

/// An action with its keys and texts.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// The action itself.
    pub action: Action,
    /// Name in a keymap.
    pub name: &'static str,
    /// Default keys; the first is the one displayed.
    pub keys: &'static [Key],
    /// Label of one or two words for the footer.
    pub word: &'static str,
    /// Sentence for the help.
    pub help: &'static str,
    /// Heading in the help.
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

/// Every action in help order, with its default keys.
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

/// Returns the table entry of an action.
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
            // Longer text does not fit the two-column help.
            assert!(entry.help.chars().count() <= 41, "{}", entry.help);
            for key in entry.keys {
                assert!(keys.insert(*key), "{}", key.name());
            }
        }
    }
}
