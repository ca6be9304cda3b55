//! The loop around the start screen.

use super::{Choice, Next, Start, Typed, view};
use crate::cockpit::glyphs::Glyphs;
use crate::cockpit::keymap::Keymap;
use crate::cockpit::run::{CockpitError, read_terminal, unix_ms, utc_offset_s};
use crate::cockpit::surface::Surface;
use crate::cockpit::terminal::HeldTerminal;
use crate::cockpit::update::Msg;
use crate::store::run_summary::RunIndex;
use crate::theme::Theme;
use crate::untrusted::text;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::mpsc::{self, Sender};
use tokio::task::JoinSet;

/// Everything the screen needs.
pub struct Opening<'a> {
    /// The folder of the runs.
    pub runs: PathBuf,
    /// The theme, reduced to the terminal's capabilities.
    pub theme: Theme,
    /// Key bindings.
    pub keys: Keymap,
    /// Symbols the terminal can display.
    pub glyphs: Glyphs,
    /// Whether the program has tasks of its own, so that a new run may start without a command.
    pub has_tasks: bool,
    /// Finds the meaning of a typed line; starts nothing.
    pub read_line: &'a dyn Fn(&str) -> Typed,
}

/// Interval between two readings of the runs.
const REFRESH: Duration = Duration::from_secs(2);

/// Shows the screen until the user chooses.
///
/// # Errors
/// Returns an error when the terminal fails; by then it has been restored.
pub async fn choose(opening: Opening<'_>) -> Result<Choice, CockpitError> {
    let mut screen = HeldTerminal::acquire(opening.glyphs)?;
    let (inbox, mut messages) = mpsc::channel(64);
    // Dropping it on return aborts the reader.
    let mut background = JoinSet::new();
    background.spawn(read_terminal(inbox.clone(), false));
    let index = Arc::new(RunIndex::new(opening.runs.clone()));
    let now_ms = unix_ms(SystemTime::now());
    let folder = text::path(&opening.runs);
    let mut start = Start::new(screen.size()?, opening.keys, folder, now_ms, utc_offset_s());
    start.has_tasks = opening.has_tasks;
    list_runs(&index, &inbox);
    let mut refreshed = tokio::time::Instant::now();
    loop {
        screen.draw_with(|frame| view::render(frame, &start, &opening.theme))?;
        let mut next = Next::Wait;
        while next == Next::Wait {
            let wait = REFRESH.saturating_sub(refreshed.elapsed());
            let msg = match tokio::time::timeout(wait, messages.recv()).await {
                Ok(Some(msg)) => msg,
                Ok(None) => return Ok(Choice::Quit),
                Err(_) => {
                    refreshed = tokio::time::Instant::now();
                    list_runs(&index, &inbox);
                    Msg::Tick(unix_ms(SystemTime::now()))
                }
            };
            next = start.update(msg);
        }
        match next {
            Next::Choose(choice) => return Ok(choice),
            Next::Read(line) => start.typed = (opening.read_line)(&line),
            Next::Repaint => screen.repaint()?,
            Next::Suspend => screen.suspend()?,
            Next::Draw | Next::Wait => {}
        }
    }
}

fn list_runs(index: &Arc<RunIndex>, inbox: &Sender<Msg>) {
    let (index, inbox) = (Arc::clone(index), inbox.clone());
    tokio::task::spawn_blocking(move || drop(inbox.blocking_send(Msg::Runs(index.list()))));
}
