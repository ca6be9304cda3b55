//! From key press to first step: a real cockpit in a real tmux, on the default run. `d` or `u` opens the
//! preview; the clock runs from Enter to the first step of the next worker.
//!
//! `cargo bench --bench shift -- [SHIFTS]` (20 shifts, about a minute; needs tmux)

mod help;

use downshift::store::reader::live_status;
use help::{Outcome, PROGRAM, Tmux, first_step_ms, median, newest, quantile, wait_for};
use std::time::{SystemTime, UNIX_EPOCH};

fn main() -> Outcome<()> {
    let shifts: u64 = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(20);
    let place = tempfile::tempdir()?;
    let runs = place.path().join("runs");
    let words =
        format!("{PROGRAM} run digits --another --device cpu --set training.epochs=2000 --runs-dir {}", runs.display());
    let tmux = Tmux::start(&words)?;
    let dir = wait_for("a run", || newest(&runs))?;
    let mut took = Vec::new();
    for shift in 1..=shifts {
        wait_for("training", || {
            live_status(&dir).filter(|status| status.attempts == shift && status.step > shift * 20)
        })?;
        wait_for("the preview", || {
            let open = tmux.screen().contains("Enter shift");
            if !open {
                let _ = tmux.key("Escape").and_then(|()| tmux.key(if shift % 2 == 1 { "d" } else { "u" }));
            }
            open.then_some(())
        })?;
        let asked = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as f64;
        tmux.key("Enter")?;
        let first = wait_for("the first step", || first_step_ms(&dir, shift + 1))?;
        took.push(first - asked);
        println!("shift {shift:>3}: {:.0} ms", first - asked);
    }
    took.sort_by(f64::total_cmp);
    println!(
        "from Enter to the first step, {shifts} shifts: median {:.0} ms, 95 % {:.0} ms (aim: 1000 ms median)",
        median(took.clone()),
        quantile(&took, 0.95)
    );
    std::process::Command::new(PROGRAM).args(["stop", "--runs-dir"]).arg(&runs).output()?;
    wait_for("the end", || live_status(&dir).filter(|status| status.state.is_over()))?;
    Ok(())
}
