//! From a fault to the first new step, on the CPU, with the real worker.
//!
//! `cargo bench --bench recover -- [KILLS] [--minutes N] [--every SECONDS]`
//!
//! First part: KILLS times `kill -9` of the worker (default 100), each followed by a wait for the first step of
//! the next one. Reports the time until the keeper noticed the death, and until that step. Second part, with
//! `--minutes`: the default task without faults, then for that time with a SIGKILL at each interval (`--every`,
//! 30 s), then with SIGKILL and SIGSTOP in turn. Reports the share of useful time, and compares with the
//! fault-free run: weights bit for bit if every restart was on the same rung, otherwise the validation loss.

mod help;

use downshift::protocol::control::{JournalRow, RunState, Status};
use downshift::shipped;
use downshift::store::checkpoint;
use downshift::store::reader::{Reader, live_status};
use downshift::store::run_dir::RunDir;
use help::{Outcome, PROGRAM, first_step_ms, newest, quantile, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A restart budget the campaign cannot exhaust, and no automatic shifts.
const BUDGET: [&str; 8] = [
    "watch.restarts_without_progress=100000",
    "watch.restarts_in_window=100000",
    "watch.hang_min=2 s",
    "watch.ending.grace=1 s",
    "watch.spike.sigma=0",
    "watch.skips_to_shift=40",
    "watch.skip_rate=1.0",
    "watch.climb.after=0",
];

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let after = |flag: &str| {
        let at = words.iter().position(|word| word == flag)?;
        words.get(at + 1)?.parse::<u64>().ok()
    };
    let minutes = after("--minutes");
    let kills = words.first().and_then(|word| word.parse().ok()).unwrap_or(if minutes.is_some() { 0 } else { 100 });
    if kills > 0 {
        kill_and_wait(kills)?;
    }
    if let Some(minutes) = minutes {
        shaken(Duration::from_secs(minutes * 60), Duration::from_secs(after("--every").unwrap_or(30)))?;
    }
    Ok(())
}

fn kill_and_wait(kills: u64) -> Outcome<()> {
    let place = tempfile::tempdir()?;
    let run = Shaken::start(place.path(), &["training.epochs=100000", "checkpoint.every=25 steps"], "")?;
    let (mut seen, mut new) = (Vec::new(), Vec::new());
    for attempt in 1..=kills {
        let status = run.wait("training", |status| {
            status.attempts == attempt && status.state == RunState::Training && status.pid_worker.is_some()
        })?;
        // Without a new durable step the keeper would back off longer before each restart.
        let (step, durable) = (status.step, status.durable_step);
        run.wait("a checkpoint and a few steps", |status| {
            status.attempts == attempt && status.step > step + 5 && status.durable_step > durable
        })?;
        let killed = unix_ms()?;
        kill(status.pid_worker.ok_or("no worker")?)?;
        let died = wait_for("its end in the journal", || run.row(killed, "worker ended"))?;
        let first = wait_for("the first new step", || first_step_ms(&run.dir, attempt + 1))?;
        seen.push(died.time_ms as f64 - killed as f64);
        new.push(first - killed as f64);
    }
    run.stop()?;
    for (what, mut took, aim) in [("death seen", seen, 300), ("fault → first new step", new, 2000)] {
        took.sort_by(f64::total_cmp);
        let (middle, high) = (quantile(&took, 0.5), quantile(&took, 0.95));
        println!("{what}, {kills} kills: median {middle:.0} ms, 95 % {high:.0} ms (aim: {aim} ms)");
    }
    Ok(())
}

/// Runs with periodic faults and compares with a fault-free run: once with SIGKILL only, which never shifts,
/// and once alternating with SIGSTOP, for which the keeper takes a rung that relieves kernels.
fn shaken(time: Duration, every: Duration) -> Outcome<()> {
    let places = [tempfile::tempdir()?, tempfile::tempdir()?, tempfile::tempdir()?];
    let pace = measure_pace()?;
    // Enough steps for the undisturbed run to fill about the given time.
    let steps = format!("training.steps={}", (pace * time.as_secs_f64() * 0.9) as u64);
    let knobs = [steps.as_str(), "checkpoint.every=2 s"];
    let calm = Shaken::start(places[0].path(), &knobs, "")?;
    let unshaken = calm.shake(None, time, every)?;
    let mut holds = true;
    for (place, signals) in places[1..].iter().zip([&[Signal::KILL][..], &[Signal::KILL, Signal::STOP]]) {
        let run = Shaken::start(place.path(), &knobs, "")?;
        let end = run.shake(Some(signals), time, every)?;
        let same = weights(&run.dir)? == weights(&calm.dir)?;
        let losses = (end.eval.and_then(|eval| eval.loss), unshaken.eval.as_ref().and_then(|eval| eval.loss));
        println!(
            "  final weights {}; validation loss {losses:?}",
            if same { "identical bit by bit" } else { "differ" }
        );
        let near = losses.0.zip(losses.1).is_some_and(|(a, b)| (a - b).abs() <= 0.01 * b.abs());
        holds &= end.state == RunState::Finished && if end.shifts == 0 { same } else { near };
    }
    if holds { Ok(()) } else { Err("a run did not survive unchanged".into()) }
}

