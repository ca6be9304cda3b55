//! `plan --fit`: finds the largest value of a knob that fits, by training at several values, each in a process of
//! its own.

mod search;

use super::{PlanArgs, TrainingDevice};
use crate::cli::measure::{Meter, Protocol, Unmeasured, only_rung, with_knob};
use crate::cli::{Failure, Format, Outcome, line, say};
use crate::config::command::launch::{find_knob, format_knob};
use crate::config::run::Run;
use crate::format::bytes;
use crate::protocol::plan::{Card, Measured};
use crate::protocol::worker::FailureClass;
use crate::trainer::Trainer;
use search::Search;
use serde::Serialize;
use std::fmt::Write;
use std::time::Duration;

/// The JSON output.
#[derive(Debug, Serialize)]
struct Fit<'a> {
    version: u32,
    run: &'a str,
    rung: &'a str,
    device: &'a str,
    knob: &'a str,
    /// Bytes of the device that a value may take.
    budget_bytes: Option<u64>,
    /// The largest value that fits.
    largest: Option<u64>,
    attempts: Vec<Attempt>,
    /// Why the search ended early.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended: Option<&'a str>,
}

/// One value that was tried.
#[derive(Debug, Serialize)]
struct Attempt {
    value: u64,
    fits: bool,
    /// Whether a run refuses the value, so it was not measured.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    refused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Measured>,
    /// Why it does not fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// The values to try, and where.
struct Candidates<'a> {
    run: &'a Run,
    knob: &'a str,
    device: &'a str,
    trainer: &'a dyn Trainer,
    protocol: Protocol,
}

/// Finds the largest value of the knob on one rung, and prints each attempt.
pub fn fit(args: &PlanArgs, run: &Run, place: &TrainingDevice, trainer: &dyn Trainer) -> Outcome {
    let rung = args.rung.as_ref().map_or(Ok(0), |name| super::rung_of(run, name))?;
    let run = &only_rung(run, rung);
    let (name, knob, device) = (&run.rungs[0].name, args.knob.as_str(), args.overrides.device.as_str());
    let mut search = Search::new(start_value(run, knob)?);
    let free = place.card.as_ref().map(Card::room);
    let budget = args.gpu.map(|size| size.0).or(free);
    let protocol = Protocol { budget, ..args.protocol() };
    let mut meter = Meter::new(run, device, &place.device, &place.devices, protocol)?;
    let candidates = Candidates { run, knob, device, trainer, protocol };
    let mut attempts = Vec::new();
    let ended = candidates.try_all(&mut meter, &mut search, &mut attempts).err();
    let largest = search.largest();
    let sentence = conclusion(knob, name, &search, &attempts);
    let fit = Fit {
        version: 1,
        run: &run.name,
        rung: name,
        device: &place.device,
        knob,
        budget_bytes: budget,
        largest,
        attempts,
        ended: ended.as_ref().map(|failure| failure.message.as_str()),
    };
    match (args.format, &ended) {
        (Format::Json, _) => line!("{}", serde_json::to_string_pretty(&fit)?),
        (_, None) => line!("{sentence}"),
        (_, Some(_)) => {}
    }
    match ended {
        Some(failure) => Err(end_search(failure, &search)),
        None if largest.is_some() => Ok(0),
        None => Ok(FailureClass::DeviceOutOfMemory.exit_code()),
    }
}

impl Candidates<'_> {
    /// Tries values until the search knows its answer, or one fails for another reason than memory.
    fn try_all(&self, meter: &mut Meter<'_>, search: &mut Search, attempts: &mut Vec<Attempt>) -> Result<(), Failure> {
        while let Some(value) = search.next() {
            let attempt = match self.with_value(value) {
                Ok(changed) => try_value(meter, &changed, value, self.protocol)?,
                // A refusal is a limit only above a value that fits: otherwise something else is wrong.
                Err(refusal) if search.largest().is_some() => Attempt::refused(value, refusal.message),
                Err(refusal) => return Err(refusal),
            };
            say(&format!("{} = {value}: {}", self.knob, attempt.outcome(self.protocol.budget)));
            search.record(value, attempt.fits);
            attempts.push(attempt);
        }
        Ok(())
    }

    /// Returns the run with this value, or the refusal that `run` would end with.
    fn with_value(&self, value: u64) -> Result<Run, Failure> {
        let changed = with_knob(self.run, self.knob, &value.to_string())?;
        self.trainer.look_ahead(&changed, self.device).map_err(Failure::of)?;
        self.trainer.examine(&changed).map_err(Failure::of)?;
        Ok(changed)
    }
}

