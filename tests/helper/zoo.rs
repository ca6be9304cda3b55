//! A harness whose keeper is the test, and the processes of its command.

#![cfg(test)]

use crate::helper::{send_signal, wait_for};
use downshift::protocol::line;
use downshift::protocol::worker::{Event, Order};
use downshift::store::owners;
use downshift::store::run_dir::RunDir;
use rustix::process::Signal;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How long a test waits for an event.
const LIMIT: Duration = Duration::from_mins(1);

/// Writes the run file of a command.
pub fn write_run(dir: &Path, program: &Path, arguments: &[&str], more: &str) {
    let words: Vec<String> =
        [program.to_str().unwrap()].iter().chain(arguments).map(|word| format!("'{word}'")).collect();
    let name = if more.contains("name:") { "" } else { "name: awkward\n" };
    let text = format!("{name}task: command\ncommand: [{}]\ndirectory: {}\n{more}", words.join(", "), dir.display());
    fs::write(dir.join("run.yaml"), text).unwrap();
}

/// Returns the living processes with this marker among their arguments, except harnesses.
pub fn left_behind(marker: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_marked = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|word| word == marker.as_bytes())
    };
    numbers.filter(is_marked).collect()
}

/// A keeper's end of the line to a harness.
pub struct Line {
    writer: Option<Box<dyn Write>>,
    reader: BufReader<Box<dyn Read>>,
    /// The newest events, for the message of a test that waits in vain.
    newest: VecDeque<Event>,
}

impl Line {
    /// Sends an order.
    pub fn order(&mut self, order: &Order) {
        self.writer.as_mut().unwrap().write_all(line::encode(order).unwrap().as_bytes()).unwrap();
    }

    /// Returns the next event.
    pub fn next(&mut self) -> Event {
        let mut text = String::new();
        loop {
            text.clear();
            assert!(self.reader.read_line(&mut text).unwrap() > 0, "the harness says no more after {:#?}", self.newest);
            if let Some(event) = line::decode::<Event>(&text) {
                self.newest.push_back(event.clone());
                if self.newest.len() > 8 {
                    self.newest.pop_front();
                }
                return event;
            }
        }
    }

    /// Reads events until one is wanted.
    pub fn wait_for(&mut self, what: &str, mut is_wanted: impl FnMut(&Event) -> bool) -> Event {
        let deadline = Instant::now() + LIMIT;
        loop {
            let event = self.next();
            if is_wanted(&event) {
                return event;
            }
            assert!(Instant::now() < deadline, "waited for {what}");
        }
    }
}

/// A harness.
pub struct Harness {
    child: Child,
    dir: PathBuf,
    line: Option<Line>,
}

impl Harness {
    /// Starts the harness of a run.
    pub fn start(dir: &Path, attempt: u64) -> Self {
        Self::start_with(dir, attempt, &[])
    }

    /// Starts the harness of a run with more arguments.
    pub fn start_with(dir: &Path, attempt: u64, more: &[&str]) -> Self {
        let log = File::options().create(true).append(true).open(dir.join("worker.log")).unwrap();
        let attempt = attempt.to_string();
        let token = format!("{}-{attempt}", dir.file_name().unwrap().to_string_lossy());
        fs::create_dir_all(dir.join("sockets")).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_downshift"))
            .args(["harness", "--rung", "0", "--device", "cpu", "--attempt", &attempt, "--token", &token])
            .arg("--run-dir")
            .arg(dir)
            .args(more)
            // A keeper has a token of its own.
            .env("DOWNSHIFT_TOKEN", "the test")
            .env("XDG_RUNTIME_DIR", dir.join("sockets"))
            .env("XDG_CACHE_HOME", dir.join("cache"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let writer: ChildStdin = child.stdin.take().unwrap();
        let reader: Box<dyn Read> = Box::new(child.stdout.take().unwrap());
        let line = Line { writer: Some(Box::new(writer)), reader: BufReader::new(reader), newest: VecDeque::new() };
        Self { child, dir: dir.to_owned(), line: Some(line) }
    }

    fn line(&mut self) -> &mut Line {
        self.line.as_mut().unwrap()
    }

    pub fn order(&mut self, order: &Order) {
        self.line().order(order);
    }

    pub fn next(&mut self) -> Event {
        self.line().next()
    }

    pub fn wait_for(&mut self, what: &str, is_wanted: impl FnMut(&Event) -> bool) -> Event {
        self.line().wait_for(what, is_wanted)
    }

    /// Reads every event until the harness says no more.
    pub fn read_all(&mut self) -> Vec<Event> {
        let (mut events, mut text) = (Vec::new(), String::new());
        while self.line().reader.read_line(&mut text).unwrap() > 0 {
            events.extend(line::decode(&text));
            text.clear();
        }
        events
    }

    /// Kills the harness alone.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Tells the harness to end.
    pub fn terminate(&self) {
        send_signal(self.child.id(), Signal::TERM);
    }

    /// Closes the line, as a keeper does that dies.
    pub fn hang_up(&mut self) {
        self.line = None;
    }

    /// Connects as another keeper.
    pub fn connect_again(&self) -> Line {
        let run = RunDir::open(&self.dir).unwrap();
        let socket = wait_for("the harness's socket", || owners::worker_record(&run)?.socket);
        let stream = UnixStream::connect(socket).unwrap();
        let reader: Box<dyn Read> = Box::new(stream.try_clone().unwrap());
        Line { writer: Some(Box::new(stream)), reader: BufReader::new(reader), newest: VecDeque::new() }
    }

    /// Waits for the harness to exit.
    pub fn wait(&mut self) -> ExitStatus {
        if let Some(line) = &mut self.line {
            // Whatever it still says is read, or it could not exit.
            let (deadline, mut rest) = (Instant::now() + LIMIT, Vec::new());
            while line.reader.read_until(b'\n', &mut rest).is_ok_and(|count| count > 0) {
                assert!(Instant::now() < deadline, "the harness does not end");
                rest.clear();
            }
        }
        wait_for("the harness's exit", || self.child.try_wait().unwrap())
    }
}
