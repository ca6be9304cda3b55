//! `adopt`: watches a training process that already runs.

use super::run::{look_on, start_keeper};
use super::{Failure, Outcome, trust};
use crate::config::command;
use crate::config::run::{AsWritten, Run, Source};
use crate::config::typed::suggest;
use crate::keeper::Launch;
use crate::process_tree::{Process, scan};
use crate::store::command_line::record_command_line;
use crate::store::foreign::{ForeignProcess, TmuxPane};
use crate::store::identity::Identity;
use crate::store::run_dir::RunDir;
use crate::untrusted::text;
use clap::Args;
use rustix::process::geteuid;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Programs that only start others.
const SHELLS: [&str; 8] = ["sh", "bash", "dash", "zsh", "fish", "ksh", "tmux", "tmux: server"];

/// Arguments of `adopt`.
#[derive(Debug, Clone, Args)]
pub struct AdoptArgs {
    /// The tmux session in which it runs
    #[arg(long, value_name = "NAME", required_unless_present = "pid", conflicts_with = "pid")]
    session: Option<String>,
    /// Its process
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// The folder it saves checkpoints to, as checkpoint-STEP; an alarm is raised when the newest is twice as old as usual
    #[arg(long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
    /// The file its output goes to; with --session, output is read from the pane
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Raise an alarm after this time without output and CPU use; a younger checkpoint is never overdue
    #[arg(long, default_value_t = 300, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    interval: u64,
    /// Maximum number of restarts with COMMAND
    #[arg(long, default_value_t = 3, value_name = "N")]
    max_restarts: u32,
    /// Let the keeper end it: when it hangs, and on `stop`, `pause` and `shift`
    #[arg(long)]
    may_end: bool,
    /// Start COMMAND when it dies
    #[arg(long, requires = "command")]
    restart: bool,
    /// No cockpit: one line per event on stdout
    #[arg(long)]
    headless: bool,
    /// The command that starts it again, after `--restart --`
    #[arg(last = true, value_name = "COMMAND", requires = "restart")]
    command: Vec<String>,
}

/// Watches a training process that already runs.
pub fn adopt(args: &AdoptArgs, runs: &Path) -> Outcome {
    let (process, pane) = match (args.pid, &args.session) {
        (Some(pid), _) => (find_process(pid)?, None),
        (None, Some(session)) => find_in_session(session).map(|(process, pane)| (process, Some(pane)))?,
        (None, None) => return Err(Failure::new(2, "name the training with --session or --pid")),
    };
    let log = args.log.as_deref().map(|log| existing("--log", log)).transpose()?;
    let pane = pane.filter(|_| log.is_none());
    if let Some(pane) = &pane {
        pane.refuse_second_pipe()?;
    }
    let run = run_of(args, &process)?;
    // It runs already, or was typed after --restart.
    trust::approve_typed(&run);
    let dir = RunDir::create(runs, &run)?;
    record_command_line(&dir);
    // The harness has tmux write to it.
    let session = pane.as_ref().map(|_| dir.file("session.log"));
    if let Some(session) = &session {
        fs::write(session, "")?;
    }
    let output = session.or(log);
    let identity = Identity::of(process.pid).filter(|identity| identity.started == process.started);
    let identity = identity.ok_or_else(|| Failure::new(1, format!("process {} has just ended", process.pid)))?;
    let pane = pane.map(|pane| TmuxPane { id: pane.id, socket: pane.socket });
    ForeignProcess { identity, output, pane, may_end: args.may_end }.record(&dir)?;
    start_keeper(&dir, Some(&Launch { device: "auto".to_owned(), claim: None, inject: Vec::new() }))?;
    look_on(&dir, args.headless, 0)
}

/// Returns the absolute path of a file or folder that an option names.
fn existing(option: &str, path: &Path) -> Result<PathBuf, Failure> {
    let shown = text::path(path);
    path.canonicalize().map_err(|error| {
        Failure::new(2, format!("{option} {shown}: {error}; name one that exists, from the current folder"))
    })
}

/// Finds a process of this user.
fn find_process(pid: u32) -> Result<Process, Failure> {
    let owner = fs::metadata(format!("/proc/{pid}")).map(|found| found.uid());
    let process = Process::of(pid).ok_or_else(|| Failure::new(2, format!("no process has the id {pid}")))?;
    if owner.is_ok_and(|owner| owner == geteuid().as_raw()) {
        return Ok(process);
    }
    Err(Failure::new(2, format!("process {pid} belongs to another user; only your own can be adopted")))
}

/// A pane of a tmux session.
#[derive(Debug, Clone)]
struct Pane {
    id: String,
    /// The process that it shows.
    process: u32,
    /// Whether its output already goes to a program.
    is_piped: bool,
    /// The socket of the tmux server.
    socket: String,
}

