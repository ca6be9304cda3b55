//! Runs `COMMAND --help` after the user has agreed. Some scripts start training whatever they are given, so it sees no
//! GPU, has ten seconds, and everything it started is killed.

use crate::cli::{Failure, confirm, line};
use crate::init::flag::Declared;
use crate::init::help_text::read_help;
use crate::process_tree::{Family, Grace, TOKEN_VARIABLE, end_all, new_token};
use std::io::{self, IsTerminal, PipeReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The time the script gets.
const LIMIT: Duration = Duration::from_secs(10);
/// Maximum bytes of help read.
const BYTES: u64 = 1 << 20;
/// Everything is killed at once: nothing in it has anything to save.
const NOW: Grace = Grace { command: Duration::ZERO, others: Duration::ZERO, kill: Duration::from_secs(2) };

/// Asks the script for its arguments; `None` if it may not run, or prints none.
pub fn ask_script(command: &[String], allowed: bool) -> Result<Option<Declared>, Failure> {
    let shown = command.join(" ");
    line!("the source declares no arguments that downshift can read");
    if !allowed {
        if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
            line!("add --run-help to run `{shown}` and read them there: without GPUs, for at most 10 s");
            return Ok(None);
        }
        if !confirm(&format!("Run `{shown}` to read them, without GPUs, for at most 10 s?"))? {
            return Ok(None);
        }
    }
    let text = run_help(command).map_err(|error| Failure::new(1, format!("{shown}: {error}")))?;
    let declared = read_help(&text);
    if declared.flags.is_empty() {
        line!("`{shown}` printed no arguments either");
        return Ok(None);
    }
    Ok(Some(declared))
}

/// Runs the command and returns what it printed within the limit. Nothing it started is alive afterwards.
fn run_help(command: &[String]) -> io::Result<String> {
    let (program, arguments) = command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let token = new_token();
    let (reader, writer) = io::pipe()?;
    let mut command = Command::new(program);
    command.args(arguments).env("CUDA_VISIBLE_DEVICES", "").env("COLUMNS", "200").env(TOKEN_VARIABLE, &token);
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer).process_group(0);
    let mut child = command.spawn()?;
    // The command holds copies of the pipe, which would keep the reader waiting.
    drop(command);
    let output = read_output(reader).recv_timeout(LIMIT).unwrap_or_default();
    let _ = end_all(&Family::Attempt { token, root: std::process::id() }, None, NOW, None);
    let _ = child.kill();
    child.wait()?;
    Ok(output)
}

/// Reads the output on a thread: the receiver gets it when every writer is gone, or the first writer has closed it.
fn read_output(reader: PipeReader) -> mpsc::Receiver<String> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = reader.take(BYTES).read_to_end(&mut bytes);
        let _ = send.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receive
}
