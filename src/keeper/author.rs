//! The author of a request: a client on the socket, the sender of a signal, or this command. The journal names it.

use crate::protocol::exit::signal_name;
use rustix::process::{Pid, Signal, getuid};
use signal_hook::low_level::siginfo::Origin;
use std::fmt::{self, Display, Formatter};
use std::fs;

/// The author of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Author {
    /// A client on the control socket.
    Client(Option<Process>),
    /// A signal, and its sender if the system reports it.
    Signal(i32, Option<Process>),
    /// A signal passed on by the keeper's parent, with the parent's note about its sender.
    PassedOn(String),
    /// The end of the process that a [bound](super::lifeline) run lives for.
    EndOfJob,
    /// A client on another host, in its words.
    Elsewhere(String),
    /// A command that acts in place of the keeper.
    Command(Process),
}

/// A process, as it was when it made the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pid: u32,
    user: u32,
    /// Its name and its parent's name; none if it had already exited.
    name: Option<(String, Option<String>)>,
}

impl Process {
    /// Looks up the process `pid` of this user.
    #[must_use]
    pub fn new(pid: u32, user: u32) -> Self {
        let starter = parent_of(pid).filter(|starter| *starter > 0).and_then(name_of);
        Self { pid, user, name: name_of(pid).map(|name| (name, starter)) }
    }

    /// Returns this process.
    #[must_use]
    pub fn own() -> Self {
        Self::new(std::process::id(), getuid().as_raw())
    }
}

impl Author {
    /// Returns the sender of a signal.
    #[must_use]
    pub fn of_signal(origin: &Origin) -> Self {
        let sender = origin.process.filter(|sender| sender.pid > 0);
        Self::Signal(origin.signal, sender.map(|sender| Process::new(sender.pid.unsigned_abs(), sender.uid)))
    }

    /// Reports whether the user surely asked for this: a machine shutdown sends no SIGINT.
    #[must_use]
    pub fn is_wish(&self) -> bool {
        match self {
            Self::Signal(signal, _) => *signal == Signal::INT.as_raw(),
            Self::EndOfJob => false,
            Self::Client(_) | Self::Elsewhere(_) | Self::PassedOn(_) | Self::Command(_) => true,
        }
    }

    /// Reports whether this is a signal from that process.
    #[must_use]
    pub fn is_signal_of(&self, pid: Option<Pid>) -> bool {
        let sender = match self {
            Self::Signal(_, Some(sender)) => Pid::from_raw(sender.pid.cast_signed()),
            _ => None,
        };
        sender.is_some() && sender == pid
    }
}

impl Display for Author {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(Some(process)) | Self::Command(process) => process.fmt(f),
            Self::Client(None) => f.write_str("an unknown client"),
            Self::Signal(signal, Some(sender)) => write!(f, "{} from {sender}", signal_name(*signal)),
            Self::Signal(signal, None) => {
                write!(f, "{} from the kernel or another container", signal_name(*signal))
            }
            Self::Elsewhere(words) | Self::PassedOn(words) => f.write_str(words),
            Self::EndOfJob => f.write_str("the end of the job's process"),
        }
    }
}

impl Display for Process {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some((name, Some(starter))) => write!(f, "{name} (process {}, started by {starter}", self.pid)?,
            Some((name, None)) => write!(f, "{name} (process {}", self.pid)?,
            None => write!(f, "process {} (already exited", self.pid)?,
        }
        if self.user != getuid().as_raw() {
            write!(f, ", user {}", self.user)?;
        }
        f.write_str(")")
    }
}

/// Names come from other programs and end up on terminals.
fn name_of(pid: u32) -> Option<String> {
    let own = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    // A program that starts itself again through /proc/self/exe.
    let program = (own.trim_end() == "exe").then(|| fs::read_link(format!("/proc/{pid}/exe")).ok()).flatten();
    let program = program.and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()));
    let name = program.map_or(own, |name| name.trim_end_matches(" (deleted)").to_owned());
    let name: String = name.trim_end().chars().filter(|letter| letter.is_ascii_graphic() || *letter == ' ').collect();
    Some(name).filter(|name| !name.is_empty())
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Author, Process, signal_name};
    use rustix::process::getuid;

    #[test]
    fn authors_are_named_as_far_as_they_are_known() {
        let process = |name: Option<(&str, Option<&str>)>, user| Process {
            pid: 47,
            user,
            name: name.map(|(name, starter)| (name.to_owned(), starter.map(str::to_owned))),
        };
        let own = getuid().as_raw();
        let texts = [
            Author::Client(Some(process(Some(("downshift", Some("bash"))), own))),
            Author::Signal(15, Some(process(Some(("systemd", None)), own + 1))),
            Author::Signal(2, Some(process(None, own))),
            Author::Signal(15, None),
            Author::PassedOn("SIGTERM from init (process 1)".to_owned()),
        ]
        .map(|author| author.to_string());
        assert_eq!(texts[0], "downshift (process 47, started by bash)");
        assert_eq!(texts[1], format!("SIGTERM from systemd (process 47, user {})", own + 1));
        assert_eq!(texts[2], "SIGINT from process 47 (already exited)");
        assert_eq!(texts[3], "SIGTERM from the kernel or another container");
        assert_eq!(texts[4], "SIGTERM from init (process 1)");
        assert!(!Author::EndOfJob.is_wish(), "an interrupted run continues with the next job");
        assert!(Process::own().to_string().contains(&format!("process {}", std::process::id())));
        assert_eq!(signal_name(64), "signal 64");
    }
}
