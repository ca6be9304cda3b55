//! Output and questions of the commands: stdout for answers, stderr for sentences.

mod wrap;

use crate::untrusted::text;
use std::fmt::Arguments;
use std::io::{self, BufRead, Read, Write};
use std::os::fd::AsFd;
use wrap::wrap_lines;

/// Returns the number of columns of a stream, if it is a terminal.
pub fn terminal_width(stream: &impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(stream).ok()?;
    Some(usize::from(size.ws_col)).filter(|width| *width > 0)
}

/// Returns a text as a stream shows it: without control characters, and broken between words on a terminal.
fn shown(text: &str, stream: &impl AsFd) -> String {
    let text = text::escape_lines(text);
    terminal_width(stream).map_or_else(|| text.to_string(), |columns| wrap_lines(&text, columns))
}

/// Prints a line on stdout, without terminal control characters. A reader that has closed the pipe, as
/// `head` does, is not a failure.
pub fn print(line: &Arguments<'_>) {
    let mut out = io::stdout().lock();
    let written = writeln!(out, "{}", shown(&line.to_string(), &out));
    if written.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        std::process::exit(0);
    }
}

/// Prints a text that another program reads, byte for byte.
pub fn print_raw(text: &str) {
    let written = io::stdout().lock().write_all(text.as_bytes());
    if written.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe) {
        std::process::exit(0);
    }
}

/// Prints a sentence on stderr.
#[expect(clippy::print_stderr, reason = "the one place that writes to stderr outside the cockpit")]
pub fn say(message: &str) {
    eprintln!("{}", shown(&format!("downshift: {message}"), &io::stderr()));
}

/// Asks a question on the terminal. Anything but yes means no.
pub fn confirm(question: &str) -> io::Result<bool> {
    let mut terminal = io::stderr().lock();
    write!(terminal, "{} [y/N] ", shown(question, &terminal))?;
    terminal.flush()?;
    let mut answer = String::new();
    io::stdin().lock().take(64).read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
