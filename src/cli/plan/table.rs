//! Formats a plan as a table: rungs as columns, parts as rows.

use crate::cli::check::align;
use crate::config::command;
use crate::format::bytes;
use crate::protocol::plan::{Fit, LESS_MEMORY, LESS_THAN_ONE_SAMPLE, Measured, MemoryEstimate, Plan, RungPlan};

type Part = (&'static str, fn(&MemoryEstimate) -> u64);

const DEVICE: [Part; 6] = [
    ("weights", |part| part.weights),
    ("gradients", |part| part.gradients),
    ("optimizer", |part| part.optimizer),
    ("activations", |part| part.activations),
    ("logits", |part| part.logits),
    ("update", |part| part.update),
];
const OF_GPU: [Part; 2] = [("kernels, context", |part| part.overhead), ("free in pages", |part| part.pages)];
const OF_CPU: [Part; 1] = [("code, stacks", |part| part.overhead)];

const HOST: [Part; 6] = [
    ("RAM: data set", |part| part.data),
    ("RAM: loader", |part| part.loader),
    ("RAM loading", |part| part.ram.loading),
    ("RAM training", |part| part.ram.training),
    ("RAM evaluation", |part| part.ram.evaluation),
    ("RAM saving", |part| part.ram.saving),
];

/// Returns the lines of a plan.
pub fn lines(plan: &Plan, measured: bool) -> Vec<String> {
    let mut rows = vec![plan_row(format!("{} ({})", plan.run, plan.task), plan, |rung| rung.name.clone())];
    rows.push(plan_row("micro-batch".to_owned(), plan, |rung| match rung.micro_batch {
        0 => "–".to_owned(),
        batch => batch.to_string(),
    }));
    let is_command = plan.task == command::TASK;
    if is_command {
        rows.push(plan_row("verdict".to_owned(), plan, |rung| rung.verdict.to_string()));
    } else {
        rows.extend(estimated_rows(plan));
    }
    if measured || plan.rungs.iter().any(|rung| rung.measured.is_some()) {
        rows.extend(if is_command { observed_rows(plan) } else { measured_rows(plan) });
    }
    let mut lines = align(&rows);
    lines.push(String::new());
    lines.push(against(plan));
    if !is_command {
        lines.push(
            "The total is the peak of the largest phase. Each part is shown at its own peak, so they do not add up to it."
                .to_owned(),
        );
    }
    lines.extend(advice(plan));
    let unknown = plan.rungs.iter().filter(|_| !is_command).filter_map(|rung| Some((rung, rung.unknown.as_ref()?)));
    lines.extend(unknown.map(|(rung, why)| format!("rung {}: {why}", rung.name)));
    lines.extend(notes_on_measurements(plan, is_command));
    lines
}

fn notes_on_measurements(plan: &Plan, is_command: bool) -> Vec<String> {
    let failed = plan.rungs.iter().filter(|rung| rung.failed.is_some());
    let mut notes: Vec<String> =
        failed.map(|rung| format!("rung {} could not be measured; its message is above.", rung.name)).collect();
    let of = |is_so: fn(&Measured) -> bool| plan.rungs.iter().any(|rung| rung.measured.as_ref().is_some_and(is_so));
    if of(|seen| seen.of_card) {
        notes.push(
            "* the driver reports no memory per process: this is the whole card's, above its level before.".to_owned(),
        );
    }
    if is_command && of(|seen| seen.first_step_s.is_none() && seen.steps == 0 && !seen.all_phases) {
        notes.push("A command that reported no steps was measured until the time limit (--limit).".to_owned());
    }
    notes
}

/// Returns the rows of an estimate.
fn estimated_rows(plan: &Plan) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let part = |rung: &RungPlan, of: fn(&MemoryEstimate) -> u64| {
        rung.estimate.as_ref().map_or_else(unknown, |all| size(of(all)))
    };
    let of_device = if plan.gpu { &OF_GPU[..] } else { &OF_CPU };
    for (name, of) in DEVICE.iter().chain(of_device) {
        rows.push(plan_row((*name).to_owned(), plan, |rung| part(rung, *of)));
    }
    rows.push(plan_row(total_name(plan), plan, |rung| rung.total_bytes.map_or_else(unknown, size)));
    rows.push(plan_row("verdict".to_owned(), plan, |rung| rung.verdict.to_string()));
    rows.push(plan_row("largest micro-batch".to_owned(), plan, largest));
    for (name, of) in HOST {
        rows.push(plan_row(name.to_owned(), plan, |rung| part(rung, of)));
    }
    rows
}

