//! The cost of keeping a command: processor time of harness, holder, keeper, its parent and probe while a script
//! reports ten steps a second, with a progress bar that is redrawn each time.
//!
//! `cargo bench --bench harness -- [SECONDS]` (60 s)
//! `cargo bench --bench harness -- --ranks 64 [SECONDS]`: the same for ranks that take 20 steps a second, with the cockpit open on
//! their view, and the time from a key to the changed screen. Needs Python.

mod help;
#[expect(dead_code, reason = "the benchmark of the cockpit uses all of it")]
#[path = "help/pty.rs"]
mod pty;

use downshift::protocol::control::Status;
use downshift::store::reader::live_status;
use downshift::store::run_dir::RunDir;
use help::{Outcome, PROGRAM, newest, quantile, wait_for};
use pty::Pty;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Clock ticks in a second of /proc.
const TICKS: f64 = 100.0;
/// Time before the measurement, in which everything starts.
const WARM_UP: Duration = Duration::from_secs(5);

/// Ten steps a second, as a bar and a line each.
const SCRIPT: &str = r#"i=0; while :; do i=$((i+1)); printf '\r %d/100000 [00:01<00:02, 10.0it/s]' $i >&2; \
echo "step $i loss 2.3 lr 0.001"; sleep 0.1; done"#;

/// Steps a second of a simulated rank.
const RANK_STEPS: &str = "20";
/// Size of the cockpit.
const PANE: (u16, u16) = (200, 50);
/// Keys that are timed.
const KEYS: usize = 100;

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let ranks = words.iter().position(|word| word == "--ranks").and_then(|at| words.get(at + 1)).cloned();
    let is_ranks = |word: &&String| Some(*word) == ranks.as_ref();
    let seconds = words.iter().filter(|word| !is_ranks(word)).find_map(|word| word.parse().ok()).unwrap_or(60);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/ranks.py");
    let command = match &ranks {
        Some(ranks) => vec!["python3", script, ranks, RANK_STEPS],
        None => vec!["sh", "-c", SCRIPT],
    };
    let place = tempfile::tempdir()?;
    let runs = place.path().join("runs");
    let mut run = Command::new(PROGRAM)
        .args(["run", "--headless", "--device", "cpu", "--runs-dir"])
        .arg(&runs)
        .arg("--")
        .args(command)
        .current_dir(place.path())
        .stdout(Stdio::null())
        .spawn()?;
    let dir = wait_for("a run", || newest(&runs))?;
    let has_ranks = |status: &Status| ranks.is_none() || !status.ranks.is_empty();
    wait_for("its first steps", || live_status(&dir).filter(|status| status.step > 10 && has_ranks(status)))?;
    let mut cockpit = ranks.as_ref().map(|_| open_ranks(&dir)).transpose()?;
    std::thread::sleep(WARM_UP);
    measure_shares(&dir, seconds, cockpit.as_ref().map(Pty::pid))?;
    if let Some(cockpit) = &mut cockpit {
        measure_keys(cockpit)?;
    }
    Command::new(PROGRAM).args(["stop", "--runs-dir"]).arg(&runs).stdout(Stdio::null()).status()?;
    run.wait()?;
    Ok(())
}

/// Measures the processor time of all processes that keep the run.
fn measure_shares(dir: &RunDir, seconds: u64, cockpit: Option<u32>) -> Outcome<()> {
    let status = live_status(dir).ok_or("the run has no status")?;
    let pids = [
        ("harness", status.pid_worker),
        ("keeper", status.pid_keeper),
        ("probe", status.pid_probe),
        ("cockpit", cockpit),
    ];
    let before = pids.map(|(_, pid)| ticks(pid));
    let (began, steps) = (Instant::now(), status.step);
    std::thread::sleep(Duration::from_secs(seconds));
    let (took, after) = (began.elapsed().as_secs_f64(), pids.map(|(_, pid)| ticks(pid)));
    let taken = live_status(dir).map_or(0, |status| status.step) - steps;
    let mut sum = 0.0;
    for (((name, pid), before), after) in pids.iter().zip(before).zip(after).filter(|(((_, pid), _), _)| pid.is_some())
    {
        let share = (after - before) as f64 / TICKS / took * 100.0;
        println!("{name:>8}  {share:.2} % of a core (process {})", pid.unwrap_or(0));
        sum += if *name == "cockpit" { 0.0 } else { share };
    }
    println!("     all  {sum:.2} % without the cockpit, at {:.1} steps/s", taken as f64 / took);
    Ok(())
}

/// Opens the cockpit on the view of the ranks.
fn open_ranks(dir: &RunDir) -> Outcome<Pty> {
    let path = dir.path().display().to_string();
    let mut cockpit = Pty::start(&[PROGRAM, "attach", &path], dir.path(), PANE)?;
    let shows = |text: &'static str| move |screen: &vt100::Screen| screen.contents().contains(text);
    cockpit.watch(Duration::from_mins(1), shows("9 ranks"))?;
    cockpit.send(b"9")?;
    cockpit.watch(Duration::from_mins(1), shows("own time"))?;
    Ok(cockpit)
}

/// Measures the time from a key to the help that it opens or closes: the rest of the screen changes all the time.
fn measure_keys(cockpit: &mut Pty) -> Outcome<()> {
    let mut taken = Vec::new();
    for at in 0..KEYS {
        let opens = at % 2 == 0;
        let begun = Instant::now();
        cockpit.send(b"?")?;
        let wanted = |screen: &vt100::Screen| screen.contents().contains("redraw the screen") == opens;
        if !cockpit.watch(Duration::from_secs(2), wanted)? {
            return Err(format!("the help did not answer:\n{}", cockpit.text()).into());
        }
        taken.push(begun.elapsed().as_secs_f64() * 1e3);
        // At another moment of the run's own changes each time.
        cockpit.watch(Duration::from_millis(50 + 7 * (at as u64 % 11)), |_| false)?;
    }
    taken.sort_by(f64::total_cmp);
    println!("key to changed screen: median {:.1} ms, 99 % {:.1} ms", quantile(&taken, 0.5), quantile(&taken, 0.99));
    Ok(())
}

/// Returns the processor time of a process, in ticks.
fn ticks(pid: Option<u32>) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.unwrap_or(0))).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}
