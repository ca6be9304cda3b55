//! Runs of the real program in their own folder.

#![cfg(test)]
#![expect(dead_code, reason = "no test program uses all of it")]

pub mod shift;
pub mod terminal;
pub mod zoo;

use downshift::protocol::control::{JournalRow, RunState, Status};
use downshift::store::owners;
use downshift::store::reader::{Reader, live_status};
use downshift::store::run_dir::RunDir;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Long enough for a loaded machine; a passing test never waits this long.
pub const LIMIT: Duration = Duration::from_mins(3);
/// The same for a process of the lowest priority, which gets about a hundredth of a busy core.
const BACKGROUND_LIMIT: Duration = Duration::from_mins(15);

/// Waits until `condition` returns a value.
pub fn wait_for<T>(what: &str, condition: impl FnMut() -> Option<T>) -> T {
    wait_at_most(LIMIT, what, condition)
}

/// Waits for what a process in the background does.
pub fn wait_for_background<T>(what: &str, condition: impl FnMut() -> Option<T>) -> T {
    wait_at_most(BACKGROUND_LIMIT, what, condition)
}

fn wait_at_most<T>(limit: Duration, what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited {limit:?} for {what}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// A place with its own runs directory and sockets. Kills every process still alive in it when dropped.
pub struct Place {
    pub dir: TempDir,
    worker: Option<PathBuf>,
    /// Extra environment variables for the program.
    pub variables: Vec<(&'static str, PathBuf)>,
}

impl Place {
    /// Creates a place where the scripted worker trains.
    pub fn scripted() -> Self {
        Self::with(Some(example("scripted_worker")))
    }

    /// Creates a place where the real worker trains.
    pub fn real() -> Self {
        Self::with(None)
    }

    fn with(worker: Option<PathBuf>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sockets")).unwrap();
        // Tests must not show notifications on the developer's desktop.
        std::fs::create_dir_all(dir.path().join("config/downshift")).unwrap();
        std::fs::write(dir.path().join("config/downshift/notify.yaml"), "bell: false\ndesktop: false\n").unwrap();
        Self { dir, worker, variables: Vec::new() }
    }

    /// Returns a command that runs the program in this place.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_downshift"));
        command.args(words).current_dir(self.dir.path()).stdin(Stdio::null());
        command.env("XDG_RUNTIME_DIR", self.dir.path().join("sockets"));
        command.env("XDG_CACHE_HOME", self.dir.path().join("cache"));
        command.env("XDG_CONFIG_HOME", self.dir.path().join("config"));
        command.env("XDG_STATE_HOME", self.dir.path().join("state"));
        command.env("DOWNSHIFT_KERNEL_LOG", self.dir.path().join("kern.log"));
        command.env("DOWNSHIFT_RUNS_DIR", self.dir.path().join("runs"));
        command.env_remove("DOWNSHIFT_WORKER").env_remove("CUDA_VISIBLE_DEVICES");
        if let Some(worker) = &self.worker {
            command.env("DOWNSHIFT_WORKER", worker);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs a command to completion.
    pub fn output(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Runs a command that must succeed; returns its output.
    pub fn succeed(&self, words: &[&str]) -> String {
        let out = self.output(words);
        assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    /// Writes a run file of the scripted task.
    pub fn script(&self, model: &str, more: &str) {
        let text = format!(
            "name: scripted\ntask: scripted\nmodel: {model}\ntraining: {{ steps: 400, micro_batch: 8 }}\n\
             optimizer: {{ lr: 0.1 }}\ncheckpoint: {{ every: 50 steps }}\nladder:\n\
             \x20 - {{ name: accumulate, relieves: [memory], set: {{ training.micro_batch: 4, training.accumulation: 2 }} }}\n\
             \x20 - {{ name: safe, relieves: [memory, numerics], set: {{ optimizer.lr: 0.05 }} }}\n{more}"
        );
        std::fs::write(self.dir.path().join("run.yaml"), text).unwrap();
    }

    /// Starts a headless run and returns its process; the run directory exists when this returns.
    pub fn start(&self, words: &[&str]) -> (Child, RunDir) {
        let words: Vec<&str> = ["run", "run.yaml", "--headless"].iter().chain(words).copied().collect();
        let out = std::fs::File::create(self.dir.path().join("out.txt")).unwrap();
        let child = self.command(&words).stdout(out).stderr(Stdio::inherit()).spawn().unwrap();
        let run = wait_for("a run directory", || self.newest());
        wait_for("a first status", || live_status(&run));
        (child, run)
    }

    /// Returns the output of the headless run.
    pub fn printed(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("out.txt")).unwrap()
    }

    /// Returns the newest run in this place.
    pub fn newest(&self) -> Option<RunDir> {
        RunDir::find(&self.dir.path().join("runs"), None).ok()
    }

    /// Returns `status --format json`, as a script sees it.
    pub fn status_json(&self) -> Value {
        serde_json::from_slice(&self.output(&["status", "--format", "json"]).stdout).unwrap_or(Value::Null)
    }

    /// Returns the exported rows.
    pub fn rows(&self) -> Vec<Value> {
        self.succeed(&["export"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns the curve: for each step the row of the highest attempt. Fails on a gap, or if the clock does
    /// not advance by `batch` samples per step.
    pub fn curve(&self, steps: u64, batch: u64) -> Vec<Value> {
        self.curve_by(steps, |step| step * batch)
    }

    /// Like [`Self::curve`], where the clock is another function of the step.
    pub fn curve_by(&self, steps: u64, clock: impl Fn(u64) -> u64) -> Vec<Value> {
        let rows = self.rows();
        (1..=steps)
            .map(|step| {
                let row = rows.iter().filter(|row| row["step"] == step).max_by_key(|row| row["attempt"].as_u64());
                let row = row.unwrap_or_else(|| panic!("a hole at step {step}"));
                assert_eq!(row["samples"], clock(step), "samples at step {step}");
                row.clone()
            })
            .collect()
    }
}

impl Place {
    /// Returns the living processes whose command line names this place.
    pub fn processes(&self) -> Vec<u32> {
        let folder = self.dir.path().display().to_string();
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let named = entries.filter(|entry| {
            let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&words).contains(&folder)
        });
        named.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.processes().into_iter().for_each(kill);
    }
}

/// Slow enough to watch: a run takes 50 steps per second.
pub const SLOW: &str = "{ step_ms: 20, save_ms: 1 }";
/// A run of hundreds of steps takes a second.
pub const QUICK: &str = "{ step_ms: 2, save_ms: 1 }";

/// Starts a scripted run of this length in a place of its own, and waits until it has taken `step` steps.
pub fn start_run(model: &str, steps: u64, step: u64) -> (Place, Child, RunDir, Status) {
    let place = Place::scripted();
    place.script(model, "");
    let (child, run) = place.start(&["--set", &format!("training.steps={steps}")]);
    let status = wait_status(&run, "steps", |status| status.step >= step);
    (place, child, run, status)
}

/// Runs a scripted run of 100 steps to its end.
pub fn finish_run() -> (Place, RunDir) {
    let (place, mut child, run, _) = start_run(QUICK, 100, 0);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    wait_parent_end(&run);
    (place, run)
}

/// Waits until the keeper's parent has ended.
pub fn wait_parent_end(run: &RunDir) {
    wait_for("the end of the parent", || owners::parent_record(run).is_none().then_some(()));
}

/// Stops a run whose headless client is `child`.
pub fn stop_run(place: &Place, child: &mut Child) {
    let stopped = place.output(&["stop"]);
    assert!(stopped.status.success(), "{stopped:?}");
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

/// Locks the store of a run, as another program may; `ROLLBACK` unlocks it.
pub fn lock_store(run: &RunDir) -> rusqlite::Connection {
    let store = rusqlite::Connection::open(run.file("run.db")).unwrap();
    store.busy_timeout(Duration::from_secs(10)).unwrap();
    store.execute_batch("BEGIN EXCLUSIVE").unwrap();
    store
}

/// Returns the path of a program that `cargo test` builds from `examples/`.
pub fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let built = tests.parent().and_then(Path::parent).unwrap().join("examples").join(name);
    assert!(built.exists(), "{} is missing; `cargo test` builds it, or `cargo build --examples`", built.display());
    built
}

/// Returns the status of a run once `condition` holds.
pub fn wait_status(run: &RunDir, what: &str, condition: impl Fn(&Status) -> bool) -> Status {
    let deadline = Instant::now() + LIMIT;
    loop {
        let status = live_status(run);
        match status {
            Some(status) if condition(&status) => return status,
            status => assert!(Instant::now() < deadline, "waited {LIMIT:?} for {what}; now {status:#?}"),
        }
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// Waits until a run is in a state.
pub fn wait_state(run: &RunDir, state: RunState) -> Status {
    wait_status(run, state.word(), |status| status.state == state)
}

/// Returns the whole journal.
pub fn journal(run: &RunDir) -> Vec<JournalRow> {
    Reader::open(run).unwrap().journal(10_000).unwrap()
}

/// Reports whether any journal row contains this text.
pub fn journal_says(run: &RunDir, words: &str) -> bool {
    journal(run).iter().any(|row| row.text.contains(words))
}

/// Sends SIGKILL.
pub fn kill(pid: u32) {
    let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL);
}

/// Ends all of these processes at once, like a power cut: none sees another one's end.
pub fn cut_power(pids: &[u32]) {
    for signal in [Signal::STOP, Signal::KILL] {
        for pid in pids {
            let _ = kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal);
        }
    }
}

/// Returns the parent of a process.
pub fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Kills the keeper of a run, its parent and the client that started it.
pub fn kill_keepers(mut client: Child, status: &Status) {
    let keeper = status.pid_keeper.unwrap();
    kill(parent_of(keeper).unwrap());
    kill(keeper);
    client.kill().unwrap();
    client.wait().unwrap();
}

/// A small file system; unmounted when dropped.
pub struct Disk(pub PathBuf);

impl Disk {
    pub fn mount(at: PathBuf) -> Option<Self> {
        std::fs::create_dir_all(&at).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=20m", "tmpfs"]).arg(&at).output();
        match mounted {
            Ok(said) if said.status.success() => Some(Self(at)),
            said => {
                // Past the test harness, which hides what a passing test prints.
                let _ = writeln!(std::io::stderr(), "not tested here: a tmpfs cannot be mounted: {said:?}");
                None
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).output();
    }
}

/// Writes until the disk has no room for another byte.
pub fn fill_disk(path: &Path) {
    let mut file = std::fs::File::create(path).unwrap();
    for size in [1 << 20, 1 << 12, 1] {
        let block = vec![1; size];
        while file.write_all(&block).is_ok() {}
    }
}

/// Watches the status until `done` returns true; it must never become `stopped` before.
pub fn never_stopped(run: &RunDir, what: &str, mut done: impl FnMut(RunState, &str) -> bool) {
    wait_for(what, || {
        let status = live_status(run)?;
        let ended = matches!(status.state, RunState::Stopped | RunState::Interrupted);
        assert!(!ended, "{:?}", status.why);
        done(status.state, status.why.as_deref().unwrap_or_default()).then_some(())
    });
}

/// Sends a signal.
pub fn send_signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}
