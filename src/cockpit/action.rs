//! Every action the user can request, in one table. Key bindings, the footer and the help all come from it.

use super::chart_picture::PictureFormat;
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
    /// Move up in the focused panel.
    Up,
    /// Move down in the focused panel.
    Down,
    /// Move up one page.
    PageUp,
    /// Move down one page.
    PageDown,
    /// Change the part of the run that the charts show, or how they show it.
    Chart(ChartAction),
    /// Pin the focused chart, or unpin it.
    Pin,
    /// Show the next group of charts.
    NextGroup,
    /// Show the previous group of charts.
    PreviousGroup,
    /// Mark a run for comparison; in the replay, play or pause.
    Toggle,
    /// Replay the run.
    Replay,
    /// Open the menu of the run or checkpoint under the cursor.
    Menu,
    /// Sort the runs by the next column.
    Sort,
    /// Reverse the order of the runs.
    ReverseSort,
    /// Search every action.
    Palette,
    /// Filter journal and log.
    Filter,
    /// Cycle the kinds of entries that the journal shows.
    Kinds,
    /// Show the alerts.
    Alerts,
    /// Move the run under the cursor one place sooner in the queue.
    Sooner,
    /// Move the run under the cursor one place later in the queue.
    Later,
    /// Copy what is under the cursor.
    Copy,
    /// Write the focused chart as a picture.
    WriteChart(PictureFormat),
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

/// An action on every chart of the view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChartAction {
    /// Move towards older steps.
    Left,
    /// Move towards newer steps.
    Right,
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
}

impl Action {
    /// Reports whether the action is a request to the run, rather than a change of the display.
    #[must_use]
    pub fn is_request(self) -> bool {
        matches!(
            self,
            Self::ShiftDown
                | Self::ShiftUp
                | Self::Checkpoint
                | Self::Restart
                | Self::Pause
                | Self::Autopilot
                | Self::Accept
                | Self::Stop
        )
    }
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
    pub fn from_event(event: KeyEvent) -> Self {
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
    Views,
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
            Self::Run => "run",
            Self::Views => "views",
            Self::Chart => "charts",
            Self::Cockpit => "cockpit",
        }
    }
}

/// An action with its keys and texts.
#[derive(Debug, Clone, Copy)]
pub struct ActionEntry {
    /// The action itself.
    pub action: Action,
    /// Name in a keymap.
    pub name: &'static str,
    /// Default keys; the first is the one displayed.
    pub keys: &'static [Key],
    /// Label of one or two words for the footer.
    pub label: &'static str,
    /// Sentence for the help.
    pub help: &'static str,
    /// Heading in the help.
    pub group: Group,
}

const fn letter_key(letter: char) -> Key {
    Key { code: KeyCode::Char(letter), ctrl: false }
}

const fn ctrl_key(letter: char) -> Key {
    Key { code: KeyCode::Char(letter), ctrl: true }
}

const fn named_key(code: KeyCode) -> Key {
    Key { code, ctrl: false }
}

macro_rules! table {
    ($($group:ident $name:literal $action:expr, [$($key:expr),*], $label:literal, $help:literal;)*) => {
        &[$(ActionEntry { action: $action, name: $name, keys: &[$($key),*], label: $label, help: $help, group: Group::$group }),*]
    };
}

