//! The terminal: taken on entry, given back on every way out.
//!
//! ```text
//! return, error ─▶ Drop ─┐
//! panic ─────────▶ hook ─┼─▶ give_back: once, however many come
//! SIGTERM, SIGHUP ▶ thread of its own, then exit
//! ```
//! The thread matters: when the terminal vanishes, crossterm's reader spins and never returns, so
//! nobody may wait for the loop to notice.

use super::run::Screen;
use super::state::State;
use super::view;
use crate::config::theme::Theme;
use crossterm::event::{DisableBracketedPaste, DisableMouseCapture, EnableBracketedPaste, EnableMouseCapture};
use crossterm::terminal::{
    BeginSynchronizedUpdate, EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode,
};
use crossterm::{cursor, execute, queue, style};
use ratatui::{Terminal, backend::CrosstermBackend};
use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{panic, process, thread};
use tokio::signal::unix::{SignalKind, signal};

/// Whether the terminal is ours. A static because a panic hook and a signal thread need it.
static TAKEN: AtomicBool = AtomicBool::new(false);
static WATCH: Once = Once::new();

/// The terminal while the cockpit has it.
#[derive(Debug)]
pub struct Held {
    terminal: Terminal<CrosstermBackend<Pending>>,
    pending: Pending,
}

/// What is about to be written: held back until a frame is whole.
#[derive(Debug, Clone, Default)]
struct Pending(Rc<RefCell<Vec<u8>>>);

impl Write for Pending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether there is anything but escape sequences: a frame in which nothing changed has colours to
/// reset and a cursor to hide, and no cell.
fn has_cells(frame: &[u8]) -> bool {
    let mut rest = frame.iter();
    while let Some(byte) = rest.next() {
        match byte {
            0x1b => drop(rest.by_ref().skip(1).find(|byte| (0x40..=0x7e).contains(*byte))),
            0x20.. => return true,
            _ => {}
        }
    }
    false
}

impl Held {
    /// Takes the terminal: raw mode, the other screen, paste and mouse as events.
    ///
    /// # Errors
    /// When standard output is no terminal, or it refuses.
    pub fn take() -> io::Result<Self> {
        WATCH.call_once(watch);
        TAKEN.store(true, Ordering::SeqCst);
        let entered = enable_raw_mode().and_then(|()| {
            execute!(io::stdout(), EnterAlternateScreen, EnableBracketedPaste, EnableMouseCapture, cursor::Hide)
        });
        let pending = Pending::default();
        let terminal = entered.and_then(|()| Terminal::new(CrosstermBackend::new(pending.clone())));
        if terminal.is_err() {
            give_back();
        }
        Ok(Self { terminal: terminal?, pending })
    }

    /// Columns and rows.
    ///
    /// # Errors
    /// When the terminal does not say.
    pub fn size(&self) -> io::Result<(u16, u16)> {
        self.terminal.size().map(|size| (size.width, size.height))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        give_back();
    }
}

impl Screen for Held {
    fn draw(&mut self, state: &State, theme: &Theme) -> io::Result<()> {
        self.terminal.draw(|frame| view::render(frame, state, theme))?;
        let frame = self.pending.0.take();
        if !has_cells(&frame) {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        // A terminal that knows these shows the frame at once; the others ignore them.
        queue!(out, BeginSynchronizedUpdate)?;
        out.write_all(&frame)?;
        execute!(out, EndSynchronizedUpdate)
    }

    fn repaint(&mut self) -> io::Result<()> {
        self.terminal.clear()
    }

    fn bell(&mut self) -> io::Result<()> {
        execute!(io::stdout(), style::Print("\u{7}"))
    }
}

/// Gives the terminal back, if it is ours.
pub fn give_back() {
    if !TAKEN.swap(false, Ordering::SeqCst) {
        return;
    }
    // Whatever fails here, the rest is still tried: there is nobody to tell.
    let mut out = io::stdout();
    let _ = execute!(out, EndSynchronizedUpdate, DisableMouseCapture, DisableBracketedPaste);
    let _ = execute!(out, LeaveAlternateScreen, cursor::Show);
    let _ = disable_raw_mode();
    let _ = out.flush();
}

/// Gives the terminal back before a panic is reported, and before a signal ends the process.
fn watch() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        give_back();
        report(info);
    }));
    // Without the thread a signal ends the process as it always does, terminal as it is.
    let _ = thread::Builder::new().name("signals".to_owned()).spawn(|| {
        if let Some(code) = ending_signal() {
            let (done, finished) = std::sync::mpsc::channel();
            let restore = thread::Builder::new().spawn(move || {
                give_back();
                let _ = done.send(());
            });
            // A terminal that nobody reads any more may block the write: half a second is enough.
            if restore.is_ok() {
                let _ = finished.recv_timeout(Duration::from_millis(500));
            }
            process::exit(code);
        }
    });
}

/// Waits for a signal that ends the process; its exit code.
fn ending_signal() -> Option<i32> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    runtime.block_on(async {
        let mut hangup = signal(SignalKind::hangup()).ok()?;
        let mut terminate = signal(SignalKind::terminate()).ok()?;
        let mut interrupt = signal(SignalKind::interrupt()).ok()?;
        tokio::select! {
            _ = hangup.recv() => Some(129),
            _ = interrupt.recv() => Some(130),
            _ = terminate.recv() => Some(143),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::has_cells;
    use crossterm::{cursor, queue, style};
    use std::io::Write;

    #[test]
    fn a_frame_without_cells_is_known() {
        let mut frame = Vec::new();
        queue!(frame, style::ResetColor, style::SetAttribute(style::Attribute::Reset), cursor::Hide).unwrap();
        assert!(!frame.is_empty() && !has_cells(&frame));
        queue!(frame, cursor::MoveTo(3, 4)).unwrap();
        assert!(!has_cells(&frame));
        for text in [" ", "a", "⣿", "┊"] {
            let mut with = frame.clone();
            with.write_all(text.as_bytes()).unwrap();
            with.extend(&frame);
            assert!(has_cells(&with), "{text:?}");
        }
    }
}
