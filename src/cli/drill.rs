//! `drill`: takes the default run through one fault after another, and prints the keeper's response to
//! each and how long it took. The faults are injected; the recovery is the normal one.

mod exercise;

use super::client;
use super::devices::devices_of;
use super::watching::{Watched, prepare};
use super::{Failure, Outcome, line};
use crate::format::count;
use crate::keeper::Launch;
use crate::probe::drill::Drill;
use crate::protocol::claim::ClaimRequest;
use crate::protocol::control::{Request, RunState, StageName, Status};
use crate::protocol::inject::Inject;
use crate::protocol::probe::DRILL_FILE;
use crate::store::run_dir::RunDir;
use crate::untrusted::text;
use clap::Args;
use exercise::{CLIMB, Exercise, FAULTS, Recovery, Tracks};
use std::path::Path;

/// Temperatures of the simulated GPU.
const COOL: f64 = 60.0;
const HOT: f64 = 93.0;
/// Step at which the GPU gets hot.
const HEAT_AT: u64 = 600;
/// Faults that the worker injects itself.
const INJECT: &str = "oom@120,nan@240-244,hang@360,kill@480";
/// Overrides of the shipped run: shorter timeouts, and more steps than a drill takes, which ends once every response was seen.
const OVERRIDES: [(&str, &str); 8] = [
    ("name", "drill"),
    ("training.steps", "20000"),
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
}

pub fn drill(args: &DrillArgs, runs: &Path, trainer: &dyn crate::trainer::Trainer) -> Outcome {
    let overrides = OVERRIDES.map(|(path, value)| (path.to_owned(), value.to_owned()));
    let run = prepare(None, &overrides, &args.device, runs, trainer)?;
    let dir = RunDir::create(runs, &run)?;
    set_temperature(&dir, COOL)?;
    line!("drill in {}: {INJECT}, then a hot GPU at step {HEAT_AT}", text::path(dir.path()));
    let inject = Inject::parse_list(INJECT).map_err(|error| Failure::new(1, error.to_string()))?;
    // The drill shows the keeper at work; it waits for no device.
    let claim = ClaimRequest { devices: devices_of(&args.device), another: true, ..ClaimRequest::default() };
    let launch = Launch { device: args.device.clone(), claim: Some(claim), inject };
    let (status, heated_ms) = follow_run(Watched::start(dir.clone(), &launch)?)?;
    let tracks = Tracks::read(&dir, heated_ms)?;
    let faults: Vec<_> = FAULTS.iter().map(|fault| (fault, tracks.find_recovery(fault))).collect();
    let climb = tracks.find_recovery(&CLIMB);
    print_table(faults.iter().map(|(fault, recovery)| (*fault, recovery.as_ref())));
    print_row(&CLIMB, climb.as_ref());
    let mended = faults.iter().filter(|(_, recovery)| recovery.as_ref().is_some_and(Recovery::is_complete)).count();
    line!("{} at step {}; {mended} of 5 faults recovered", status.state.word(), count(status.step));
    line!("no notification was sent; the journal holds those that a run would send");
    let is_complete = mended == FAULTS.len() && climb.is_some_and(|climb| climb.is_complete());
    Ok(u8::from(!is_complete || !matches!(status.state, RunState::Stopped | RunState::Finished)))
}

/// Sets the temperature of the simulated GPU.
fn set_temperature(dir: &RunDir, temperature_c: f64) -> Result<(), Failure> {
    let text = serde_json::to_string(&Drill { temperature_c })?;
    Ok(dir.write_atomically(DRILL_FILE, text.as_bytes())?)
}

/// Follows the run to its end. Heats the GPU on the way, cools it once the keeper has paused for it, and stops the run when it
/// has recovered from that and climbed. Returns the last status, and when the GPU got hot.
fn follow_run(watched: Watched) -> Result<(Status, Option<i64>), Failure> {
    let (mut heated_ms, mut is_stopping) = (None, false);
    let status = watched.follow(|dir, status| {
        if status.step >= HEAT_AT && heated_ms.is_none() {
            heated_ms = Some(jiff::Timestamp::now().as_millisecond());
            return set_temperature(dir, HOT);
        }
        if heated_ms.is_some() && is_cooling(status) {
            return set_temperature(dir, COOL);
        }
        if heated_ms.is_some() && !is_stopping && Tracks::read(dir, heated_ms)?.are_complete() {
            is_stopping = true;
            // It may have taken its last step meanwhile.
            client::send_request(dir, &Request::Stop).ok();
        }
        Ok(())
    })?;
    Ok((status, heated_ms))
}

/// Reports whether the run waits for the GPU to cool.
fn is_cooling(status: &Status) -> bool {
    let stage = status.passage.as_ref().and_then(|passage| passage.stages.last());
    stage.is_some_and(|stage| stage.name == StageName::Cool && stage.took_ms.is_none())
}

fn print_table<'a>(rows: impl Iterator<Item = (&'a Exercise, Option<&'a Recovery>)>) {
    line!("");
    line!("{:<38} {:>14}   what the keeper did", "fault", "until new step");
    for (exercise, recovery) in rows {
        print_row(exercise, recovery);
    }
}

fn print_row(exercise: &Exercise, recovery: Option<&Recovery>) {
    let took = recovery.and_then(|recovery| recovery.took_ms);
    let took = took.map_or("–".to_owned(), |took| format!("{:.1} s", took as f64 / 1e3));
    let did = recovery.map_or("no response", |recovery| &recovery.response);
    line!("{:<38} {took:>14}   {did}", exercise.name);
}
