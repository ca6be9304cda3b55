//! The terminal bell: written to the tmux pane that the run was started from. tmux passes it on from
//! hidden windows too, and marks them.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::process::{Command, Stdio};

/// Rings the bell.
///
/// # Errors
/// Returns an error when the bell cannot ring, with the reason.
pub fn ring() -> Result<(), String> {
    let pane = std::env::var("TMUX_PANE").map_err(|_| "the run was not started inside tmux".to_owned())?;
    let asked = Command::new("tmux")
        .args(["display-message", "-p", "-t", &pane, "#{pane_tty}"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .map_err(|error| format!("tmux: {error}"))?;
    let tty = String::from_utf8_lossy(&asked.stdout).trim().to_owned();
    if !asked.status.success() || tty.is_empty() {
        return Err("the tmux pane of the run is closed".to_owned());
    }
    let flags = rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::NONBLOCK;
    let mut terminal = OpenOptions::new()
        .write(true)
        .custom_flags(flags.bits().cast_signed())
        .open(&tty)
        .map_err(|error| format!("{tty}: {error}"))?;
    if !terminal.metadata().is_ok_and(|is| is.file_type().is_char_device()) {
        return Err(format!("{tty} is no terminal"));
    }
    terminal.write_all(b"\x07").map_err(|error| format!("{tty}: {error}"))
}
