//! Starts the command: its files, its environment, its terminal, its session.

use super::holder::{self, Holder};
use super::terminal::Terminal;
use crate::config::command::{CommandLaunch, OUTPUTS};
use crate::config::settings_file::SettingsError;
use crate::process_tree::{Process, TOKEN_VARIABLE};
use crate::protocol::companion::SETUP_VARIABLE;
use crate::store::permissions::create_folder;
use crate::store::umask;
use crate::untrusted::text;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Exit code of a shell for a program that cannot be started, and for one that does not exist.
const CANNOT_START: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Reason why the command was not started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// A file of the rung cannot be written.
    #[error("{} cannot be written: {source}", text::path(.path))]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A copy of a settings file cannot be made.
    #[error(transparent)]
    Settings(#[from] Box<SettingsError>),
    /// The working directory is missing.
    #[error("the directory {} does not exist; correct `directory:`", text::path(.0))]
    Directory(PathBuf),
    /// The system has no pseudo-terminals.
    #[error("the command gets no terminal: {0}; mount devpts at /dev/pts, or run it with `--set terminal=false`")]
    Terminal(io::Error),
    /// A process cannot be created.
    #[error("the command cannot be started: {0}")]
    System(#[from] io::Error),
}

/// A started command.
#[derive(Debug)]
pub struct Started {
    /// Its first process.
    pub process: Process,
    /// The end of its output that is read.
    pub output: OwnedFd,
    /// The second holder of its output.
    pub holder: Holder,
}

/// Creates the folder for outputs below the run directory if an argument names it: a script may expect that it exists.
///
/// # Errors
/// Returns the system's error.
pub fn create_outputs(launch: &CommandLaunch, run_dir: &Path) -> io::Result<()> {
    let outputs = OUTPUTS.replace("{run_dir}", &run_dir.display().to_string());
    let names_it = launch.argv.iter().any(|word| word.contains(&outputs));
    if names_it { create_folder(Path::new(&outputs)) } else { Ok(()) }
}

/// Starts the command in a session of its own. Its output goes to a terminal or, without `terminal`, to a pipe.
///
/// # Errors
/// Returns an error that names what is missing.
pub fn start(launch: &CommandLaunch, token: &str, terminal: bool, log: File) -> Result<Started, LaunchError> {
    if !launch.directory.is_dir() {
        return Err(LaunchError::Directory(launch.directory.clone()));
    }
    let opened =
        if terminal { Terminal::open_pty().map_err(LaunchError::Terminal) } else { Ok(Terminal::open_pipe()?) };
    let Terminal { output, command: end } = opened?;
    let holder = holder::start(&output, log)?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("downshift-command").args(["exec-command", "--"]).args(&launch.argv);
    command.current_dir(&launch.directory).stdin(Stdio::null()).stdout(end.try_clone()?).stderr(end);
    // Output that waits in a buffer looks like a hang.
    command
        .env_remove(SETUP_VARIABLE)
        .env("PYTHONUNBUFFERED", "1")
        .envs(&launch.environment)
        .env(TOKEN_VARIABLE, token)
        .envs(umask::for_child());
    let pid = command.spawn()?.id();
    let gone = Process { pid, parent: std::process::id(), started: 0, cpu_ticks: 0, token: Some(token.to_owned()) };
    Ok(Started { process: Process::of(pid).unwrap_or(gone), output, holder })
}

/// Becomes the command, in a session of its own. Returns only if that fails, with the exit code.
pub fn exec_command(argv: &[String]) -> u8 {
    let Some((program, arguments)) = argv.split_first() else { return CANNOT_START };
    // Fails only for the leader of a process group, which a fresh child is not.
    let _ = rustix::process::setsid();
    umask::restore();
    let error = Command::new(program).args(arguments).env_remove(umask::VARIABLE).exec();
    super::complain(&format!("{program}: {error}"));
    if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_START }
}
