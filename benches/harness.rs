//! The cost of keeping a command: processor time of harness, holder, keeper, its parent and probe while a script
//! reports ten steps a second, with a progress bar that is redrawn each time.
//!
//! `cargo bench --bench harness -- [SECONDS]` (60 s)

mod help;

use downshift::store::reader::live_status;
use help::{Outcome, PROGRAM, newest, wait_for};
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

fn main() -> Outcome<()> {
    let seconds = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(60);
    let place = tempfile::tempdir()?;
    let runs = place.path().join("runs");
    let mut run = Command::new(PROGRAM)
        .args(["run", "--headless", "--device", "cpu", "--runs-dir"])
        .arg(&runs)
        .args(["--", "sh", "-c", SCRIPT])
        .current_dir(place.path())
        .stdout(Stdio::null())
        .spawn()?;
    let dir = wait_for("a run", || newest(&runs))?;
    let status = wait_for("its first steps", || live_status(&dir).filter(|status| status.step > 10))?;
    std::thread::sleep(WARM_UP);
    let pids = [("harness", status.pid_worker), ("keeper", status.pid_keeper), ("probe", status.pid_probe)];
    let before = pids.map(|(_, pid)| ticks(pid));
    let (began, steps) = (Instant::now(), live_status(&dir).map_or(0, |status| status.step));
    std::thread::sleep(Duration::from_secs(seconds));
    let (took, after) = (began.elapsed().as_secs_f64(), pids.map(|(_, pid)| ticks(pid)));
    let taken = live_status(&dir).map_or(0, |status| status.step) - steps;
    let mut sum = 0.0;
    for (((name, _), before), after) in pids.iter().zip(before).zip(after) {
        let share = (after - before) as f64 / TICKS / took * 100.0;
        println!("{name:>8}  {share:.2} % of a core");
        sum += share;
    }
    println!("     all  {sum:.2} % at {:.1} steps/s (aim: 1 %)", taken as f64 / took);
    Command::new(PROGRAM).args(["stop", "--runs-dir"]).arg(&runs).stdout(Stdio::null()).status()?;
    run.wait()?;
    Ok(())
}

/// Returns the processor time of a process, in ticks.
fn ticks(pid: Option<u32>) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.unwrap_or(0))).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
}
