//! Finds a training by its process or its tmux session.

use crate::cli::Failure;
use crate::config::typed::suggest;
use crate::process_tree::{Process, scan};
use crate::untrusted::text;
use rustix::process::geteuid;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// Programs that only start others.
const SHELLS: [&str; 8] = ["sh", "bash", "dash", "zsh", "fish", "ksh", "tmux", "tmux: server"];

/// Finds a process of this user.
pub fn find_process(pid: u32) -> Result<Process, Failure> {
    let owner = fs::metadata(format!("/proc/{pid}")).map(|found| found.uid());
    let process = Process::of(pid).ok_or_else(|| Failure::new(2, format!("no process has the id {pid}")))?;
    if owner.is_ok_and(|owner| owner == geteuid().as_raw()) {
        return Ok(process);
    }
    Err(Failure::new(2, format!("process {pid} belongs to another user; only your own can be adopted")))
}

/// A pane of a tmux session.
#[derive(Debug, Clone)]
pub struct Pane {
    pub id: String,
    /// The process that it shows.
    process: u32,
    /// Whether its output already goes to a program.
    is_piped: bool,
    /// The socket of the tmux server.
    pub socket: String,
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
    pub fn refuse_second_pipe(&self) -> Result<(), Failure> {
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
pub fn find_in_session(session: &str) -> Result<(Process, Pane), Failure> {
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
