//! The terminal bell: written to the tmux pane that the run was started from. tmux passes it on from
//! hidden windows too, and marks them.

use super::NotifyError;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Rings the bell.
///
/// # Errors
/// Returns an error when the bell cannot ring, with the reason.
pub fn ring_bell() -> Result<(), NotifyError> {
    let pane = std::env::var("TMUX_PANE").map_err(|_| NotifyError::NotInTmux)?;
    let asked = Command::new("tmux")
        .args(["display-message", "-p", "-t", &pane, "#{pane_tty}"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .map_err(|error| NotifyError::from_io("tmux", &error))?;
    let tty = String::from_utf8_lossy(&asked.stdout).trim().to_owned();
    if !asked.status.success() || tty.is_empty() {
        return Err(NotifyError::PaneClosed);
    }
    let tty = PathBuf::from(tty);
    let failed = |error: std::io::Error| NotifyError::from_file(&tty, &error);
    let flags = rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::NONBLOCK;
    let flags = flags.bits().cast_signed();
    let mut terminal = OpenOptions::new().write(true).custom_flags(flags).open(&tty).map_err(failed)?;
    if !terminal.metadata().is_ok_and(|is| is.file_type().is_char_device()) {
        return Err(NotifyError::NotATerminal(tty));
    }
    terminal.write_all(b"\x07").map_err(failed)
}
