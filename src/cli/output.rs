//! Output and questions of the commands: stdout for answers, stderr for sentences.

use crate::untrusted::text;
use std::fmt::Arguments;
use std::io::{self, BufRead, Read, Write};

/// Prints a line on stdout, without terminal control characters. A reader that has closed the pipe, as
/// `head` does, is not a failure.
pub fn print(line: &Arguments<'_>) {
    let text = line.to_string();
    let written = writeln!(io::stdout().lock(), "{}", text::escape_lines(&text));
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
    eprintln!("downshift: {}", text::escape_lines(message));
}

/// Asks a question on the terminal. Anything but yes means no.
pub fn confirm(question: &str) -> io::Result<bool> {
    let mut terminal = io::stderr().lock();
    write!(terminal, "{question} [y/N] ")?;
    terminal.flush()?;
    let mut answer = String::new();
    io::stdin().lock().take(64).read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