/// Returns advice for rungs that do not fit.
fn advice(plan: &Plan) -> Option<String> {
    let too_large: Vec<&RungPlan> = plan.rungs.iter().filter(|rung| rung.verdict == Fit::DoesNotFit).collect();
    let names: Vec<&str> = too_large.iter().map(|rung| rung.name.as_str()).collect();
    let is_hopeless = |rung: &&RungPlan| rung.estimate.as_ref().is_some_and(|all| all.largest_micro_batch.is_none());
    let way_out = if too_large.iter().all(is_hopeless) { LESS_THAN_ONE_SAMPLE } else { LESS_MEMORY };
    let (rungs, verb) = if names.len() == 1 { ("rung", "does") } else { ("rungs", "do") };
    (!names.is_empty()).then(|| format!("{rungs} {} {verb} not fit: {way_out}.", names.join(", ")))
}

fn plan_row(name: String, plan: &Plan, cell: impl Fn(&RungPlan) -> String) -> Vec<String> {
    std::iter::once(name).chain(plan.rungs.iter().map(cell)).collect()
}

fn total_name(plan: &Plan) -> String {
    let what = if plan.gpu { "total VRAM" } else { "total" };
    let corrected = plan.rungs.iter().any(|rung| rung.measured.is_some());
    if corrected { format!("{what}, scaled by measurements") } else { what.to_owned() }
}

fn largest(rung: &RungPlan) -> String {
    match &rung.estimate {
        Some(estimate) => estimate.largest_micro_batch.map_or_else(|| "none".to_owned(), |batch| batch.to_string()),
        None => unknown(),
    }
}

/// Returns the rows of a task that can only be measured.
fn observed_rows(plan: &Plan) -> Vec<Vec<String>> {
    let of = |name: &str, what: &dyn Fn(&Measured) -> Option<String>| measured_row(plan, name, what);
    let vram =
        of("peak VRAM", &|seen| Some(format!("{}{}", size(seen.peak_bytes?), if seen.of_card { "*" } else { "" })));
    let mut rows: Vec<Vec<String>> = plan.gpu.then_some(vram).into_iter().collect();
    rows.push(of("peak RAM", &|seen| Some(seen.ram.training).filter(|bytes| *bytes > 0).map(size)));
    rows.push(of("first step after", &|seen| seen.first_step_s.map(|took| format!("{took:.1} s"))));
    rows.push(of("steps taken", &|seen| Some(seen.steps.to_string())));
    rows.extend(speed_rows(plan));
    rows
}

fn speed_rows(plan: &Plan) -> [Vec<String>; 3] {
    let of = |name: &str, what: &dyn Fn(&Measured) -> Option<String>| measured_row(plan, name, what);
    [
        of("steps/s", &|seen| seen.steps_per_s.map(|rate| format!("{rate:.3}"))),
        of("units/s", &|seen| seen.units_per_s.map(|rate| format!("{rate:.0}"))),
        of("loss", &|seen| seen.loss.map(|loss| format!("{loss:.4}"))),
    ]
}

fn measured_row(plan: &Plan, name: &str, what: &dyn Fn(&Measured) -> Option<String>) -> Vec<String> {
    plan_row(name.to_owned(), plan, |rung| rung.measured.as_ref().and_then(what).unwrap_or_else(unknown))
}

fn measured_rows(plan: &Plan) -> Vec<Vec<String>> {
    let of = |name: &str, what: &dyn Fn(&Measured) -> Option<String>| measured_row(plan, name, what);
    let predicted = |rung: &RungPlan| Some(rung.measured.as_ref()?.matching_estimate(rung.estimate.as_ref()?));
    let ratio = |rung: &RungPlan| {
        let (predicted, measured) = (predicted(rung)?, rung.measured?.peak_bytes?);
        Some(format!("{:+.1} %", (predicted as f64 / measured as f64 - 1.0) * 100.0))
    };
    let mut rows = vec![
        plan_row("predicted peak".to_owned(), plan, |rung| predicted(rung).map_or_else(unknown, size)),
        of("measured peak", &|seen| seen.peak_bytes.map(size)),
        plan_row("predicted / measured".to_owned(), plan, |rung| ratio(rung).unwrap_or_else(unknown)),
        of("baseline before", &|seen| seen.baseline_bytes.map(size)),
    ];
    rows.extend(speed_rows(plan));
    rows
}

fn against(plan: &Plan) -> String {
    let Some(card) = &plan.card else {
        return format!("{}: its memory size is unknown.", plan.device);
    };
    let free = card.free_bytes.map_or_else(String::new, |free| format!(", {} of it free", bytes(free)));
    let name = if card.name == plan.device { String::new() } else { format!("{} with ", card.name) };
    format!("On {}: {name}{}{free}.", plan.device, bytes(card.total_bytes))
}

fn size(value: u64) -> String {
    if value == 0 { "–".to_owned() } else { bytes(value) }
}

fn unknown() -> String {
    "?".to_owned()
}
