//! Terminal guard: takes the terminal on entry and restores it on every exit path.
//!
//! ```text
//! return, error ─▶ Drop ─┐
//! panic ─────────▶ hook ─┼─▶ restore_terminal: runs once, however many paths reach it
//! SIGTERM, SIGHUP ▶ dedicated thread, then exit
//! ```
//! The thread is necessary: when the terminal vanishes, crossterm's reader spins and never returns, so
//! cleanup must not depend on the loop noticing.

use super::clipboard;
use super::glyphs::{Glyphs, replace_with_ascii, strip_unsafe};
use super::quiet_backend::QuietBackend;
use super::state::State;
use super::surface::Surface;
use super::view;
use crate::theme::Theme;
use crossterm::event::{DisableBracketedPaste, DisableMouseCapture, EnableBracketedPaste, EnableMouseCapture};
use crossterm::terminal::{
    EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use crossterm::{cursor, execute, style};
use ratatui::{Frame, Terminal};
use std::io::{self, Write};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{panic, process, thread};
use tokio::signal::unix::{SignalKind, signal};

/// Whether the cockpit holds the terminal. A static because a panic hook and a signal thread need it.
static TAKEN: AtomicBool = AtomicBool::new(false);
static WATCH: Once = Once::new();

/// The terminal while the cockpit holds it.
#[derive(Debug)]
pub struct HeldTerminal {
    terminal: Terminal<QuietBackend>,
    glyphs: Glyphs,
}

impl HeldTerminal {
    /// Takes the terminal: raw mode, alternate screen, bracketed paste and mouse capture.
    ///
    /// # Errors
    /// Returns an error when standard output is not a terminal, or when the terminal refuses.
    pub fn acquire(glyphs: Glyphs) -> io::Result<Self> {
        WATCH.call_once(install_restore_hooks);
        let entered = enter_screen();
        let terminal = entered.and_then(|()| Terminal::new(QuietBackend::new()));
        if terminal.is_err() {
            restore_terminal();
        }
        Ok(Self { terminal: terminal?, glyphs })
    }

    /// Returns the size in columns and rows.
    ///
    /// # Errors
    /// Returns an error when the terminal does not report its size.
    pub fn size(&self) -> io::Result<(u16, u16)> {
        self.terminal.size().map(|size| (size.width, size.height))
    }
}

impl HeldTerminal {
    /// Draws a frame, and replaces what the terminal cannot display.
    ///
    /// # Errors
    /// Returns an error when the terminal is gone.
    pub fn draw_with(&mut self, render: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        let ascii = self.glyphs == Glyphs::Ascii;
        self.terminal.draw(|frame| {
            render(frame);
            strip_unsafe(frame.buffer_mut());
            if ascii {
                replace_with_ascii(frame.buffer_mut());
            }
        })?;
        Ok(())
    }
}

fn enter_screen() -> io::Result<()> {
    TAKEN.store(true, Ordering::SeqCst);
    enable_raw_mode()?;
    let mut out = io::stdout();
    execute!(out, EnterAlternateScreen, EnableBracketedPaste, EnableMouseCapture, cursor::Hide)
}

impl Drop for HeldTerminal {
    fn drop(&mut self) {
        restore_terminal();
    }
}

impl Surface for HeldTerminal {
    fn draw(&mut self, state: &State, theme: &Theme) -> io::Result<()> {
        self.draw_with(|frame| view::render(frame, state, theme))
    }

    fn repaint(&mut self) -> io::Result<()> {
        self.terminal.clear()
    }

    fn ring_bell(&mut self) -> io::Result<()> {
        execute!(io::stdout(), style::Print("\u{7}"))
    }

    fn copy_text(&mut self, text: &str) -> io::Result<()> {
        execute!(io::stdout(), style::Print(clipboard::osc_52(text, clipboard::in_tmux())))
    }

    fn suspend(&mut self) -> io::Result<()> {
        restore_terminal();
        // Returns on `fg`. Not TSTP, which is caught and arrives as a message.
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP)?;
        enter_screen()?;
        self.terminal.clear()
    }
}

/// Restores the terminal if the cockpit holds it.
pub fn restore_terminal() {
    if !TAKEN.swap(false, Ordering::SeqCst) {
        return;
    }
    // If one step fails, the rest is still attempted; there is nowhere to report it.
    let mut out = io::stdout();
    let _ = execute!(out, EndSynchronizedUpdate, DisableMouseCapture, DisableBracketedPaste);
    let _ = execute!(out, LeaveAlternateScreen, cursor::Show);
    let _ = disable_raw_mode();
    let _ = out.flush();
}

/// Restores the terminal before a panic is reported and before a signal ends the process.
fn install_restore_hooks() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        restore_terminal();
        report(info);
    }));
    // Without the thread, a signal ends the process in the default way and leaves the terminal as it is.
    let _ = thread::Builder::new().name("signals".to_owned()).spawn(|| {
        if let Some(code) = ending_signal() {
            let (done, finished) = std::sync::mpsc::channel();
            let restore = thread::Builder::new().spawn(move || {
                restore_terminal();
                let _ = done.send(());
            });
            // The write may block if nothing reads the terminal any more; wait half a second at most.
            if restore.is_ok() {
                let _ = finished.recv_timeout(Duration::from_millis(500));
            }
            process::exit(code);
        }
    });
}

/// Waits for a signal that ends the process; returns the exit code.
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
