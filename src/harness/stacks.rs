//! The Python stacks of a command that hangs: its processes are asked for them by a signal, and write them to files of
//! the attempt. `faulthandler` needs no running interpreter, so a process that holds the interpreter's lock answers too.

use super::node_pid::{Node, NodePid};
use super::run_loop::{Harness, Life, Report};
use super::save_signal::catches;
use crate::process_tree::{Family, Process, scan};
use crate::protocol::companion::Introduction;
use crate::protocol::node::StackWriter;
use crate::protocol::worker::{CommandNews, Event};
use crate::untrusted::thread::run_beside;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time that all processes have to answer.
const LIMIT: Duration = Duration::from_secs(1);
/// A file that did not grow for this long is complete.
const QUIET: Duration = Duration::from_millis(150);
/// Most processes that are asked.
const MOST: usize = 64;

/// The processes of a command that can write their stacks.
#[derive(Debug, Clone, Default)]
pub struct StackWriters {
    writers: Vec<(Node, StackWriter)>,
}

impl StackWriters {
    /// Takes in the introduction of a companion. A file elsewhere than in the attempt's folder is not read.
    pub fn introduce(&mut self, process: NodePid, introduction: &Introduction, attempt_dir: &Path) {
        self.forget(process);
        let (Some(signal), Some(file)) = (introduction.stacks_signal, &introduction.stacks_file) else { return };
        let is_ours = file.parent() == Some(attempt_dir) && Signal::from_named_raw(signal).is_some();
        if is_ours && self.writers.len() < MOST {
            let writer = StackWriter { pid: process.pid, rank: introduction.rank, signal, file: file.clone() };
            self.writers.push((process.node, writer));
        }
    }

    /// Returns the processes on a node.
    pub fn on(&self, node: Node) -> Vec<StackWriter> {
        self.writers.iter().filter(|(of, _)| *of == node).map(|(_, writer)| writer.clone()).collect()
    }

    /// Forgets a process that is gone: a launcher may start its ranks again and again.
    pub fn forget(&mut self, process: NodePid) {
        self.writers.retain(|(node, writer)| (*node, writer.pid) != (process.node, process.pid));
    }
}

impl Harness {
    /// Asks the processes for their stacks, and reports the files once they are written.
    pub(super) fn write_stacks(&self) {
        if !matches!(self.life, Life::Running) || self.companion.stacks.writers.is_empty() {
            return;
        }
        self.nodes.ask_for_stacks(&self.companion.stacks);
        let (writers, family, reports) =
            (self.companion.stacks.on(Node::HERE), self.family.clone(), self.reports.clone());
        run_beside("stacks", move || {
            let written = ask_for_stacks(&writers, &family);
            let _ = reports.send(Report::Stacks(written));
        });
    }

    /// Sends the keeper the files that hold stacks; for several ranks, only the informative ones.
    pub(super) fn report_stacks(&mut self, mut written: Vec<StackWriter>) {
        self.report_collectives();
        let first = self.ranks_of_interest();
        // The others stand where one of these does.
        if !first.is_empty() {
            written.retain(|file| first.contains(&file.rank));
            written.sort_by_key(|file| first.iter().position(|rank| *rank == file.rank));
        }
        for StackWriter { pid, rank, file, .. } in written {
            let Ok(file) = file.strip_prefix(self.args.run_dir.path()).map(Path::to_owned) else { continue };
            self.link.send(&Event::Command { news: CommandNews::Stacks { pid, rank, file } });
        }
    }
}

/// Signals every writer that is alive and handles its signal, and waits until their files stop growing. Returns the
/// files that grew. A process without a handler would die of the signal.
pub fn ask_for_stacks(writers: &[StackWriter], family: &Family) -> Vec<StackWriter> {
    let all = scan();
    ask_members(writers, &family.among(&all))
}

fn ask_members(writers: &[StackWriter], members: &[&Process]) -> Vec<StackWriter> {
    let length = |writer: &StackWriter| fs::metadata(&writer.file).map_or(0, |file| file.len());
    let asked = |writer: &&StackWriter| {
        let process = members.iter().find(|process| process.pid == writer.pid);
        let signalled = |process: &Process| {
            let signal = Signal::from_named_raw(writer.signal)?;
            Some(catches(process.pid, signal) && process.signal(signal))
        };
        process.and_then(|process| signalled(process)).unwrap_or(false)
    };
    let watch = watch_folders(writers);
    let before: Vec<(&StackWriter, u64)> = writers.iter().map(|writer| (writer, length(writer))).collect();
    let asked: Vec<(&StackWriter, u64)> = before.into_iter().filter(|(writer, _)| asked(writer)).collect();
    let lengths = || -> Vec<u64> { asked.iter().map(|(writer, _)| length(writer)).collect() };
    let began = Instant::now();
    let (mut seen, mut changed) = (lengths(), began);
    let have_answered = |seen: &[u64]| asked.iter().zip(seen).all(|((_, before), length)| length > before);
    // The end of a file is no event, because its writer keeps it open: it is complete when nothing more is written.
    while began.elapsed() < LIMIT && !(have_answered(&seen) && changed.elapsed() >= QUIET) {
        let quiet_until = if have_answered(&seen) { changed + QUIET } else { began + LIMIT };
        wait_for_write(watch.as_ref(), quiet_until.min(began + LIMIT).saturating_duration_since(Instant::now()));
        let now = lengths();
        if now != seen {
            (seen, changed) = (now, Instant::now());
        }
    }
    let grown = asked.iter().zip(&seen).filter(|((_, before), length)| *length > before);
    grown.map(|((writer, _), _)| StackWriter::clone(writer)).collect()
}