/// Measures the steps per second of the default task on this machine.
fn measure_pace() -> Outcome<f64> {
    let place = tempfile::tempdir()?;
    let run = Shaken::start(place.path(), &["training.epochs=100000", "checkpoint.every=2 s"], "")?;
    let first = run.wait("steps", |status| status.step > 50)?.step;
    let began = Instant::now();
    let enough = || began.elapsed() > Duration::from_secs(10);
    let last = wait_for("ten seconds of steps", || run.status().filter(|_| enough()))?.step;
    let speed = (last - first) as f64 / began.elapsed().as_secs_f64();
    run.stop()?;
    Ok(speed)
}

/// A headless run in its own folder.
struct Shaken {
    runs: PathBuf,
    dir: RunDir,
    client: Child,
}

impl Shaken {
    fn start(place: &Path, set: &[&str], inject: &str) -> Outcome<Self> {
        let runs = place.join("runs");
        // The default run, limited to the rungs that do not change the training problem.
        let (_, text) = shipped::run_file(Path::new("digits")).ok_or("no digits")?;
        let (text, _) = text.split_once("  # Everything careful").ok_or("no rung `safe`")?;
        let file = place.join("digits.yaml");
        std::fs::write(&file, text)?;
        let mut command = Command::new(PROGRAM);
        command
            .arg("run")
            .arg(file)
            .args(["--headless", "--another", "--device", "cpu", "--inject", inject, "--runs-dir"])
            .arg(&runs);
        for knob in BUDGET.iter().chain(set) {
            command.args(["--set", knob]);
        }
        let client = command.stdout(Stdio::null()).spawn()?;
        let dir = wait_for("a run", || newest(&runs))?;
        Ok(Self { runs, dir, client })
    }

    fn status(&self) -> Option<Status> {
        live_status(&self.dir)
    }

    /// Returns the final status written by the keeper. A missing keeper does not mean the end: the next one
    /// may be starting.
    fn end(&self) -> Option<Status> {
        Reader::open(&self.dir).ok()?.status().filter(|status| status.state.is_over())
    }

    fn wait(&self, what: &str, holds: impl Fn(&Status) -> bool) -> Outcome<Status> {
        wait_for(what, || self.status().filter(&holds))
    }

    /// Returns the first matching journal row since this time.
    fn row(&self, since_ms: i64, words: &str) -> Option<JournalRow> {
        let journal = Reader::open(&self.dir).ok()?.journal(50).ok()?;
        journal.into_iter().find(|row| row.time_ms >= since_ms && row.text.contains(words))
    }

    /// Injects these faults in turn for `time`, waits for the end of the run and returns the final status.
    fn shake(&self, signals: Option<&[Signal]>, time: Duration, every: Duration) -> Outcome<Status> {
        let (began, mut faults) = (Instant::now(), 0_u32);
        let end = loop {
            if let Some(end) = self.end() {
                break end;
            }
            if began.elapsed() > time * 4 {
                return Err("the run does not end".into());
            }
            let due = every * (faults + 1);
            if let Some(signals) = signals.filter(|_| began.elapsed() >= due && began.elapsed() < time) {
                let alive = wait_for("a worker", || {
                    self.status().filter(|status| status.pid_worker.is_some() || self.end().is_some())
                })?;
                if let Some(worker) = alive.pid_worker.and_then(|worker| Pid::from_raw(worker.cast_signed())) {
                    let _ = kill_process(worker, signals[faults as usize % signals.len()]);
                }
                faults += 1;
            }
            std::thread::park_timeout(Duration::from_millis(100));
        };
        let took = began.elapsed().as_secs_f64();
        println!(
            "{faults} faults {:?} in {took:.0} s: {} at step {}, {} restarts, {} shifts; share of useful time {:.1} %",
            signals.unwrap_or_default(),
            end.state.word(),
            end.step,
            end.restarts,
            end.shifts,
            useful_seconds(&self.dir)? / took * 100.0
        );
        Ok(end)
    }

    fn stop(&self) -> Outcome<()> {
        Command::new(PROGRAM).args(["stop", "--runs-dir"]).arg(&self.runs).output()?;
        wait_for("the end", || self.end()).map(drop)
    }
}

impl Drop for Shaken {
    fn drop(&mut self) {
        let _ = Command::new(PROGRAM).args(["stop", "--runs-dir"]).arg(&self.runs).output();
        let _ = self.client.wait();
    }
}

fn weights(dir: &RunDir) -> Outcome<Vec<u8>> {
    let (newest, _) = checkpoint::newest_valid(dir.path());
    Ok(newest.and_then(|loaded| loaded.files.get("model.safetensors").cloned()).ok_or("no weights")?)
}

/// Returns the seconds spent in surviving steps; a repeated step counts once.
fn useful_seconds(dir: &RunDir) -> Outcome<f64> {
    let mut stayed = BTreeMap::new();
    Reader::open(dir)?.each_step(|row| {
        stayed.insert(row.step, row.data_wait_ms + row.compute_ms);
    })?;
    Ok(stayed.into_values().sum::<f64>() / 1000.0)
}

fn kill(pid: u32) -> Outcome<()> {
    let pid = Pid::from_raw(pid.cast_signed()).ok_or("no process")?;
    Ok(kill_process(pid, Signal::KILL)?)
}

fn unix_ms() -> Outcome<i64> {
    Ok(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?)
}
