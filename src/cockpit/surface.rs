//! The surface the event loop draws on: a terminal in production, a recorder in tests.

use super::state::State;
use crate::theme::Theme;
use std::io;

/// A display for frames.
pub trait Surface {
    /// Draws a frame.
    ///
    /// # Errors
    /// Returns an error when the terminal is gone.
    fn draw(&mut self, state: &State, theme: &Theme) -> io::Result<()>;

    /// Invalidates the screen, so that the next frame redraws every cell.
    ///
    /// # Errors
    /// Returns an error when the terminal is gone.
    fn repaint(&mut self) -> io::Result<()>;

    /// Rings the bell.
    ///
    /// # Errors
    /// Returns an error when the terminal is gone.
    fn ring_bell(&mut self) -> io::Result<()>;

    /// Asks the terminal to copy a text.
    ///
    /// # Errors
    /// Returns an error when the terminal is gone.
    fn copy_text(&mut self, text: &str) -> io::Result<()>;

    /// Restores the terminal, stops the process, and takes the terminal again on resume.
    ///
    /// # Errors
    /// Returns an error when the terminal is gone.
    fn suspend(&mut self) -> io::Result<()>;
}