/// Every action in help order, with its default keys.
pub const TABLE: &[ActionEntry] = table![
    Run "shift-down" Action::ShiftDown, [letter_key('d')], "down", "shift down: preview, then Enter";
    Run "shift-up" Action::ShiftUp, [letter_key('u')], "up", "shift up: preview, then Enter";
    Run "checkpoint" Action::Checkpoint, [letter_key('c')], "save", "save a checkpoint now";
    Run "restart" Action::Restart, [letter_key('r')], "restart", "save, then restart on the same rung";
    Run "pause" Action::Pause, [letter_key('p')], "pause", "pause (frees memory) or resume";
    Run "autopilot" Action::Autopilot, [letter_key('a')], "autopilot", "autopilot on/off";
    Run "accept" Action::Accept, [letter_key('y')], "accept", "accept the keeper's proposal";
    Run "stop" Action::Stop, [letter_key('x')], "stop", "stop the run; asks first";
    Views "overview" Action::View(View::Overview), [letter_key('1')], "overview", "overview: everything at a glance";
    Views "charts" Action::View(View::Charts), [letter_key('2')], "charts", "all charts";
    Views "ladder" Action::View(View::Ladder), [letter_key('3')], "ladder", "ladder and rung details";
    Views "log" Action::View(View::Log), [letter_key('4')], "log", "journal and worker log";
    Views "health" Action::View(View::Health), [letter_key('5')], "health", "checkpoints, GPU and machine";
    Views "runs" Action::View(View::Runs), [letter_key('6')], "runs", "all runs: open, compare, tag, delete";
    Views "samples" Action::View(View::Samples), [letter_key('7')], "samples", "samples: what the model does";
    Views "layers" Action::View(View::Layers), [letter_key('8')], "layers", "layers: weights, gradients, updates";
    Views "ranks" Action::View(View::Ranks), [letter_key('9')], "ranks", "ranks: who waits for whom";
    Views "next-panel" Action::NextPanel, [named_key(KeyCode::Tab)], "panel", "next panel";
    Views "previous-panel" Action::PreviousPanel, [named_key(KeyCode::BackTab)], "panel", "previous panel";
    Views "up" Action::Up, [named_key(KeyCode::Up), letter_key('k')], "up", "up in the focused panel";
    Views "down" Action::Down, [named_key(KeyCode::Down), letter_key('j')], "down", "down in the focused panel";
    Views "page-up" Action::PageUp, [named_key(KeyCode::PageUp), letter_key('N')], "page up", "page up, or previous charts";
    Views "page-down" Action::PageDown, [named_key(KeyCode::PageDown), letter_key('n')], "page down", "page down, or next charts";
    Views "open" Action::Confirm, [named_key(KeyCode::Enter)], "open", "open the focused panel, or confirm";
    Views "back" Action::Back, [named_key(KeyCode::Esc)], "back", "back, or close";
    Views "filter" Action::Filter, [letter_key('/')], "filter", "filter journal, log; find charts and runs";
    Views "kinds" Action::Kinds, [letter_key('i')], "kinds", "journal: all, faults, shifts, checkpoints";
    Views "alerts" Action::Alerts, [letter_key('!')], "alerts", "alerts: reason, age, remedy";
    Views "mark" Action::Toggle, [letter_key(' ')], "mark", "mark a run to overlay; play the replay";
    Views "replay" Action::Replay, [letter_key('g')], "replay", "replay: the run at an earlier time";
    Views "menu" Action::Menu, [letter_key('m')], "menu", "queue, resume, branch, tag, delete a run";
    Views "sort" Action::Sort, [letter_key('o')], "sort", "sort runs by the next column";
    Views "reverse" Action::ReverseSort, [letter_key('O')], "reverse", "reverse the order of runs";
    Views "sooner" Action::Sooner, [letter_key('<')], "sooner", "sooner in the queue: the run of the list";
    Views "later" Action::Later, [letter_key('>')], "later", "later in the queue";
    Views "copy" Action::Copy, [letter_key('C')], "copy", "copy what is under the cursor";
    Chart "left" Action::Chart(ChartAction::Left), [named_key(KeyCode::Left)], "older", "older steps";
    Chart "right" Action::Chart(ChartAction::Right), [named_key(KeyCode::Right)], "newer", "newer steps";
    Chart "zoom-in" Action::Chart(ChartAction::ZoomIn), [letter_key('+'), letter_key('=')], "zoom in", "zoom in (or mouse wheel)";
    Chart "zoom-out" Action::Chart(ChartAction::ZoomOut), [letter_key('-')], "zoom out", "zoom out";
    Chart "fit" Action::Chart(ChartAction::Fit), [letter_key('0')], "fit", "whole run, following the newest step";
    Chart "follow" Action::Chart(ChartAction::Follow), [letter_key('f')], "follow", "follow the newest step, or freeze";
    Chart "cursor" Action::Chart(ChartAction::Cursor), [letter_key('v')], "values", "exact values, with arrows or a click";
    Chart "axis" Action::Chart(ChartAction::Axis), [letter_key('b')], "axis", "x axis: steps, samples or time";
    Chart "log-scale" Action::Chart(ChartAction::LogScale), [letter_key('l')], "log scale", "logarithmic or linear scale";
    Chart "smoothing" Action::Chart(ChartAction::Smoothing), [letter_key('s')], "smoothing", "smoothing: 0.90, 0.97, 0.99, none, 0.60";
    Chart "pin" Action::Pin, [letter_key('P')], "pin", "pin or unpin the chart: pinned come first";
    Chart "next-group" Action::NextGroup, [letter_key(']')], "group", "next group of charts";
    Chart "previous-group" Action::PreviousGroup, [letter_key('[')], "previous group", "previous group of charts";
    Chart "write-svg" Action::WriteChart(PictureFormat::Svg), [letter_key('e')], "export", "export the chart as SVG, beside the run";
    Chart "write-png" Action::WriteChart(PictureFormat::Png), [letter_key('E')], "export", "export the chart as PNG, beside the run";
    Cockpit "palette" Action::Palette, [letter_key(':')], "actions", "search all actions";
    Cockpit "theme" Action::Theme, [letter_key('t')], "theme", "next theme";
    Cockpit "help" Action::Help, [letter_key('?')], "help", "help: all keys";
    Cockpit "repaint" Action::Repaint, [ctrl_key('l')], "repaint", "redraw the screen";
    Cockpit "suspend" Action::Suspend, [ctrl_key('z')], "suspend", "suspend to the shell; fg resumes";
    Cockpit "close" Action::Quit, [letter_key('q'), ctrl_key('c')], "close", "close the cockpit; the run continues";
];

/// Returns the table entry of an action.
#[must_use]
pub fn entry_of(action: Action) -> Option<&'static ActionEntry> {
    TABLE.iter().find(|entry| entry.action == action)
}

#[cfg(test)]
mod tests {
    use super::TABLE;
    use std::collections::HashSet;

    #[test]
    fn keys_names_and_actions_are_unique() {
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
