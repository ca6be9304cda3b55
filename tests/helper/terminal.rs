//! A pane in its own tmux server, with a shell in it: a user's keyboard and screen.

use crate::helper::{Place, wait_for};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A shell in a pane. Prints the screen when a test fails.
pub struct Terminal {
    socket: PathBuf,
    envs: Vec<(OsString, Option<OsString>)>,
    dir: PathBuf,
}

impl Terminal {
    /// Opens a terminal of this size in a place.
    pub fn open(place: &Place, (columns, rows): (u16, u16)) -> Self {
        // The folder's name in its arguments lets the place kill the server in any case.
        let socket = place.dir.path().join("tmux.sock");
        let command = place.command(&[]);
        let envs = command.get_envs().map(|(name, value)| (name.to_owned(), value.map(OsString::from))).collect();
        let terminal = Self { socket, envs, dir: place.dir.path().to_owned() };
        let (columns, rows) = (columns.to_string(), rows.to_string());
        terminal.tmux(&["new-session", "-d", "-x", &columns, "-y", &rows, "sh"]);
        terminal.wait("a prompt", |screen| screen.starts_with(['$', '#']));
        terminal
    }

    /// Returns the value of `TMUX` in this server, with which other programs find it.
    pub fn variable(&self) -> String {
        format!("{},0,0", self.socket.display())
    }

    fn tmux(&self, words: &[&str]) -> Output {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(&self.socket).args(["-f", "/dev/null"]).args(words);
        command.current_dir(&self.dir).stdin(Stdio::null()).env_remove("TMUX").env_remove("ENV");
        command.envs([("TERM", "xterm-256color"), ("COLORTERM", "truecolor"), ("LC_ALL", "C.UTF-8")]);
        for (name, value) in &self.envs {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let output = command.output().unwrap_or_else(|error| {
            panic!("tmux cannot be started ({error}); these tests need it: apt-get install tmux")
        });
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "tmux {words:?}: {said}");
        output
    }

    /// Presses keys, by their tmux names.
    pub fn press(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Confirms the open question. A confirmation in its first moment does not count, so this presses again.
    pub fn confirm(&self, question: &str) {
        self.wait_words(&[question]);
        wait_for("the end of the question", || {
            self.press(&["Enter"]);
            (!self.screen().contains(question)).then_some(())
        });
    }

    /// Types text literally.
    pub fn write(&self, text: &str) {
        self.tmux(&["send-keys", "-l", "--", text]);
    }

    /// Clicks on a cell, counted from 0, as a terminal reports it.
    pub fn click(&self, column: usize, row: usize) {
        let (column, row) = (column + 1, row + 1);
        self.write(&format!("\x1b[<0;{column};{row}M\x1b[<0;{column};{row}m"));
    }

    /// Types a command for the shell.
    pub fn enter(&self, line: &str) {
        self.write(line);
        self.press(&["Enter"]);
    }

    /// Returns the text on the screen, with wrapped lines joined.
    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.tmux(&["capture-pane", "-p", "-J"]).stdout).into_owned()
    }

    /// Returns the text that was copied last in this server.
    pub fn copied(&self) -> Option<String> {
        let buffers = String::from_utf8(self.tmux(&["list-buffers", "-F", "#{buffer_name}"]).stdout).unwrap();
        let newest = buffers.lines().next()?;
        Some(String::from_utf8(self.tmux(&["show-buffer", "-b", newest]).stdout).unwrap())
    }

    /// Sets an option of this server.
    pub fn set_option(&self, name: &str, value: &str) {
        self.tmux(&["set-option", "-g", name, value]);
    }

    /// Returns the text with its colours, as escape sequences.
    pub fn coloured(&self) -> String {
        String::from_utf8_lossy(&self.tmux(&["capture-pane", "-p", "-e"]).stdout).into_owned()
    }

    /// Waits until the screen satisfies `condition`; returns the screen.
    pub fn wait(&self, what: &str, condition: impl Fn(&str) -> bool) -> String {
        wait_for(what, || Some(self.screen()).filter(|screen| condition(screen)))
    }

    /// Waits until the screen contains all of these words.
    pub fn wait_words(&self, words: &[&str]) -> String {
        self.wait(&words.join(", "), |screen| words.iter().all(|words| screen.contains(words)))
    }

    /// Returns the program the shell is running.
    pub fn program(&self) -> Option<u32> {
        let shell = String::from_utf8(self.tmux(&["display-message", "-p", "#{pane_pid}"]).stdout).unwrap();
        let shell = shell.trim().parse().unwrap();
        let pids = std::fs::read_dir("/proc").unwrap().flatten();
        pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .find(|pid| crate::helper::parent_of(*pid) == Some(shell))
    }

    /// Waits until the shell controls the terminal again, and checks that its mode is restored: echo and line input.
    pub fn expect_given_back(&self) {
        wait_for("the shell to be alone", || self.program().is_none().then_some(()));
        self.enter("clear; stty -a; echo as-it-was");
        let screen = self.wait("stty", |screen| screen.contains("\nas-it-was"));
        let off = ["-icanon", "-echo ", "-isig", "-opost"].into_iter().find(|word| screen.contains(word));
        assert_eq!((off, screen.contains("icanon")), (None, true), "{screen}");
        let mode = self.tmux(&["display-message", "-p", "#{alternate_on}#{mouse_any_flag}#{cursor_flag}"]).stdout;
        assert_eq!(String::from_utf8_lossy(&mode).trim(), "001", "main screen, no mouse, a cursor");
    }

    /// Attaches a client to the session and detaches it.
    pub fn attach_and_detach(&self) {
        let mut client = Command::new("tmux");
        client.arg("-S").arg(&self.socket).args(["-C", "attach"]).env_remove("TMUX");
        client.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut client = client.spawn().unwrap();
        let clients = || String::from_utf8(self.tmux(&["list-clients"]).stdout).unwrap();
        wait_for("a client", || (!clients().is_empty()).then_some(()));
        self.tmux(&["detach-client", "-s", "0"]);
        wait_for("the client to go", || clients().is_empty().then_some(()));
        client.wait().unwrap();
    }

    /// Kills the pane; another one, with a shell, replaces it.
    pub fn kill_pane(&self) {
        let pane = String::from_utf8(self.tmux(&["display-message", "-p", "#{pane_id}"]).stdout).unwrap();
        self.tmux(&["new-window", "sh"]);
        self.tmux(&["kill-pane", "-t", pane.trim()]);
    }

    /// Kills the server, as ending a session does: the terminal is gone.
    pub fn vanish(self) {
        self.tmux(&["kill-server"]);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the screen was:\n{}", self.screen());
        }
    }
}
