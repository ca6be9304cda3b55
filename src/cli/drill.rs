//! `drill`: takes the default run through one fault after another, and prints the keeper's response to
//! each and how long it took. The faults are injected; the recovery is the normal one.

use super::devices::devices_of;
use super::watching::{Watched, prepare};
use super::{Failure, Outcome, line};
use crate::keeper::Launch;
use crate::probe::drill::Drill;
use crate::protocol::claim::ClaimRequest;
use crate::protocol::control::{JournalRow, RunState, Status};
use crate::protocol::inject::Inject;
use crate::protocol::probe::DRILL_FILE;
use crate::store::run_dir::RunDir;
use crate::untrusted::text;
use clap::Args;
use std::path::Path;

/// Temperatures of the simulated GPU.
const COOL: f64 = 60.0;
const HOT: f64 = 93.0;
/// Step at which the GPU gets hot.
const HEAT_AT: u64 = 600;
/// Faults that the worker injects itself.
const INJECT: &str = "oom@120,nan@240-244,hang@360,kill@480";
/// Overrides of the shipped run: shorter, and with shorter timeouts.
const SHORTER: [(&str, &str); 8] = [
    ("name", "drill"),
    ("training.steps", "1600"),
    ("checkpoint.every", "25 steps"),
    ("checkpoint.proven_after", "50"),
    ("watch.hang_min", "2 s"),
    ("watch.ending.grace", "1 s"),
    ("watch.heat.act_after", "1 s"),
    ("watch.climb.after", "200"),
];

/// Arguments of `drill`.
#[derive(Debug, Args)]
pub struct DrillArgs {
    /// The device to train on: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    device: String,
    /// Number of steps instead of 1600; the last fault occurs at step 600
    #[arg(long, hide = true)]
    steps: Option<u64>,
}

/// A fault of the drill, and its expected journal lines.
struct Exercise {
    name: &'static str,
    /// The journal line that marks its start.
    begins: &'static str,
    /// The journal line that reports the response.
    answer: &'static str,
    began_ms: Option<i64>,
    did: Option<String>,
    took_ms: Option<i64>,
}

const fn exercise(name: &'static str, begins: &'static str, answer: &'static str) -> Exercise {
    Exercise { name, begins, answer, began_ms: None, did: None, took_ms: None }
}

pub fn drill(args: &DrillArgs, runs: &Path, trainer: &dyn crate::trainer::Trainer) -> Outcome {
    let mut overrides: Vec<(String, String)> =
        SHORTER.iter().map(|(path, value)| ((*path).to_owned(), (*value).to_owned())).collect();
    if let Some(steps) = args.steps {
        overrides[1].1 = steps.to_string();
    }
    let run = prepare(None, &overrides, &args.device, runs, trainer)?;
    let dir = RunDir::create(runs, &run)?;
    set_temperature(&dir, COOL)?;
    line!("drill in {}: {INJECT}, then a hot GPU at step {HEAT_AT}", text::path(dir.path()));
    let inject = Inject::parse_list(INJECT).map_err(|error| Failure::new(1, error.to_string()))?;
    // The drill shows the keeper at work; it waits for nobody.
    let claim = ClaimRequest { devices: devices_of(&args.device), another: true, after: None };
    let launch = Launch { device: args.device.clone(), claim: Some(claim), inject };
    let mut watched = Watched::start(dir, &launch)?;
    let mut exercises = [
        exercise("out of device memory", "injected oom", "shift down: "),
        exercise("burst of NaN losses", "injected nan", "shift down: "),
        exercise("hang", "injected hang", "restart after: hang"),
        exercise("kill -9", "injected kill", "restart after: killed"),
        exercise("hot GPU", "pause to cool", "the GPU has cooled"),
        exercise("climb back", "climb: ", "climb: "),
    ];
    let status = follow_run(&mut watched, &mut exercises)?;
    let climbed = exercises[5].did.is_some();
    print_table(&exercises[..if climbed { 6 } else { 5 }]);
    let mended = exercises[..5].iter().filter(|exercise| exercise.took_ms.is_some()).count();
    line!("{} at step {}; {mended} of 5 faults recovered", status.state.word(), status.step);
    Ok(u8::from(mended < 5 || status.state != RunState::Finished))
}

