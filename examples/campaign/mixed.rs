//! SIGKILL and SIGSTOP of worker and keeper in turn, to the end of a long run.

use crate::kills::{is_abandoned, is_over, resume_to_end, run_file, train_unbroken};
use crate::place::{Place, Role, find_process, kill, list_processes, wait_for};
use crate::report::{Row, Table};
use crate::verdict;
use crate::{Failing, Orders};
use downshift::recipe::seed::Stream;
use downshift::store::run_dir::RunDir;
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};

const FAULTS: [(&str, Role, Signal); 4] = [
    ("kill -9 worker, mixed with stops", Role::Worker, Signal::KILL),
    ("SIGSTOP worker, mixed with kills", Role::Worker, Signal::STOP),
    ("kill -9 keeper, mixed with stops", Role::Keeper, Signal::KILL),
    ("SIGSTOP keeper for 3 s, mixed with kills", Role::Keeper, Signal::STOP),
];
/// Mean time between faults.
const PACE_MS: u64 = 1500;

/// Runs this part of the campaign.
pub fn run(orders: &Orders, table: &mut Table) -> Failing<()> {
    let seconds = if orders.quick { 20 } else { 600 };
    // Large steps, so that a run lasts as long as its faults and its curve stays small.
    let text = run_file(if orders.quick { 400 } else { 9000 }, 250)
        .replace("accumulation: 2", "accumulation: 60")
        .replace("every: 3 epochs", "every: 50 epochs")
        .replace("watch: {", "watch: { hang_min: 2 s, ending: { grace: 1 s },");
    let unbroken = train_unbroken(orders, &text)?;
    let place = Place::new(&orders.dir)?;
    let (client, run) = place.start(&text)?;
    let mut rows: Vec<Row> = FAULTS.iter().map(|(fault, ..)| Row::new(*fault)).collect();
    let injected = inject_faults(&place, &run, orders.seed, Duration::from_secs(seconds))?;
    drop(client);
    let outcome = resume_to_end(&place, &run)
        .and_then(|()| verdict::check(&run))
        .and_then(|()| verdict::read_trace(&place, &run)?.check(&unbroken));
    for fault in &injected {
        rows[*fault].count_shared(outcome.is_ok());
    }
    if let Err(loss) = outcome {
        let first = injected.first().copied().unwrap_or(0);
        rows[first].add_loss(format!("{loss}; see {}", place.keep().display()));
    }
    rows.into_iter().filter(|row| row.tried > 0).for_each(|row| table.add(row));
    Ok(())
}

/// Injects faults until the time or the run is over; returns the faults in order.
fn inject_faults(place: &Place, run: &RunDir, seed: u64, time: Duration) -> Failing<Vec<usize>> {
    let (mut stream, begun, mut injected) = (Stream::new(seed), Instant::now(), Vec::new());
    while begun.elapsed() < time && !is_over(run) {
        std::thread::sleep(Duration::from_millis(PACE_MS / 2 + stream.below(PACE_MS)));
        if is_abandoned(run) {
            if is_over(run) {
                break;
            }
            drop(place.resume(run)?);
        }
        let fault = usize::try_from(stream.below(FAULTS.len() as u64))?;
        let (_, role, signal) = FAULTS[fault];
        let Some(pid) = find_process(run, role) else { continue };
        if signal == Signal::KILL {
            kill(pid);
        } else {
            send_signal(pid, Signal::STOP);
        }
        if (role, signal) == (Role::Keeper, Signal::STOP) {
            std::thread::sleep(Duration::from_secs(3));
            send_signal(pid, Signal::CONT);
        }
        injected.push(fault);
    }
    // A worker still stopped at the end is left for the keeper to find.
    wait_for("a living run", || (!list_processes(run.path()).is_empty() || is_abandoned(run)).then_some(()))?;
    println!("{} faults in {:.0} s", injected.len(), begun.elapsed().as_secs_f64());
    Ok(injected)
}

fn send_signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        let _ = kill_process(pid, signal);
    }
}
