//! Carries out what the cockpit was asked for: the same command, in the same terminal, as if it had been typed.

use super::{Failure, say};
use crate::cockpit::errand::Errand;
use crate::format::quoted;
use crate::store::umask;
use std::io::{self, BufRead, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Becomes the command, or runs it and waits for Enter if the cockpit opens again afterwards.
pub fn carry_out(errand: &Errand, runs: &Path) -> Result<(), Failure> {
    let words = errand.words();
    let shown: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    say(&shown.join(" "));
    // Also correct after a rebuild during the run.
    let mut command = Command::new("/proc/self/exe");
    command.arg("--runs-dir").arg(runs).args(&words).envs(umask::for_child());
    if !errand.returns() {
        return Err(command.exec().into());
    }
    command.status()?;
    wait_for_enter()?;
    Ok(())
}

fn wait_for_enter() -> io::Result<()> {
    let mut terminal = io::stderr().lock();
    write!(terminal, "\nEnter returns to the cockpit ")?;
    terminal.flush()?;
    let mut line = String::new();
    io::stdin().lock().take(4096).read_line(&mut line)?;
    Ok(())
}
