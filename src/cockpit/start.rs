//! The start screen: living runs, a new run, a command, recent runs. It comes before any cockpit, so it has
//! its own small state; the caller carries out what was chosen.

pub mod run;
pub mod view;

use super::action::{Action, Key};
use super::keymap::Keymap;
use super::update::Msg;
use crate::store::run_summary::RunSummary;
use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, MouseButton, MouseEvent, MouseEventKind};
use std::fmt;

/// Maximum length of a typed command in characters.
const LINE: usize = 2_000;

/// An entry of the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartEntry {
    /// A run, by name.
    Run(String),
    /// A new run of the default.
    New,
    /// A command to type.
    Command,
}

/// The user's choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// Open the cockpit on a run.
    Attach(String),
    /// Start the default run.
    New,
    /// Carry out these words after `downshift`.
    Command(Vec<String>),
    /// Leave.
    Quit,
}

/// Meaning of a typed line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Typed {
    /// Nothing is typed yet.
    Empty,
    /// Starts a command under the keeper.
    Command {
        /// The program and its arguments.
        command: Vec<String>,
        /// Words after `downshift`.
        words: Vec<String>,
    },
    /// Starts a run from a run file, or queues several.
    RunFile {
        /// Their paths or names; one, at least.
        files: Vec<String>,
        /// Words after `downshift`.
        words: Vec<String>,
    },
    /// Proposes a run file for a command; starts nothing.
    Init {
        /// The program and its arguments.
        command: Vec<String>,
        /// Words after `downshift`.
        words: Vec<String>,
    },
    /// Writes the files of a template; starts nothing.
    Template {
        /// Its name.
        name: String,
        /// Words after `downshift`.
        words: Vec<String>,
    },
    /// Cannot be carried out.
    Wrong(Mistake),
}

/// A line that cannot be carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mistake {
    /// A quote is still open.
    #[error("a quote is open")]
    OpenQuote,
    /// A character that only a shell understands.
    #[error("`{0}` needs a shell: quote it, or write sh -c '…'")]
    Shell(char),
    /// Another command of this program.
    #[error("`{0}` is for the shell; here, run and init start something")]
    OtherCommand(String),
    /// The arguments do not parse; holds the first line of the parser's error.
    #[error("{0}")]
    Arguments(String),
}

impl fmt::Display for Typed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let join =
            |command: &[String]| command.iter().map(|word| crate::format::quoted(word)).collect::<Vec<_>>().join(" ");
        match self {
            Self::Empty => write!(formatter, "python a.py · run a.yaml b.yaml · init -- python a.py"),
            Self::Command { command, .. } => write!(formatter, "starts {}", join(command)),
            Self::RunFile { files, .. } => match &files[..] {
                [file] => write!(formatter, "starts the run file {file}; asks first if it names commands or libraries"),
                files => {
                    write!(formatter, "queues {}; asks first if they name commands or libraries", files.join(", "))
                }
            },
            Self::Init { command, .. } => {
                write!(formatter, "proposes a run file for {}; starts nothing", join(command))
            }
            Self::Template { name, .. } => write!(formatter, "writes the template {name}; starts nothing"),
            Self::Wrong(mistake) => mistake.fmt(formatter),
        }
    }
}

/// State of the screen.
#[derive(Debug, Clone)]
pub struct Start {
    /// Columns and rows.
    pub size: (u16, u16),
    /// Current time, Unix milliseconds.
    pub now_ms: i64,
    /// Offset of local time from UTC, seconds.
    pub utc_offset_s: i32,
    /// Key bindings.
    pub keys: Keymap,
    /// Runs that are not archived, newest first; `None` until they are listed.
    pub runs: Option<Vec<RunSummary>>,
    /// The folder of the runs, as text.
    pub folder: String,
    /// Whether a new run can be of a task of the program's own. A build without a trainer has only commands.
    pub has_tasks: bool,
    /// The command line, while it is being typed.
    pub input: Option<String>,
    /// Meaning of the command line.
    pub typed: Typed,
    /// The entry under the cursor, once the user moved it.
    chosen: Option<StartEntry>,
}

/// Consequence of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Draw.
    Draw,
    /// Nothing visible has changed.
    Wait,
    /// Redraw every cell.
    Repaint,
    /// Release the terminal and stop until `fg`.
    Suspend,
    /// The line has changed; its meaning is needed.
    Read(String),
    /// Leave with a choice.
    Choose(Choice),
}

impl Start {
    /// Creates the screen before the runs are listed.
    #[must_use]
    pub fn new(size: (u16, u16), keys: Keymap, folder: String, now_ms: i64, utc_offset_s: i32) -> Self {
        let (runs, input, typed, chosen) = (None, None, Typed::Empty, None);
        Self { size, now_ms, utc_offset_s, keys, runs, folder, has_tasks: true, input, typed, chosen }
    }

    /// Returns the living runs, newest first.
    pub fn living(&self) -> impl Iterator<Item = &RunSummary> {
        self.runs.iter().flatten().filter(|run| run.runs_on())
    }

    /// Returns the other runs that began, newest first.
    pub fn recent(&self) -> impl Iterator<Item = &RunSummary> {
        self.runs.iter().flatten().filter(|run| !run.runs_on() && run.status.is_some())
    }

