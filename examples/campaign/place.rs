//! A folder with its own runs, and the processes of the run in it.

use crate::Failing;
use downshift::protocol::control::Status;
use downshift::store::reader::live_status;
use downshift::store::run_dir::RunDir;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Upper limit for any wait; anything longer is a failure.
pub const LIMIT: Duration = Duration::from_mins(5);

/// The role of a process in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Restarts the keeper.
    Parent,
    /// The keeper itself.
    Keeper,
    /// The worker itself.
    Worker,
}

/// A folder with its own runs. Kills every process still alive in it when dropped.
pub struct Place {
    dir: TempDir,
    program: PathBuf,
}

impl Place {
    /// Creates a place inside `parent`.
    pub fn new(parent: &Path) -> Failing<Self> {
        let dir = tempfile::Builder::new().prefix("campaign-").tempdir_in(parent)?;
        fs::create_dir(dir.path().join("sockets"))?;
        Ok(Self { dir, program: std::env::current_exe()? })
    }

    /// Returns a command that runs this program as downshift in this place.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).current_dir(self.dir.path()).stdin(Stdio::null());
        command.env("XDG_RUNTIME_DIR", self.dir.path().join("sockets"));
        command.env("XDG_CACHE_HOME", self.dir.path().join("cache"));
        command.env("XDG_STATE_HOME", self.dir.path().join("state"));
        command.env("DOWNSHIFT_RUNS_DIR", self.dir.path().join("runs"));
        command.env_remove("DOWNSHIFT_WORKER");
        command
    }

    /// Runs a command to completion; returns an error with its output if it fails.
    pub fn output(&self, words: &[&str]) -> Failing<Output> {
        let output = self.command(words).output()?;
        if output.status.success() {
            return Ok(output);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("`{}` ended with {}: {}", words.join(" "), output.status, said.trim()).into())
    }

    /// Returns the path of a file in this place.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts a run from this file; its directory and keeper exist when this returns.
    pub fn start(&self, text: &str) -> Failing<(Client, RunDir)> {
        fs::write(self.file("run.yaml"), text)?;
        let client = self.client(&["run", "run.yaml", "--headless", "--device", "cpu"])?;
        let runs = self.file("runs");
        let run = wait_for("a run directory", || RunDir::find(&runs, None).ok())?;
        self.wait_for_keeper(&run)?;
        Ok((client, run))
    }

    /// Resumes the run; a keeper exists when this returns.
    pub fn resume(&self, run: &RunDir) -> Failing<Client> {
        let client = self.client(&["resume", "--headless"])?;
        self.wait_for_keeper(run)?;
        Ok(client)
    }

    fn wait_for_keeper(&self, run: &RunDir) -> Failing<()> {
        wait_for("a keeper", || find_process(run, Role::Keeper).map(drop)).map_err(|error| {
            let said = fs::read_to_string(self.file("client.txt")).unwrap_or_default();
            format!("{error}; the client said: {}", said.trim()).into()
        })
    }

    fn client(&self, words: &[&str]) -> Failing<Client> {
        let out = File::options().create(true).append(true).open(self.file("client.txt"))?;
        Ok(Client(self.command(words).stdout(out.try_clone()?).stderr(out).spawn()?))
    }

    /// Keeps the folder for inspection.
    pub fn keep(mut self) -> PathBuf {
        self.dir.disable_cleanup(true);
        self.dir.path().to_owned()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A parent that saw its keeper die could restart it, so kill parents first and repeat.
        for _ in 0..3 {
            let mut left = list_processes(self.dir.path());
            left.sort_by_key(|(_, role)| *role != Some(Role::Parent));
            for (pid, _) in left {
                kill(pid);
            }
        }
    }
}

/// A client process that watches the run; killed when dropped.
pub struct Client(Child);

impl Client {
    /// Returns its exit code once the run is over.
    pub fn wait(&mut self) -> Failing<Option<i32>> {
        wait_for("the run's end", || self.0.try_wait().ok().flatten()).map(|status| status.code())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the current status of a run.
pub fn status(run: &RunDir) -> Option<Status> {
    live_status(run)
}

/// Returns the first living process of a run with this role.
pub fn find_process(run: &RunDir, role: Role) -> Option<u32> {
    list_processes(run.path()).into_iter().find(|(_, its)| *its == Some(role)).map(|(pid, _)| pid)
}

/// Returns the living processes whose command line names this folder; clients have no role.
pub fn list_processes(folder: &Path) -> Vec<(u32, Option<Role>)> {
    let folder = folder.display().to_string();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        if pid != std::process::id() && line.contains(&folder) {
            let words: Vec<&str> = line.split('\0').collect();
            let role = match words.get(1) {
                Some(&"worker") => Some(Role::Worker),
                Some(&"keeper") if words.contains(&"--parent") => Some(Role::Parent),
                Some(&"keeper") if !words.contains(&"--detach") => Some(Role::Keeper),
                _ => None,
            };
            found.push((pid, role));
        }
    }
    found
}

/// Sends SIGKILL; reports whether the process existed.
pub fn kill(pid: u32) -> bool {
    Pid::from_raw(pid.cast_signed()).is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok())
}

/// Waits until `condition` returns a value.
pub fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> Failing<T> {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(value) = condition() {
            return Ok(value);
        }
        if Instant::now() >= deadline {
            return Err(format!("waited {} s for {what}", LIMIT.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
