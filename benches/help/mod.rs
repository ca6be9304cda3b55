//! Runs of the real program for benchmarks: in their own folder, with the cockpit in a real tmux.

#![expect(dead_code, reason = "no benchmark uses all of it")]

use downshift::protocol::control::StepRow;
use downshift::store::checkpoint::{self, state::Row};
use downshift::store::reader::Reader;
use downshift::store::run_dir::RunDir;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A result of a benchmark; any error ends it.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The program under measurement.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_downshift");

/// Waits until `look` returns a value, for at most two minutes.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> Outcome<T> {
    let deadline = Instant::now() + Duration::from_mins(2);
    loop {
        match look() {
            Some(found) => return Ok(found),
            None if Instant::now() > deadline => return Err(format!("gave up waiting for {what}").into()),
            None => std::thread::park_timeout(Duration::from_millis(2)),
        }
    }
}

/// Returns the newest run in a folder.
pub fn newest(runs: &Path) -> Option<RunDir> {
    RunDir::find(runs, None).ok()
}

/// Returns the time at which an attempt's first step reached the keeper, in Unix milliseconds.
pub fn first_step_ms(dir: &RunDir, attempt: u64) -> Option<f64> {
    let mut first = None;
    let read = Reader::open(dir).ok()?.each_step(|row| {
        if row.attempt == attempt && first.is_none() {
            first = Some(row.time_ms as f64);
        }
    });
    read.ok().and(first)
}

/// A terminal of 120 × 40 in its own tmux server; killed when dropped.
pub struct Tmux(String);

impl Tmux {
    /// Starts a server with one pane that runs a command.
    pub fn start(command: &str) -> Outcome<Self> {
        // The previous server may still be exiting, so each gets its own name.
        static SERVERS: AtomicU32 = AtomicU32::new(0);
        let server = SERVERS.fetch_add(1, Relaxed);
        let tmux = Self(format!("downshift-bench-{}-{server}", std::process::id()));
        let started = tmux.call(&["-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "40", command])?;
        if !started.status.success() {
            return Err(format!("tmux: {}", String::from_utf8_lossy(&started.stderr)).into());
        }
        Ok(tmux)
    }

    /// Types a key.
    pub fn key(&self, key: &str) -> Outcome<()> {
        self.call(&["send-keys", key]).map(drop)
    }

    /// Returns the text on the screen.
    pub fn screen(&self) -> String {
        let shown = self.call(&["capture-pane", "-p"]);
        shown.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default()
    }

    fn call(&self, words: &[&str]) -> Outcome<Output> {
        Ok(Command::new("tmux").arg("-L").arg(&self.0).args(words).output()?)
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = self.call(&["kill-server"]);
    }
}

/// Reads the rows the worker wrote into its newest checkpoint.
pub fn rows_of_worker(run: &RunDir) -> Outcome<Vec<StepRow>> {
    let (newest, _) = checkpoint::newest_valid(run.path());
    let newest = newest.ok_or("the run has no checkpoint")?;
    let rows = newest.files.get("steps.jsonl").map(|text| Row::read_all(text)).unwrap_or_default();
    Ok(rows.into_iter().filter_map(|row| if let Row::Step(row) = row { Some(row) } else { None }).collect())
}

/// Returns the median.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    quantile(&numbers, 0.5)
}

/// Returns a quantile of sorted numbers, by nearest rank.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * (sorted.len() as f64 - 1.0)).round() as usize;
    sorted.get(rank).copied().unwrap_or(f64::NAN)
}