    /// Returns every entry, from top to bottom.
    #[must_use]
    pub fn entries(&self) -> Vec<StartEntry> {
        let run = |run: &RunSummary| StartEntry::Run(run.name.clone());
        let living = self.living().map(run);
        let new = self.has_tasks.then_some(StartEntry::New);
        living.chain(new).chain([StartEntry::Command]).chain(self.recent().map(run)).collect()
    }

    /// Returns the index of the entry under the cursor: the first one until the user moves it. So Enter
    /// attaches to a living run, and starts a new one if none lives.
    #[must_use]
    pub fn cursor(&self) -> usize {
        let Some(chosen) = &self.chosen else { return 0 };
        self.entries().iter().position(|entry| entry == chosen).unwrap_or(0)
    }

    /// Applies a message.
    pub fn update(&mut self, msg: Msg) -> Next {
        match msg {
            Msg::Key(key) => self.press_key(key),
            Msg::Paste(text) if self.input.is_some() => self.type_text(&text),
            Msg::Mouse(event) => self.handle_mouse(event),
            Msg::Resize(width, height) => {
                self.size = (width, height);
                Next::Draw
            }
            Msg::Runs(mut runs) => {
                runs.retain(|run| !run.labels.archived);
                // Runs of the queue stand behind those that train, in its order.
                runs.sort_by_key(|run| run.place.map(|place| place.rank));
                let runs = Some(runs);
                if self.runs == runs {
                    return Next::Wait;
                }
                self.runs = runs;
                Next::Draw
            }
            Msg::Tick(now_ms) => {
                self.now_ms = now_ms;
                Next::Draw
            }
            Msg::Resumed => Next::Repaint,
            Msg::SuspendRequested => Next::Suspend,
            Msg::InputLost => Next::Choose(Choice::Quit),
            _ => Next::Wait,
        }
    }

    fn press_key(&mut self, event: KeyEvent) -> Next {
        if event.kind == KeyEventKind::Release {
            return Next::Wait;
        }
        let key = Key::from_event(event);
        let action = self.keys.action_of(key);
        match action.filter(|_| key.ctrl) {
            Some(Action::Quit) => return Next::Choose(Choice::Quit),
            Some(Action::Repaint) => return Next::Repaint,
            Some(Action::Suspend) => return Next::Suspend,
            _ => {}
        }
        if self.input.is_some() {
            return self.press_line_key(key.code);
        }
        match (key.code, action) {
            (KeyCode::Char('n'), _) if self.has_tasks => Next::Choose(Choice::New),
            (KeyCode::Char('c'), _) => self.open_line(),
            (_, Some(Action::Up | Action::PreviousPanel)) => self.move_cursor(-1),
            (_, Some(Action::Down | Action::NextPanel)) => self.move_cursor(1),
            (_, Some(Action::PageUp)) => self.move_cursor(-10),
            (_, Some(Action::PageDown)) => self.move_cursor(10),
            (_, Some(Action::Confirm)) => self.confirm(),
            (_, Some(Action::Quit | Action::Back)) => Next::Choose(Choice::Quit),
            _ => Next::Wait,
        }
    }

    fn move_cursor(&mut self, rows: isize) -> Next {
        let entries = self.entries();
        let place = self.cursor().saturating_add_signed(rows).min(entries.len() - 1);
        self.chosen = entries.into_iter().nth(place);
        Next::Draw
    }

    fn confirm(&mut self) -> Next {
        match self.entries().swap_remove(self.cursor()) {
            StartEntry::Run(name) => Next::Choose(Choice::Attach(name)),
            StartEntry::New => Next::Choose(Choice::New),
            StartEntry::Command => self.open_line(),
        }
    }

    fn open_line(&mut self) -> Next {
        self.chosen = Some(StartEntry::Command);
        (self.input, self.typed) = (Some(String::new()), Typed::Empty);
        Next::Draw
    }

    fn press_line_key(&mut self, code: KeyCode) -> Next {
        match code {
            KeyCode::Char(letter) => self.type_text(&letter.to_string()),
            KeyCode::Backspace => {
                let line = self.input.get_or_insert_default();
                line.pop();
                Next::Read(line.clone())
            }
            KeyCode::Enter => match &self.typed {
                Typed::Command { words, .. }
                | Typed::RunFile { words, .. }
                | Typed::Init { words, .. }
                | Typed::Template { words, .. } => Next::Choose(Choice::Command(words.clone())),
                Typed::Empty | Typed::Wrong(_) => Next::Wait,
            },
            KeyCode::Esc => {
                self.input = None;
                Next::Draw
            }
            _ => Next::Wait,
        }
    }

    fn type_text(&mut self, text: &str) -> Next {
        let line = self.input.get_or_insert_default();
        let room = LINE.saturating_sub(line.chars().count());
        line.extend(text.chars().filter(|letter| !letter.is_control()).take(room));
        Next::Read(line.clone())
    }

    /// Selects the clicked entry; a second click confirms it.
    fn handle_mouse(&mut self, event: MouseEvent) -> Next {
        match event.kind {
            MouseEventKind::Down(MouseButton::Left) if self.input.is_none() => {}
            MouseEventKind::ScrollUp => return self.move_cursor(-1),
            MouseEventKind::ScrollDown => return self.move_cursor(1),
            _ => return Next::Wait,
        }
        let Some(place) = view::entry_at(self, event.row) else { return Next::Wait };
        if place == self.cursor() {
            return self.confirm();
        }
        self.chosen = self.entries().into_iter().nth(place);
        Next::Draw
    }
}

#[cfg(test)]
mod tests;
