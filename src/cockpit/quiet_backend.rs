//! Terminal backend that writes nothing when nothing changed, and otherwise sends each frame as one
//! synchronized update, which terminals that support it show at once.

use crossterm::terminal::{BeginSynchronizedUpdate, EndSynchronizedUpdate};
use crossterm::{execute, queue};
use ratatui::backend::{Backend, ClearType, CrosstermBackend, WindowSize};
use ratatui::buffer::Cell;
use ratatui::layout::{Position, Size};
use rustix::stdio::stdout;
use rustix::termios::tcgetwinsize;
use std::io::{self, BufWriter, Stdout, Write};

/// A backend that writes only the differences.
#[derive(Debug)]
pub struct QuietBackend<W: Write = BufWriter<Stdout>> {
    inner: CrosstermBackend<W>,
    cursor_hidden: bool,
}

impl QuietBackend {
    /// Creates a backend for standard output.
    #[must_use]
    pub fn new() -> Self {
        Self::with_writer(BufWriter::new(io::stdout()))
    }
}

impl Default for QuietBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl<W: Write> QuietBackend<W> {
    /// Creates a backend for a writer.
    pub fn with_writer(writer: W) -> Self {
        Self { inner: CrosstermBackend::new(writer), cursor_hidden: false }
    }
}

impl<W: Write> Backend for QuietBackend<W> {
    type Error = io::Error;

    fn draw<'a, I: Iterator<Item = (u16, u16, &'a Cell)>>(&mut self, content: I) -> io::Result<()> {
        let mut content = content.peekable();
        if content.peek().is_none() {
            return Ok(());
        }
        // Terminals that support synchronized updates show the frame at once; the others ignore these sequences.
        queue!(self.inner, BeginSynchronizedUpdate)?;
        self.inner.draw(content)?;
        execute!(self.inner, EndSynchronizedUpdate)
    }

    fn hide_cursor(&mut self) -> io::Result<()> {
        if !std::mem::replace(&mut self.cursor_hidden, true) {
            self.inner.hide_cursor()?;
        }
        Ok(())
    }

    fn show_cursor(&mut self) -> io::Result<()> {
        self.cursor_hidden = false;
        self.inner.show_cursor()
    }

    /// Always returns the corner. The cursor is hidden, and querying the terminal would either steal
    /// the reply from the key reader or wait for a reply the key reader has already consumed.
    fn get_cursor_position(&mut self) -> io::Result<Position> {
        Ok(Position::ORIGIN)
    }

    fn set_cursor_position<P: Into<Position>>(&mut self, position: P) -> io::Result<()> {
        self.inner.set_cursor_position(position)
    }

    fn clear(&mut self) -> io::Result<()> {
        self.inner.clear()
    }

    fn clear_region(&mut self, clear_type: ClearType) -> io::Result<()> {
        self.cursor_hidden = false;
        self.inner.clear_region(clear_type)
    }

    /// Returns the terminal's size. It is asked for before each frame, and crossterm would open /dev/tty each time.
    fn size(&self) -> io::Result<Size> {
        match tcgetwinsize(stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => Ok(Size::new(size.ws_col, size.ws_row)),
            _ => self.inner.size(),
        }
    }

    fn window_size(&mut self) -> io::Result<WindowSize> {
        self.inner.window_size()
    }

    fn flush(&mut self) -> io::Result<()> {
        Backend::flush(&mut self.inner)
    }
}

#[cfg(test)]
mod tests {
    use super::QuietBackend;
    use ratatui::backend::Backend;
    use ratatui::buffer::Cell;
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn nothing_is_written_while_nothing_changes() {
        let sink = Sink::default();
        let mut quiet = QuietBackend::with_writer(sink.clone());
        quiet.hide_cursor().unwrap();
        sink.0.lock().unwrap().clear();
        for _ in 0..10 {
            quiet.draw(std::iter::empty()).unwrap();
            quiet.hide_cursor().unwrap();
            quiet.flush().unwrap();
        }
        assert!(sink.0.lock().unwrap().is_empty());
        let cell = Cell::new("x");
        quiet.draw(std::iter::once((3, 4, &cell))).unwrap();
        let said = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
        assert!(said.starts_with("\u{1b}[?2026h") && said.ends_with("\u{1b}[?2026l") && said.contains('x'), "{said:?}");
    }
}
