//! The command that measures a checkpoint: started without a shell, read within bounds, and ended with everything it
//! started, however it ends.

use super::end_command;
use crate::log_metrics::read_numbers;
use crate::process_tree::TOKEN_VARIABLE;
use crate::protocol::exit::Exit;
use crate::protocol::metrics::Metrics;
use crate::store::run_dir::{RunDir, write_unsynced};
use crate::store::umask;
use crate::untrusted::text;
use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

/// Most bytes of stdout that are read for numbers; the rest is discarded.
const MOST_OUTPUT: usize = 1 << 20;
/// Bytes of stderr that are kept, from its end.
const KEPT_ERRORS: usize = 1 << 16;
/// The file in the run directory with the end of the newest command's stderr.
const LOG: &str = "quality.log";
/// Longest part of stderr in a sentence.
const QUOTED: usize = 200;
/// How long the pipes of a dead command may stay open: a process that cannot be killed holds them.
const DRAIN: Duration = Duration::from_secs(5);

/// A program and what it is given.
#[derive(Debug)]
pub struct Program {
    /// The program and its arguments.
    pub words: Vec<String>,
    /// Where it starts.
    pub directory: PathBuf,
    /// Variables added to the environment.
    pub environment: Vec<(String, String)>,
    /// Marks its processes.
    pub token: String,
}

/// Reason why a program measured nothing.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// It names no program.
    #[error("`quality.command` names no program on this rung")]
    Empty,
    /// It cannot be started.
    #[error("{} cannot be started in {}: {source}", text::escape_line(.program), text::path(.directory))]
    Start {
        /// The program.
        program: String,
        /// Its directory.
        directory: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It failed.
    #[error("{} failed: {exit}{}", text::escape_line(.program), quote(.said))]
    Failed {
        /// The program.
        program: String,
        /// How it ended.
        exit: Exit,
        /// The last line of its stderr.
        said: String,
    },
    /// It printed nothing to measure by.
    #[error(
        "{} printed no number on stdout, such as `fid 12.3` or {{\"fid\": 12.3}}{}",
        text::escape_line(.program), quote(.said)
    )]
    NoNumber {
        /// The program.
        program: String,
        /// The last line of its stderr.
        said: String,
    },
    /// The system refuses to say how it ended.
    #[error(transparent)]
    System(#[from] io::Error),
}

fn quote(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(" ({})", text::escape_line(said)) }
}

impl Program {
    /// Runs the program to its end, and returns the numbers that it printed. Nothing it started is alive afterwards.
    ///
    /// # Errors
    /// Returns an error when it cannot be started, fails, or prints no number.
    pub fn run(self, run_dir: &RunDir) -> Result<Metrics, ProgramError> {
        let program = self.words.first().cloned().ok_or(ProgramError::Empty)?;
        let mut child = self.start().map_err(|source| {
            let (program, directory) = (program.clone(), self.directory.clone());
            ProgramError::Start { program, directory, source }
        })?;
        let output = child.stdout.take().map(|pipe| read_on_thread(pipe, keep_first));
        let errors = child.stderr.take().map(|pipe| read_on_thread(pipe, keep_last));
        let ended = child.wait();
        // Processes that it started may hold the pipes.
        end_command(&self.token);
        let received = |pipe: Option<Receiver<Vec<u8>>>| {
            let bytes = pipe.and_then(|pipe| pipe.recv_timeout(DRAIN).ok()).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (output, errors) = (received(output), received(errors));
        // Only a help: without it, the sentence in the journal has to do.
        let _ = write_unsynced(&run_dir.file(LOG), errors.as_bytes());
        let said = errors.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
        let said: String = said.chars().take(QUOTED).collect();
        let ended = ended?;
        if !ended.success() {
            return Err(ProgramError::Failed { program, exit: Exit::of_command(ended.code(), ended.signal()), said });
        }
        let numbers = read_numbers(&output);
        if numbers.is_empty() { Err(ProgramError::NoNumber { program, said }) } else { Ok(numbers) }
    }

    fn start(&self) -> io::Result<Child> {
        let (program, arguments) = self.words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.directory);
        command.envs(self.environment.iter().map(|(name, value)| (name, value))).env(TOKEN_VARIABLE, &self.token);
        umask::restore();
        command.env_remove(umask::VARIABLE);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command.spawn()
    }
}

/// Reads a pipe to its end on a thread, so that the program never waits for a reader.
fn read_on_thread(mut pipe: impl Read + Send + 'static, keep: fn(&mut VecDeque<u8>, &[u8])) -> Receiver<Vec<u8>> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let (mut kept, mut buffer) = (VecDeque::new(), vec![0; 1 << 16]);
        loop {
            match pipe.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => keep(&mut kept, &buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        let _ = send.send(kept.into());
    });
    receive
}

fn keep_first(kept: &mut VecDeque<u8>, bytes: &[u8]) {
    let room = MOST_OUTPUT.saturating_sub(kept.len());
    kept.extend(&bytes[..bytes.len().min(room)]);
}

fn keep_last(kept: &mut VecDeque<u8>, bytes: &[u8]) {
    kept.extend(bytes);
    let excess = kept.len().saturating_sub(KEPT_ERRORS);
    kept.drain(..excess);
}
