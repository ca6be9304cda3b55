//! `plan --fit`: finds the largest value of a knob that fits, by training at several values, each in a process of
//! its own.

mod search;

use super::{Place, PlanArgs};
use crate::cli::measure::{Meter, Protocol, Unmeasured, only_rung, with_knob};
use crate::cli::{Failure, Format, Outcome, line, say};
use crate::config::command::launch::{find_knob, format_knob};
use crate::config::run::Run;
use crate::format::bytes;
use crate::protocol::plan::{Card, Measured};
use crate::protocol::worker::FailureClass;
use search::Search;
use serde::Serialize;
use std::fmt::Write;

/// The knob that is enlarged unless another is named.
pub const MICRO_BATCH: &str = "training.micro_batch";

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
}

/// One value that was tried.
#[derive(Debug, Serialize)]
struct Attempt {
    value: u64,
    fits: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    measured: Option<Measured>,
    /// Why it does not fit.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// Finds the largest value of the knob on one rung, and prints each attempt.
pub fn fit(args: &PlanArgs, run: &Run, place: &Place) -> Outcome {
    let rung = args.rung.as_ref().map_or(Ok(0), |name| super::rung_of(run, name))?;
    let run = only_rung(run, rung);
    let name = &run.rungs[0].name;
    let start = start_value(&run, &args.knob)?;
    let free = place.card.as_ref().map(Card::room);
    let budget = args.gpu.map(|size| size.0).or(free);
    let mut meter = Meter::new(&run, &args.overrides.device, &place.device, Protocol { budget, ..args.protocol() })?;
    let (mut search, mut attempts) = (Search::new(start), Vec::new());
    while let Some(value) = search.next() {
        let changed = with_knob(&run, &args.knob, &value.to_string())?;
        let attempt = try_value(&mut meter, &changed, value, budget).map_err(|why| end_search(why, &search))?;
        say(&format!("{} = {value}: {}", args.knob, attempt.outcome(budget)));
        search.record(value, attempt.fits);
        attempts.push(attempt);
    }
    let largest = search.largest();
    let sentence = conclusion(&args.knob, name, &search);
    let fit = Fit {
        version: 1,
        run: &run.name,
        rung: name,
        device: &place.device,
        knob: &args.knob,
        budget_bytes: budget,
        largest,
        attempts,
    };
    match args.format {
        Format::Json => line!("{}", serde_json::to_string_pretty(&fit)?),
        _ => line!("{sentence}"),
    }
    Ok(if largest.is_some() { 0 } else { FailureClass::DeviceOutOfMemory.exit_code() })
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
        return Err(Failure::new(13, format!("{knob}: {}; {}", problem.wrong, problem.fix)));
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

fn try_value(meter: &mut Meter<'_>, run: &Run, value: u64, budget: Option<u64>) -> Result<Attempt, Failure> {
    match meter.measure(run, 0) {
        Ok(measurement) => {
            let figures = measurement.figures;
            let excess = figures.peak_bytes.zip(budget).filter(|(peak, budget)| peak > budget);
            let why = excess.map(|(peak, budget)| format!("takes {}, more than {}", bytes(peak), bytes(budget)));
            Ok(Attempt { value, fits: why.is_none(), measured: Some(figures), why })
        }
        Err(Unmeasured::OutOfMemory(failure)) => {
            Ok(Attempt { value, fits: false, measured: None, why: Some(failure.message) })
        }
        Err(why) => Err(why.into()),
    }
}

impl Attempt {
    /// Describes the outcome.
    fn outcome(&self, budget: Option<u64>) -> String {
        let peak = self.measured.and_then(|measured| measured.peak_bytes).map(bytes);
        let of = budget.map_or_else(String::new, |budget| format!(" of {}", bytes(budget)));
        match (&self.why, peak) {
            (Some(why), _) => format!("too large: {why}"),
            (None, Some(peak)) => format!("fits, peak {peak}{of}"),
            (None, None) => "fits, peak unknown".to_owned(),
        }
    }
}

fn conclusion(knob: &str, rung: &str, search: &Search) -> String {
    match search.largest() {
        None => format!("{knob}: not even 1 fits on rung {rung}"),
        Some(largest) if search.is_unbounded() => {
            format!("{knob}: {largest} fits on rung {rung}, and larger values were not tried")
        }
        Some(largest) => format!("{knob}: {largest} is the largest value that fits on rung {rung}"),
    }
}
