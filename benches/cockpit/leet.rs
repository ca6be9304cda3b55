//! W&B LEET on the same steps.

use crate::help::Outcome;
use crate::pty::Pty;
use crate::{Opened, PANE, make};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A script that logs the rows of a file to an offline run.
const LOGGER: &str = "
import csv, sys, wandb
run = wandb.init(project='bench', dir='.', mode='offline',
                 settings=wandb.Settings(console='off', x_disable_stats=True))
names = ('loss', 'grad_norm', 'lr', 'data_wait_ms', 'compute_ms', 'skipped')
for row in csv.reader(open(sys.argv[1])):
    run.log({name: float(value) for name, value in zip(names, row[1:]) if value}, step=int(row[0]))
run.finish()
";

/// Opens the same steps in LEET `times` times; returns None if LEET is not installed.
pub fn measure_opening(place: &Path, steps: u64, times: usize) -> Outcome<Option<Opened>> {
    let wandb = std::env::var("WANDB").unwrap_or_else(|_| "wandb".to_owned());
    // LEET runs in another directory, so resolve the path.
    let wandb = fs::canonicalize(&wandb).map_or(wandb, |path| path.display().to_string());
    let installed = Command::new(&wandb).args(["leet", "--help"]).output();
    if !installed.is_ok_and(|out| out.status.success()) {
        return Ok(None);
    }
    let folder = place.join(format!("leet-{steps}"));
    fs::create_dir_all(&folder)?;
    write_rows(&folder, steps)?;
    let python = Path::new(&wandb).with_file_name("python");
    let python = if python.is_file() { python.display().to_string() } else { "python3".to_owned() };
    let logged = Command::new(python).args(["-c", LOGGER, "rows.csv"]).current_dir(&folder).output()?;
    if !logged.status.success() {
        return Err(format!("wandb did not log: {}", String::from_utf8_lossy(&logged.stderr)).into());
    }
    let run = fs::read_dir(folder.join("wandb"))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.to_string_lossy().contains("offline-run-"))
        .ok_or("wandb left no run behind")?;
    let mut opened = Opened::default();
    for _ in 0..times {
        let mut pty = Pty::start(&[&wandb, "leet", &run.display().to_string()], &folder, PANE)?;
        let last = steps.to_string();
        let shown = pty.watch(Duration::from_mins(10), |screen| screen.contents().contains(&last))?;
        if !shown {
            return Err(format!("LEET did not show the last step within ten minutes:\n{}", pty.text()).into());
        }
        // The step number may appear before the curves: they are complete once the output settles.
        let wrote = pty.settle(Duration::from_secs(3), Duration::from_mins(10))?;
        opened.record((wrote - pty.begun).as_secs_f64(), pty.pid());
    }
    Ok(Some(opened))
}

fn write_rows(folder: &Path, steps: u64) -> Outcome<()> {
    let mut text = String::new();
    for step in 1..=steps {
        let row = make::row(1, 0, step, steps);
        let known = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
        let (loss, norm, skipped) = (known(row.loss), known(row.grad_norm), u8::from(row.skipped));
        let (lr, data_wait_ms, compute_ms) = (known(row.lr), row.data_wait_ms, row.compute_ms);
        writeln!(text, "{step},{loss},{norm},{lr},{data_wait_ms},{compute_ms},{skipped}")?;
    }
    Ok(fs::write(folder.join("rows.csv"), text)?)
}