/// Watches the folders of the files. Returns none if the system has no watch left: then every wait lasts to its limit.
fn watch_folders(writers: &[StackWriter]) -> Option<OwnedFd> {
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
    let folders: BTreeSet<&Path> = writers.iter().filter_map(|writer| writer.file.parent()).collect();
    for folder in folders {
        inotify::add_watch(&watch, folder, WatchFlags::MODIFY | WatchFlags::CREATE).ok()?;
    }
    Some(watch)
}

/// Waits until something is written in a watched folder, or for the limit.
fn wait_for_write(watch: Option<&OwnedFd>, limit: Duration) {
    let mut polled: Vec<PollFd<'_>> = watch.iter().map(|watch| PollFd::new(*watch, PollFlags::IN)).collect();
    let limit = Timespec::try_from(limit).ok();
    let has_events = poll(&mut polled, limit.as_ref()).is_ok_and(|count| count > 0);
    let mut events = [0; 4096];
    while let (true, Some(watch)) = (has_events, watch) {
        if !matches!(rustix::io::read(watch, &mut events), Ok(1..)) {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST, Node, NodePid, StackWriters, ask_members};
    use crate::process_tree::{Process, scan};
    use crate::protocol::companion::Introduction;
    use std::path::Path;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    fn introduction(pid: u32, signal: i32, file: &Path) -> Introduction {
        let text = format!(
            r#"{{"protocol":1,"pid":{pid},"framework":"loop","grade":"exact","stacks_signal":{signal},"stacks_file":"{}"}}"#,
            file.display()
        );
        serde_json::from_str(&text).unwrap()
    }

    /// Starts a shell that waits, and appends to a file when it gets SIGUSR2.
    fn shell(file: &Path, trap: &str) -> Child {
        let script = format!("{trap}\necho ready > {0}.ready; while :; do sleep 0.05; done", file.display());
        let child = Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).spawn().unwrap();
        let ready = file.with_extension("txt.ready");
        let deadline = Instant::now() + Duration::from_mins(1);
        while !ready.exists() {
            assert!(Instant::now() < deadline, "the shell never started");
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    }

    #[test]
    fn only_processes_that_handle_the_signal_are_asked() {
        const USR2: i32 = 12;
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (dir.path().join("stacks-1.txt"), dir.path().join("stacks-2.txt"));
        std::fs::write(&first, "of an earlier time\n").unwrap();
        let mut answers = shell(&first, &format!("trap 'echo stack >> {}' USR2", first.display()));
        let mut would_die = shell(&second, ":");
        let mut writers = StackWriters::default();
        for (child, file) in [(&answers, &first), (&would_die, &second)] {
            let process = NodePid { node: Node::HERE, pid: child.id() };
            writers.introduce(process, &introduction(child.id(), USR2, file), dir.path());
        }
        let all = scan();
        let members: Vec<&Process> = all.iter().collect();
        let found = ask_members(&writers.on(Node::HERE), &members);
        assert_eq!(found.iter().map(|found| (found.pid, &found.file)).collect::<Vec<_>>(), [(answers.id(), &first)]);
        assert_eq!(would_die.try_wait().unwrap(), None, "it is alive");
        assert!(ask_members(&writers.on(Node::HERE), &[]).is_empty(), "neither belongs to the command");
        for child in [&mut answers, &mut would_die] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn a_launcher_may_start_its_ranks_any_number_of_times() {
        let place = Path::new("/runs/a/attempts/1");
        let mut writers = StackWriters::default();
        let ranks = 8;
        for pid in 0..MOST as u32 + 2 * ranks {
            let process = NodePid { node: Node::HERE, pid };
            writers.introduce(process, &introduction(pid, 10, &place.join(format!("stacks-{pid}.txt"))), place);
            if let Some(ended) = pid.checked_sub(ranks) {
                writers.forget(NodePid { node: Node::HERE, pid: ended });
            }
        }
        let known: Vec<u32> = writers.on(Node::HERE).iter().map(|writer| writer.pid).collect();
        assert!(writers.on(Node(1)).is_empty());
        assert_eq!(known, (MOST as u32 + ranks..MOST as u32 + 2 * ranks).collect::<Vec<_>>());
    }

    #[test]
    fn a_file_elsewhere_and_an_unnamed_signal_are_not_accepted() {
        let place = Path::new("/runs/a/attempts/1");
        let count = |signal: i32, file: &str| {
            let mut writers = StackWriters::default();
            let process = NodePid { node: Node::HERE, pid: 7 };
            writers.introduce(process, &introduction(7, signal, Path::new(file)), place);
            writers.writers.len()
        };
        assert_eq!(count(16, "/runs/a/attempts/1/stacks-7.txt"), 1);
        assert_eq!(count(16, "/etc/passwd"), 0);
        assert_eq!(count(16, "/runs/a/attempts/1/../x"), 0);
        assert_eq!(count(41, "/runs/a/attempts/1/stacks-7.txt"), 0);
    }
}
