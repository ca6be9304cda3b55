//! Terminal guard: takes the terminal on entry and restores it on every exit path.
//!
//! ```text
//! return, error ─▶ Drop ─┐
//! panic ─────────▶ hook ─┼─▶ give_back: runs once, however many paths reach it
//! SIGTERM, SIGHUP ▶ dedicated thread, then exit
//! ```
//! The thread is necessary: when the terminal vanishes, crossterm's reader spins and never returns, so
//! cleanup must not depend on the loop noticing.

use super::glyphs::{Glyphs, bring_down, disarm};
use super::quiet::Quiet;
use super::run::Screen;
use super::state::State;
use super::view;
use crate::config::theme::Theme;
use crossterm::event::{DisableBracketedPaste, DisableMouseCapture, EnableBracketedPaste, EnableMouseCapture};
use crossterm::terminal::{
    EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use crossterm::{cursor, execute, style};
use ratatui::Terminal;
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
pub struct Held {
    terminal: Terminal<Quiet>,
    glyphs: Glyphs,
}

impl Held {
    /// Takes the terminal: raw mode, alternate screen, bracketed paste and mouse capture.
    ///
    /// # Errors
    /// Returns an error when standard output is not a terminal, or when the terminal refuses.
    pub fn take(glyphs: Glyphs) -> io::Result<Self> {
        WATCH.call_once(watch);
        let entered = enter();
        let terminal = entered.and_then(|()| Terminal::new(Quiet::new()));
        if terminal.is_err() {
            give_back();
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

fn enter() -> io::Result<()> {
    TAKEN.store(true, Ordering::SeqCst);
    enable_raw_mode()?;
    let mut out = io::stdout();
    execute!(out, EnterAlternateScreen, EnableBracketedPaste, EnableMouseCapture, cursor::Hide)
}

impl Drop for Held {
    fn drop(&mut self) {
        give_back();
    }
}

impl Screen for Held {
    fn draw(&mut self, state: &State, theme: &Theme) -> io::Result<()> {
        let ascii = self.glyphs == Glyphs::Ascii;
        self.terminal.draw(|frame| {
            view::render(frame, state, theme);
            disarm(frame.buffer_mut());
            if ascii {
                bring_down(frame.buffer_mut());
            }
        })?;
        Ok(())
    }

    fn repaint(&mut self) -> io::Result<()> {
        self.terminal.clear()
    }

    fn bell(&mut self) -> io::Result<()> {
        execute!(io::stdout(), style::Print("\u{7}"))
    }

    fn suspend(&mut self) -> io::Result<()> {
        give_back();
        // Returns on `fg`. Not TSTP, which is caught and arrives as a message.
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::STOP)?;
        enter()?;
        self.terminal.clear()
    }
}

/// Restores the terminal if the cockpit holds it.
pub fn give_back() {
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
fn watch() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        give_back();
        report(info);
    }));
    // Without the thread, a signal ends the process in the default way and leaves the terminal as it is.
    let _ = thread::Builder::new().name("signals".to_owned()).spawn(|| {
        if let Some(code) = ending_signal() {
            let (done, finished) = std::sync::mpsc::channel();
            let restore = thread::Builder::new().spawn(move || {
                give_back();
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