/// Sets the temperature of the simulated GPU.
fn set_temperature(dir: &RunDir, temperature_c: f64) -> Result<(), Failure> {
    let text = serde_json::to_string(&Drill { temperature_c })?;
    Ok(dir.write_atomically(DRILL_FILE, text.as_bytes())?)
}

fn follow_run(watched: &mut Watched, exercises: &mut [Exercise]) -> Result<Status, Failure> {
    let mut heated = false;
    loop {
        let (status, rows) = watched.poll()?;
        for row in &rows {
            line!("  {}", row.text);
            record_row(exercises, row);
            if heated && row.text.starts_with("pause to cool") {
                set_temperature(&watched.dir, COOL)?;
            }
        }
        let Some(status) = status else { continue };
        if status.step >= HEAT_AT && !heated {
            heated = true;
            set_temperature(&watched.dir, HOT)?;
        }
        if status.state.is_over() && status.pid_keeper.is_none() {
            return Ok(status);
        }
    }
}

/// Records a journal line in its exercise: the start, the response, or the first new step.
fn record_row(exercises: &mut [Exercise], row: &JournalRow) {
    for exercise in exercises {
        if exercise.began_ms.is_none() && row.text.starts_with(exercise.begins) {
            exercise.began_ms = Some(row.time_ms);
        }
        if exercise.began_ms.is_none() {
            continue;
        }
        if exercise.did.is_none() && row.text.contains(exercise.answer) {
            let text = row.text.split_once(": ").filter(|(head, _)| head.starts_with("attempt"));
            exercise.did = Some(text.map_or(row.text.as_str(), |(_, rest)| rest).to_owned());
        }
        let arrived = ["restarted ", "shifted "].iter().any(|word| row.text.starts_with(word));
        if exercise.did.is_some() && exercise.took_ms.is_none() && arrived {
            exercise.took_ms = exercise.began_ms.map(|began| row.time_ms - began);
        }
    }
}

fn print_table(exercises: &[Exercise]) {
    line!("");
    line!("{:<38} {:>14}   what the keeper did", "fault", "until new step");
    for exercise in exercises {
        let took = exercise.took_ms.map_or("–".to_owned(), |took| format!("{:.1} s", took as f64 / 1e3));
        let did: String = exercise.did.as_deref().unwrap_or("no response").chars().take(90).collect();
        line!("{:<38} {took:>14}   {did}", exercise.name);
    }
}

#[cfg(test)]
mod tests {
    use super::{exercise, record_row};
    use crate::protocol::control::{JournalKind, JournalRow};
    use crate::protocol::worker::Level;

    #[test]
    fn an_exercise_is_timed_from_the_fault_to_the_first_new_step() {
        let row = |time_ms: i64, text: &str| JournalRow {
            id: time_ms,
            time_ms,
            step: None,
            level: Level::Info,
            kind: JournalKind::Note,
            text: text.to_owned(),
        };
        let mut all = [exercise("kill", "injected kill", "restart after: killed")];
        for (time, text) in [
            (1, "shifted a → b in 1 s"),
            (100, "injected kill@9 at step 9"),
            (110, "worker ended at step 9: killed by SIGKILL"),
            (120, "attempt 2: restart after: killed by SIGKILL"),
            (400, "restarted full in 0.3 s: step 9 → 5"),
            (900, "restarted full in 0.3 s: step 9 → 5"),
        ] {
            record_row(&mut all, &row(time, text));
        }
        assert_eq!((all[0].took_ms, all[0].did.as_deref()), (Some(300), Some("restart after: killed by SIGKILL")));
    }
}