/// Returns the value that the run file gives the knob.
fn start_value(run: &Run, knob: &str) -> Result<u64, Failure> {
    let tree = run.preset_tree(0);
    let written = find_knob(&tree, knob).map(format_knob);
    let Some(text) = written else {
        let message = format!("the run file does not set {knob}; write it there, or name another knob with --knob");
        return Err(Failure::new(2, message));
    };
    if let Some(problem) = run.unreached_knobs(std::iter::once(knob)).first() {
        return Err(Failure::config(format!("{knob}: {}; {}", problem.wrong, problem.fix)));
    }
    let whole = text.parse().ok().filter(|value| *value > 0);
    whole.ok_or_else(|| Failure::new(2, format!("{knob} is {text}; --fit needs a knob with a whole number above 0")))
}

/// Tells the largest value so far with a failure that says nothing about memory.
fn end_search(mut failure: Failure, search: &Search) -> Failure {
    if let Some(largest) = search.largest() {
        let _ = write!(failure.message, "\nthe search ended there; the largest value that fitted so far is {largest}");
    }
    failure
}

/// Memory grows until the first step has ended, so without one nothing is known.
fn no_step(value: u64, limit: Duration) -> Failure {
    let limit = limit.as_secs();
    Failure::new(1, format!("no step within --limit ({limit} s), so whether {value} fits is unknown; raise it"))
}

/// Returns the attempt with a value, unless it fails for another reason than memory.
fn try_value(meter: &mut Meter<'_>, run: &Run, value: u64, limits: Protocol) -> Result<Attempt, Failure> {
    let Protocol { limit, budget, .. } = limits;
    match meter.measure(run, 0) {
        Ok(measurement) => {
            let figures = measurement.figures;
            let excess = figures.peak_bytes.zip(budget).filter(|(peak, budget)| peak > budget);
            let why = excess.map(|(peak, budget)| format!("takes {}, more than {}", bytes(peak), bytes(budget)));
            if why.is_none() && figures.first_step_s.is_none() {
                return Err(no_step(value, limit));
            }
            Ok(Attempt { value, fits: why.is_none(), refused: false, measured: Some(figures), why })
        }
        Err(Unmeasured::OutOfMemory(failure)) => {
            Ok(Attempt { value, fits: false, refused: false, measured: None, why: Some(failure.message) })
        }
        Err(why) => Err(why.into()),
    }
}

impl Attempt {
    /// Creates the attempt of a value that a run refuses.
    fn refused(value: u64, why: String) -> Self {
        Self { value, fits: false, refused: true, measured: None, why: Some(why) }
    }

    /// Describes the outcome.
    fn outcome(&self, budget: Option<u64>) -> String {
        let peak = self.measured.and_then(|measured| measured.peak_bytes).map(bytes);
        let of = budget.map_or_else(String::new, |budget| format!(" of {}", bytes(budget)));
        match (&self.why, peak) {
            (Some(why), _) if self.refused => format!("refused: {why}"),
            (Some(why), _) => format!("too large: {why}"),
            (None, Some(peak)) => format!("fits, peak {peak}{of}"),
            (None, None) => "fits, peak unknown".to_owned(),
        }
    }
}

fn conclusion(knob: &str, rung: &str, search: &Search, attempts: &[Attempt]) -> String {
    let Some(largest) = search.largest() else { return format!("{knob}: not even 1 fits on rung {rung}") };
    if search.is_unbounded() {
        return format!("{knob}: {largest} fits on rung {rung}, and larger values were not tried");
    }
    let next = attempts.iter().find(|attempt| attempt.value == largest + 1);
    match next.filter(|attempt| attempt.refused).and_then(|attempt| attempt.why.as_ref()) {
        Some(why) => {
            format!("{knob}: {largest} is the largest value that a run accepts on rung {rung}; limited by: {why}")
        }
        None => format!("{knob}: {largest} is the largest value that fits on rung {rung}"),
    }
}

#[cfg(test)]
mod tests;
