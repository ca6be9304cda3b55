//! From a fault to the first new step, on the CPU, with the real worker.
//!
//! `cargo bench --bench recover -- [KILLS] [--minutes N] [--every SECONDS]`
//!
//! First part: so many `kill -9` of the worker (100), each followed by a wait for the first step of
//! the next one; how long until the keeper had seen the death, and until that step. Second part,
//! with `--minutes`: the default task for so long with a fault every 30 s (SIGKILL and SIGSTOP in
//! turn), then the same run without a fault: share of useful time, the weights of both
//! compared bit by bit where every restart was on the same rung, the validation loss where not.

mod help;

use downshift::protocol::control::{JournalRow, RunState, Status};
use downshift::store::checkpoint;
use downshift::store::reader::{Reader, live_status};
use downshift::store::run_dir::RunDir;
use help::{Outcome, PROGRAM, newest, quantile, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A budget that a campaign does not use up, and nothing that shifts unasked.
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
        // Without a new durable step the keeper would wait longer and longer before it starts again.
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

/// A run with a fault every so often, against one without.
fn shaken(time: Duration, every: Duration) -> Outcome<()> {
    let (with, without) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let pace = measure_pace()?;
    // So long that the undisturbed part of it fills about the time.
    let steps = format!("training.steps={}", (pace * time.as_secs_f64() * 0.9) as u64);
    let run = Shaken::start(with.path(), &[&steps, "checkpoint.every=2 s"], "")?;
    let (began, mut faults) = (Instant::now(), 0_u32);
    while run.status().is_none_or(|status| !status.state.is_over()) {
        let due = every * (faults + 1);
        if began.elapsed() >= due && began.elapsed() < time {
            faults += 1;
            let alive = run.wait("a worker", |status| status.pid_worker.is_some() || status.state.is_over())?;
            if let Some(worker) = alive.pid_worker {
                let signal = if faults.is_multiple_of(2) { Signal::STOP } else { Signal::KILL };
                let _ = Pid::from_raw(worker.cast_signed()).map(|pid| kill_process(pid, signal));
            }
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
    let took = began.elapsed();
    let shaken = run.status().ok_or("no status")?;
    let calm = Shaken::start(without.path(), &[&steps, "checkpoint.every=2 s"], "")?;
    let began = Instant::now();
    let limit = time * 4;
    let unshaken = loop {
        let status = calm.status().filter(|status| status.state.is_over());
        match status {
            Some(status) => break status,
            None if began.elapsed() > limit => return Err("the faultless run does not end".into()),
            None => std::thread::park_timeout(Duration::from_millis(100)),
        }
    };
    let useful = began.elapsed().as_secs_f64() / took.as_secs_f64();
    println!(
        "{faults} faults in {:.0} s: {} at step {}, {} restarts, {} shifts; share of useful time {:.1} %",
        took.as_secs_f64(),
        shaken.state.word(),
        shaken.step,
        shaken.restarts,
        shaken.shifts,
        useful * 100.0
    );
    let same = weights(&run.dir)? == weights(&calm.dir)?;
    let losses = (shaken.eval.map(|eval| eval.loss), unshaken.eval.map(|eval| eval.loss));
    println!("final weights {}; validation loss {losses:?}", if same { "identical bit by bit" } else { "DIFFER" });
    let near = losses.0.zip(losses.1).is_some_and(|(a, b)| (a - b).abs() <= 0.01 * b.abs());
    let holds = shaken.state == RunState::Finished && if shaken.shifts == 0 { same } else { near };
    if holds { Ok(()) } else { Err("the run did not come through unharmed".into()) }
}

/// Steps per second of the default task here.
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

/// A headless run in a folder of its own.
struct Shaken {
    runs: PathBuf,
    dir: RunDir,
    client: Child,
}

impl Shaken {
    fn start(place: &Path, set: &[&str], inject: &str) -> Outcome<Self> {
        let runs = place.join("runs");
        let mut command = Command::new(PROGRAM);
        command.args(["run", "digits", "--headless", "--device", "cpu", "--inject", inject, "--runs-dir"]).arg(&runs);
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

    fn wait(&self, what: &str, holds: impl Fn(&Status) -> bool) -> Outcome<Status> {
        wait_for(what, || self.status().filter(&holds))
    }

    /// A line of the journal from then on.
    fn row(&self, since_ms: i64, words: &str) -> Option<JournalRow> {
        let journal = Reader::open(&self.dir).ok()?.journal(50).ok()?;
        journal.into_iter().find(|row| row.time_ms >= since_ms && row.text.contains(words))
    }

    fn stop(&self) -> Outcome<()> {
        Command::new(PROGRAM).args(["stop", "--runs-dir"]).arg(&self.runs).output()?;
        self.wait("the end", |status| status.state.is_over()).map(drop)
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

fn kill(pid: u32) -> Outcome<()> {
    let pid = Pid::from_raw(pid.cast_signed()).ok_or("no process")?;
    Ok(kill_process(pid, Signal::KILL)?)
}

fn unix_ms() -> Outcome<i64> {
    Ok(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?)
}

/// When the first step of an attempt reached the keeper, Unix milliseconds.
fn first_step_ms(dir: &RunDir, attempt: u64) -> Option<f64> {
    let mut first = None;
    let read = Reader::open(dir).ok()?.each_step(|row| {
        if row.attempt == attempt && first.is_none() {
            first = Some(row.time_ms as f64);
        }
    });
    read.ok().and(first)
}
