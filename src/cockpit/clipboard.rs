//! Copies text to the clipboard of the terminal that shows the cockpit, over any number of hops.
//!
//! ```text
//! in tmux    tmux load-buffer -w     sets tmux's buffer and the clipboard of its terminal; works with the defaults
//!            OSC 52, twice           if that fails: plain for set-clipboard, wrapped for allow-passthrough
//! elsewhere  OSC 52                  the terminal sets its clipboard, or ignores it
//! ```

use crate::untrusted::child::wait_within;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::io::{self, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Maximum number of bytes to copy; terminals ignore sequences that are much longer.
pub const MOST: usize = 48 << 10;
/// Time that tmux gets.
const PATIENCE: Duration = Duration::from_secs(2);

/// Reports whether the cockpit runs inside tmux.
#[must_use]
pub fn in_tmux() -> bool {
    std::env::var_os("TMUX").is_some_and(|value| !value.is_empty())
}

/// Hands the text to tmux. Blocks until tmux has taken it.
///
/// # Errors
/// Returns an error when tmux is missing, too old or does not answer.
pub fn load_tmux_buffer(text: &str) -> io::Result<()> {
    let mut command = Command::new("tmux");
    command.args(["load-buffer", "-w", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    // Less than a pipe holds: the write does not block.
    let written = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(text.as_bytes()));
    let ended = wait_within(&mut child, PATIENCE)?;
    written?;
    if ended.is_some_and(|status| status.success()) { Ok(()) } else { Err(io::Error::other("tmux refused the text")) }
}

/// Returns the escape sequence that asks the terminal to set its clipboard.
#[must_use]
pub fn osc_52(text: &str, in_tmux: bool) -> String {
    let sequence = format!("\u{1b}]52;c;{}\u{7}", STANDARD.encode(text));
    if !in_tmux {
        return sequence;
    }
    let wrapped = sequence.replace('\u{1b}', "\u{1b}\u{1b}");
    format!("{sequence}\u{1b}Ptmux;{wrapped}\u{1b}\\")
}

#[cfg(test)]
mod tests {
    use super::osc_52;

    #[test]
    fn the_sequence_holds_the_text_and_is_wrapped_for_tmux() {
        let plain = "\u{1b}]52;c;bG9zcyAwLjMxMg==\u{7}";
        assert_eq!(osc_52("loss 0.312", false), plain);
        assert_eq!(osc_52("loss 0.312", true), format!("{plain}\u{1b}Ptmux;\u{1b}{plain}\u{1b}\\"));
    }
}