impl Pane {
    /// Reads a line of `tmux list-panes`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(4, ' ');
        let (id, process) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        let is_piped = words.next()? == "1";
        Some(Self { id, process, is_piped, socket: words.next()?.to_owned() })
    }

    /// A pane has one pipe: another one would end the first.
    fn refuse_second_pipe(&self) -> Result<(), Failure> {
        let id = &self.id;
        let text = format!(
            "pane {id} already writes its output to a program; end that with `tmux pipe-pane -t {id}`, or name the \
             file with --log"
        );
        if self.is_piped { Err(Failure::new(2, text)) } else { Ok(()) }
    }
}

/// Finds the training in a tmux session, and its pane: what the shells started, and of several the process that worked
/// most.
fn find_in_session(session: &str) -> Result<(Process, Pane), Failure> {
    let sessions = tmux(&["list-sessions", "-F", "#{session_name}"])?;
    if !sessions.lines().any(|name| name == session) {
        let names: Vec<&str> = sessions.lines().collect();
        return Err(Failure::new(
            2,
            format!("--session {session}: tmux has no such session; {}", suggest(session, &names)),
        ));
    }
    let target = format!("={session}");
    let listed =
        tmux(&["list-panes", "-s", "-t", &target, "-F", "#{pane_id} #{pane_pid} #{pane_pipe} #{socket_path}"])?;
    let all = scan();
    let mut here: Vec<(&Process, Pane)> = Vec::new();
    for pane in listed.lines().filter_map(Pane::parse) {
        here.extend(all.iter().find(|process| process.pid == pane.process).map(|process| (process, pane)));
    }
    let mut found: Vec<(&Process, Pane)> = Vec::new();
    while let Some((process, pane)) = here.pop() {
        if is_shell(process.pid) {
            let children = all.iter().filter(|child| child.parent == process.pid);
            here.extend(children.map(|child| (child, pane.clone())));
        } else {
            found.push((process, pane));
        }
    }
    let most = found.into_iter().max_by_key(|(process, _)| process.cpu_ticks);
    let (most, pane) = most.ok_or_else(|| Failure::new(2, format!("nothing runs in the tmux session {session}")))?;
    Ok((find_process(most.pid)?, pane))
}

fn is_shell(pid: u32) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    SHELLS.contains(&name.trim_end())
}

fn tmux(words: &[&str]) -> Result<String, Failure> {
    let said = Command::new("tmux").args(words).output();
    let said = said.map_err(|error| Failure::new(1, format!("tmux: {error}")))?;
    if said.status.success() {
        return Ok(String::from_utf8_lossy(&said.stdout).into_owned());
    }
    Err(Failure::new(2, format!("tmux: {}", text::escape_line(String::from_utf8_lossy(&said.stderr).trim()))))
}

/// Returns the run of an adopted process: its own command line, or the one that starts it again.
fn run_of(args: &AdoptArgs, process: &Process) -> Result<Run, Failure> {
    let own = fs::read(format!("/proc/{}/cmdline", process.pid)).unwrap_or_default();
    let own: Vec<String> =
        own.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let own: Vec<String> = own.into_iter().filter(|word| !word.is_empty()).collect();
    let words = if args.command.is_empty() { &own } else { &args.command };
    if words.is_empty() {
        return Err(Failure::new(
            2,
            format!("process {} has no command line; give one with --restart --", process.pid),
        ));
    }
    let directory = fs::read_link(format!("/proc/{}/cwd", process.pid)).map_err(|error| {
        let pid = process.pid;
        Failure::new(
            1,
            format!("the folder of process {pid} cannot be read: {error}; adopt processes of your own user"),
        )
    })?;
    let text = command::run_file(words);
    let overrides = overrides_of(args)?;
    let source = Source { file: "command line", text: &text, base: &directory, overrides: &overrides };
    Run::read(&source, &AsWritten).map_err(|refusal| Failure::new(13, refusal.to_string()))
}

/// Returns the settings that the arguments stand for.
fn overrides_of(args: &AdoptArgs) -> Result<Vec<(String, String)>, Failure> {
    let (interval, most) = (format!("{} s", args.interval), args.max_restarts.to_string());
    let mut overrides: Vec<(String, String)> = [
        ("watch.hang.starting", &interval),
        ("watch.hang.first_steps", &interval),
        ("watch.restarts_without_progress", &most),
        ("watch.restarts_in_window", &most),
        ("watch.restart_window", &"never".to_owned()),
        ("restart", &(if args.restart { "from_start" } else { "never" }).to_owned()),
    ]
    .map(|(key, value)| (key.to_owned(), value.clone()))
    .into();
    if let Some(folder) = &args.output_dir {
        let folder = existing("--output-dir", folder)?;
        let pattern = format!("{}/checkpoint-*", crate::untrusted::glob::escape(&folder.display().to_string()));
        overrides.push(("checkpoints.match".to_owned(), command::template::escape(&pattern)));
    }
    Ok(overrides)
}
