//! A live run at any pace: this process plays the keeper on the real socket.

use crate::help::{Outcome, quantile};
use crate::pty::cpu_s;
use crate::{make, open};
use downshift::format::count;
use downshift::protocol::control::{RunState, Status, StepRow, Update};
use downshift::protocol::line;
use downshift::store::reader::Reader;
use downshift::store::run_dir::RunDir;
use downshift::store::socket_place;
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

const SIZE: (u16, u16) = (120, 40);
/// Steps taken before the cockpit opens.
const BEFORE: u64 = 20_000;
/// Shortest interval between status messages, the same as the keeper's.
const STATUS: Duration = Duration::from_millis(100);

/// Prints the cost of watching a run at `rate` steps per second, and the age of the steps on screen.
pub fn watched(runs: &Path, rate: u64, seconds: u64, aim: &str) -> Outcome<()> {
    let run = make::long_run(runs, &format!("live-{rate}"), BEFORE)?;
    socket_place::prepare(&run)?;
    let listener = UnixListener::bind(run.socket())?;
    let status = Reader::open(&run)?.status().ok_or("no status")?;
    let (tell, told) = channel();
    thread::spawn(move || {
        if let Ok((stream, _)) = listener.accept() {
            // The cockpit has closed the connection: the measurement is over.
            let _ = play(stream, status, rate, &tell);
        }
    });
    let measured = look(&run, &told, seconds);
    std::fs::remove_file(run.socket()).ok();
    let (cpu, bytes, ages) = measured?;
    let (usual, most) = (quantile(&ages, 0.5) * 1e3, quantile(&ages, 0.99) * 1e3);
    println!("| CPU on a live run of {rate} steps/s, {} × {} | {:.2} % | {aim} |", SIZE.0, SIZE.1, cpu * 100.0);
    println!("| newest step on the screen after, median and 99 % | {usual:.0} ms, {most:.0} ms | 200 ms |");
    let limit = if rate == 1 { "5 kB/s" } else { "–" };
    println!("| written to the terminal | {:.1} kB/s | {limit} |", bytes / 1e3);
    Ok(())
}

/// Returns the share of a core, bytes per second, and the sorted ages of steps when they appeared.
fn look(run: &RunDir, told: &Receiver<(u64, Instant)>, seconds: u64) -> Outcome<(f64, f64, Vec<f64>)> {
    let mut pty = open(run, SIZE)?;
    // The first seconds measure the opening, so skip them.
    pty.watch(Duration::from_secs(3), |_| false)?;
    let (mut waiting, mut ages): (Vec<(u64, Instant)>, Vec<f64>) = (Vec::new(), Vec::new());
    told.try_iter().for_each(drop);
    let (bytes, used, begun) = (pty.bytes, cpu_s(pty.pid()), Instant::now());
    pty.watch(Duration::from_secs(seconds), |screen| {
        waiting.extend(told.try_iter());
        let (_, columns) = screen.size();
        let head: String = screen.rows(0, columns).take(3).collect::<Vec<_>>().join("\n");
        if let Some(newest) = waiting.iter().rposition(|(step, _)| head.contains(&count(*step))) {
            ages.extend(waiting.drain(..=newest).map(|(_, sent)| sent.elapsed().as_secs_f64()));
        }
        false
    })?;
    let lasted = begun.elapsed().as_secs_f64();
    if ages.is_empty() {
        return Err(format!("no step of the live run was seen:\n{}", pty.text()).into());
    }
    ages.sort_by(f64::total_cmp);
    Ok(((cpu_s(pty.pid()) - used) / lasted, (pty.bytes - bytes) as f64 / lasted, ages))
}

/// Sends steps until the client disconnects.
fn play(mut stream: UnixStream, mut status: Status, rate: u64, tell: &Sender<(u64, Instant)>) -> Outcome<()> {
    (status.state, status.pid_keeper, status.pid_worker) = (RunState::Training, Some(1), Some(1));
    status.total_samples = status.total_samples.map(|total| total * 10);
    status.total_steps = status.total_steps.map(|total| total * 10);
    let mut say = |update: &Update| -> Outcome<()> { Ok(stream.write_all(line::encode(update)?.as_bytes())?) };
    say(&Update::Status(Box::new(status.clone())))?;
    let (begun, mut said) = (Instant::now(), Instant::now());
    for taken in 1u64.. {
        let due = begun + Duration::from_secs(taken) / u32::try_from(rate)?;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let step = BEFORE + taken;
        let time_ms = jiff::Timestamp::now().as_millisecond();
        let row = StepRow { time_ms, loss: Some(0.3), skipped: false, ..make::row(3, 0, step, BEFORE) };
        (status.step, status.samples, status.loss) = (step, row.samples, row.loss);
        tell.send((step, Instant::now()))?;
        say(&Update::Steps { rows: vec![row] })?;
        if said.elapsed() >= STATUS {
            said = Instant::now();
            say(&Update::Status(Box::new(status.clone())))?;
        }
    }
    Ok(())
}
