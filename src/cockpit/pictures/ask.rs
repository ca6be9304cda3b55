//! Asks the terminal, and tmux if there is one, how to show pictures. The first frame does not wait for the answers;
//! only keys do, for as long as the terminal takes, and half a second at most.

use super::detect::{TmuxClient, decide, is_cell, parse_answers};
use super::{PictureKind, PictureSupport, USUAL_CELL};
use crate::untrusted::child::wait_within;
use crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::io::{self, IsTerminal, Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Name and version, size of a cell, attributes. These are plain control sequences, which a terminal that does not
/// know them swallows; each terminal answers the last.
const QUERY: &[u8] = b"\x1b[>0q\x1b[16t\x1b[c";
/// Time for the answers.
const LIMIT: Duration = Duration::from_millis(500);
/// Time in which answers may arrive after that.
const LATE: Duration = Duration::from_secs(10);
/// Bytes read at most: the answers and what the user typed.
const MOST: usize = 4096;

/// Reports whether a terminal may show pictures with pixels: not the console of Linux, nor GNU screen. tmux reports
/// itself.
pub fn may_have_pixels(variable: impl Fn(&str) -> Option<String>) -> bool {
    let term = variable("TERM").unwrap_or_default();
    let in_tmux = variable("TMUX").is_some_and(|value| !value.is_empty());
    let basic = ["linux", "dumb", "vt", "ansi", "cons", "sun"].iter().any(|basic| term.starts_with(basic));
    in_tmux || !(term.is_empty() || basic || term.starts_with("screen"))
}

/// Sends the query. Call it before the first frame and before keys are read.
///
/// # Errors
/// Returns an error when the terminal is gone.
pub fn send_query() -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(QUERY)?;
    out.flush()
}

/// Waits for the answers. Returns the support, the keys typed meanwhile, and whether answers may still come.
#[must_use]
pub fn await_support() -> (PictureSupport, Vec<KeyEvent>, bool) {
    let (answers, keys) = parse_answers(&read_answers().unwrap_or_default());
    let tmux = std::env::var_os("TMUX").filter(|value| !value.is_empty()).map(|_| ask_tmux().unwrap_or_default());
    (decide(&answers, tmux.as_ref(), window_cell()), keys, !answers.complete)
}

/// Returns the support for a kind that the user forces.
#[must_use]
pub fn force_support(kind: PictureKind) -> PictureSupport {
    let through_tmux = kind.has_pixels() && std::env::var_os("TMUX").is_some_and(|value| !value.is_empty());
    PictureSupport { kind, cell: window_cell().unwrap_or(USUAL_CELL), through_tmux }
}

fn read_answers() -> io::Result<Vec<u8>> {
    let input = io::stdin();
    let mut bytes = Vec::new();
    if !input.is_terminal() {
        return Ok(bytes);
    }
    let deadline = Instant::now() + LIMIT;
    while !parse_answers(&bytes).0.complete && bytes.len() < MOST {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(&input, PollFlags::IN)], Some(&left)) {
            Err(Errno::INTR) => continue,
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        let mut chunk = [0; 256];
        let read = rustix::io::read(&input, &mut chunk)?;
        if read == 0 {
            break;
        }
        bytes.extend(&chunk[..read]);
    }
    Ok(bytes)
}

/// Asks tmux about the terminal around it.
fn ask_tmux() -> Option<TmuxClient> {
    let mut command = Command::new("tmux");
    command.args(["display-message", "-p"]);
    if let Some(pane) = std::env::var_os("TMUX_PANE") {
        command.arg("-t").arg(pane);
    }
    command.arg(TmuxClient::FORMAT).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let status = wait_within(&mut child, LIMIT).ok()??;
    let mut line = String::new();
    child.stdout.take()?.take(MOST as u64).read_to_string(&mut line).ok()?;
    status.success().then(|| TmuxClient::parse(&line))
}

/// Returns the size of a cell as the kernel knows it: on many terminals it does not.
fn window_cell() -> Option<(u16, u16)> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    let cell = (size.ws_xpixel.checked_div(size.ws_col)?, size.ws_ypixel.checked_div(size.ws_row)?);
    is_cell(cell.0, cell.1).then_some(cell)
}

/// Drops an answer that arrives after the limit. Read as keys, its letters would act on the run.
#[derive(Debug, Default)]
pub struct LateAnswer {
    until: Option<Instant>,
    inside: usize,
}

impl LateAnswer {
    /// Expects late answers for some seconds, or none.
    #[must_use]
    pub fn new(expected: bool, now: Instant) -> Self {
        Self { until: expected.then(|| now + LATE), inside: 0 }
    }

    /// Reports whether an event belongs to a late answer: `ESC P`, which reads as Alt-P, up to `ESC \`.
    pub fn holds(&mut self, event: &Event, now: Instant) -> bool {
        if self.until.is_none_or(|until| now > until) {
            return false;
        }
        let Event::Key(key) = event else { return false };
        let alt = |letter| key.code == KeyCode::Char(letter) && key.modifiers.contains(KeyModifiers::ALT);
        match self.inside {
            0 if alt('P') => self.inside = 1,
            0 => return false,
            inside => self.inside = if alt('\\') || inside >= LONGEST_ANSWER { 0 } else { inside + 1 },
        }
        true
    }
}

/// Letters of the longest name and version.
const LONGEST_ANSWER: usize = 64;

#[cfg(test)]
mod tests;
