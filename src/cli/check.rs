//! `check`: prints every rung of a run file side by side.

use super::Outcome;
use super::climb_plan;
use super::first_checkpoint;
use super::kept_script::KeptScript;
use super::line;
use super::output::terminal_width;
use super::patience::{READING_DATA, explain_wait};
use super::preflight::{Preflight, Start, find_missing_script};
use super::profiles;
use super::run::{self, Overrides};
use super::settings_copies;
use super::undeclared::undeclared_arguments;
use crate::cockpit::ui;
use crate::config::check::batch_advice;
use crate::config::climb;
use crate::config::command::ranks::Ranks;
use crate::config::command::{CommandSpec, first_launch};
use crate::config::knobs::list_troubles;
use crate::config::ladder::Rung;
use crate::config::mildness;
use crate::config::numerics;
use crate::config::quality::Quality;
use crate::config::run::Run;
use crate::config::trust::Grants;
use crate::config::units::Every;
use crate::format::counted;
use crate::init::kept::Kept;
use crate::outlook::capability::capability_of;
use crate::protocol::capability::Level;
use crate::recipe::class::{self, Change};
use crate::recipe::interval::{FIRST_S, LONGEST_S, SHORTEST_S};
use crate::store::resume_proof::Proofs;
use crate::trainer::program::settle_program;
use crate::trainer::{Prospect, Trainer};
use crate::untrusted::text;
use clap::Args;
use serde_json::Value;
use std::path::{Path, PathBuf};
use unicode_width::UnicodeWidthStr;

/// Arguments of `check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// A run file, or one that ships inside: digits, pictures, text, lora, finetune, stable, sizes,
    /// cifar10, search, command
    #[arg(value_name = "CONFIG")]
    config: PathBuf,
    #[command(flatten)]
    overrides: Overrides,
    /// Run the checks `run` would make before a start, here and now: config, device, data, tokenizer,
    /// disk, other runs
    #[arg(long)]
    preflight: bool,
}

/// Columns of a variable's value in the table.
const VARIABLE: usize = 16;
/// Columns of a knob's path in the table.
const PATH: usize = 40;

pub fn check(args: &CheckArgs, runs: &Path, trainer: &dyn Trainer) -> Outcome {
    let Overrides { set, device } = &args.overrides;
    run::note_same_name(&args.config);
    if args.preflight {
        let loaded = run::load_run_file(Some(&args.config), set, device, trainer);
        if let Ok(run) = &loaded {
            climb_plan::warn(run, Some(&args.config));
        }
        let (shares, can_wait) = (false, true);
        let start = Start { device, runs, trainer, approved: false, nodes: 1, shares, can_wait };
        return Ok(Preflight::of(loaded, start).report());
    }
    let run = run::load_run_file(Some(&args.config), set, device, trainer)?;
    let table = format_table(&run);
    let widest = table.iter().map(|row| row.width()).max().unwrap_or(0);
    let rows =
        if terminal_width(&std::io::stdout()).is_some_and(|width| widest > width) { format_list(&run) } else { table };
    for row in rows {
        line!("{row}");
    }
    if let Some(refusal) = climb_plan::refuse(&run, Some(&args.config)) {
        line!("\nnote: {refusal}");
    } else if !run.plan.is_empty() {
        let names: Vec<&str> = run.rungs.iter().map(|rung| rung.name.as_str()).collect();
        line!("\nclimb plan: {}", climb::describe_plan(&run.plan, &names));
    }
    if let Some(command) = &run.command {
        describe_command(&run, command);
        for note in undeclared_arguments(command).into_iter().chain(first_checkpoint::note(&run, run.first_rung())) {
            line!("\nnote: {note}");
        }
        describe_trial(&run);
        describe_ranks(&run);
    }
    for row in settings_copies::diff::describe(&run) {
        line!("{row}");
    }
    for note in settings_copies::notes(&run) {
        line!("\nnote: {note}");
    }
    if let Some(quality) = &run.quality {
        line!("\n{}", describe_quality(quality));
    }
    print_advice(&run.rungs);
    let grants = Grants::from_run(&run);
    if !grants.is_empty() {
        line!("\nrunning it needs your approval for:\n{}", grants.lines().join("\n"));
    }
    settings_copies::refuse(&run)?;
    let examined = |prospect: Prospect| trainer.examine(&run).map(|()| prospect);
    match explain_wait(READING_DATA, || trainer.consider(&run, device)).and_then(examined) {
        Ok(prospect) => {
            line!("");
            for note in &prospect.notes {
                line!("note: {note}");
            }
            line!("{}", conclude(&run, &prospect));
            Ok(0)
        }
        Err(refusal) => Err(super::Failure::of(refusal)),
    }
}

/// Prints what the values of the rungs make advisable: batch sizes, numerics, rungs that are no safer.
fn print_advice(rungs: &[Rung]) {
    let full = &rungs[0].preset;
    for rung in &rungs[1..] {
        if let Some(advice) = batch_advice(full, &rung.preset) {
            line!("\nnote: rung {}: {advice}", rung.name);
        }
    }
    if let Some(advice) = numerics::advise(rungs) {
        line!("\nnote: {advice}");
    }
    for rung in mildness::find_no_safer(rungs) {
        line!("\nwarning: {rung}");
    }
}

/// Says whether the run can start: on which device, and with how many samples.
fn conclude(run: &Run, prospect: &Prospect) -> String {
    if let Some(command) = &run.command {
        return match find_missing_script(command) {
            Some(missing) => format!("{} is valid, but cannot start here: {missing}", run.name),
            None => format!("{} is valid; --preflight also looks up its program.", run.name),
        };
    }
    let samples = prospect
        .samples
        .map_or_else(String::new, |(train, held_out)| format!(", {train} training and {held_out} validation samples"));
    match &prospect.missing {
        Some(why) => {
            let note = format!("note: {} is not available, so it was not checked: {why}", prospect.device);
            format!("{note}\n{} is valid{samples}.", run.name)
        }
        None => format!("{} can run on {}{samples}.", run.name, prospect.device),
    }
}

/// Prints how much the keeper can do for a command, and what its script could miss.
fn describe_command(run: &Run, command: &CommandSpec) {
    if let Some(profile) = profiles::describe(run) {
        line!("\n{profile}");
    }
    let level = capability_of(Some(command)).level().unwrap_or(Level::Command);
    if let Some(KeptScript { name, kept, .. }) = KeptScript::of(command) {
        let script = text::escape_line(&name);
        line!("\nresume: {}", Level::Companion.meaning());
        match kept {
            Kept::Loop => line!("{script} calls downshift.attach, as its source says; the start of a run confirms it"),
            Kept::HuggingFace | Kept::Lightning | Kept::Accelerate => line!(
                "{script} trains with {kept}, as its source says, which downshift resumes with no line changed; the start of a run \
                 confirms it"
            ),
        }
        match run.preset_tree(0).pointer("/checkpoint/every") {
            Some(_) => line!("it saves every {}", run.rungs[0].preset.checkpoint.every),
            None if kept == Kept::Loop => line!(
                "it saves after {FIRST_S} s, then every {SHORTEST_S} s to {} min, less often where a save takes long; \
                 `checkpoint: {{ every: 500 steps }}` sets a fixed interval",
                LONGEST_S / 60.0
            ),
            None => line!(
                "it saves when the script does, and before a shift; `checkpoint: {{ every: 500 steps }}` adds saves"
            ),
        }
        return note_lost_files(command);
    }
    line!("\nresume: {}", level.meaning());
    if level == Level::Command {
        line!(
            "it would continue exactly with Hugging Face's Trainer, Lightning or accelerate, or with four more lines in its PyTorch loop; \
             `downshift init` writes them into a new run file"
        );
    }
    note_lost_files(command);
}

/// Prints the outcome of the last trial of exactly this command.
fn describe_trial(run: &Run) {
    let settled = settle_program(run.clone()).ok();
    let proof = settled.and_then(|run| Proofs::of_user().find(run.command.as_ref()?));
    if let Some(proof) = proof {
        line!("{}", text::escape_line(&proof.to_string()));
    }
}

/// Notes that no argument names the folder of the files that a command gets.
fn note_lost_files(command: &CommandSpec) {
    let mut texts = command.command.iter().chain(command.resume.iter().flat_map(|resume| &resume.arguments));
    if !command.files.is_empty() && !texts.any(|text| text.contains("{attempt_dir}") || text.contains("{files.")) {
        line!(
            "\nnote: no argument names {{attempt_dir}}, the folder of `files`; the script has to know where they are"
        );
    }
}

/// Describes what is measured beside the training, and when.
fn describe_quality(quality: &Quality) -> String {
    let command =
        quality.command.first().map(|program| format!("the numbers that {} prints", text::escape_line(program)));
    let all: Vec<String> = quality.metrics.iter().cloned().chain(command).collect();
    let when = match quality.every {
        Every::Never => "at the end".to_owned(),
        every => format!("every {every} and at the end"),
    };
    format!("quality, {when}, beside the training for at most {}: {}", quality.timeout, all.join(", "))
}

/// Prints what the ranks of a command make of its batch.
fn describe_ranks(run: &Run) {
    let tree = run.preset_tree(0);
    let Some(ranks) = first_launch(run, 0, 1).and_then(|launch| Ranks::of(&launch, |_| None)) else { return };
    let count = ranks.world().map_or("one rank for each card".to_owned(), |world| counted(u64::from(world), "rank"));
    match class::effective_batch(&tree).filter(|_| run.rungs[0].preset.ranks.is_some()) {
        Some(batch) => line!("{count}: effective batch = micro_batch × accumulation × ranks = {batch} samples"),
        None => line!("{count}, each with its own micro-batches"),
    }
}

/// Formats a table with rungs as columns and knobs as rows; a value equal to that of `full` is a dot.
fn format_table(run: &Run) -> Vec<String> {
    let full = run.preset_tree(0);
    let mut knobs = Vec::new();
    leaves(String::new(), &full, &mut knobs);
    let changes: Vec<Vec<Change>> =
        (1..run.rungs.len()).map(|rung| class::compare_presets(&full, &run.preset_tree(rung))).collect();
    for change in changes.iter().flatten().filter(|change| change.from.is_null()) {
        if !knobs.iter().any(|(path, _)| *path == change.path) {
            knobs.push((change.path.clone(), "–".to_owned()));
        }
    }
    let mut rows = vec![heading(run)];
    for (path, value) in knobs {
        // A variable is shown in full where the run is approved.
        let width = if path.starts_with("environment.") { VARIABLE } else { usize::MAX };
        let cells = changes.iter().map(|changes| match changes.iter().find(|change| change.path == path) {
            Some(change) => format!("{}  {}", ui::cut(&plain(&change.to), width), change.class),
            None => "·".to_owned(),
        });
        let cells: Vec<String> = [ui::cut(&path, PATH), ui::cut(&value, width)].into_iter().chain(cells).collect();
        rows.push(cells);
    }
    let worst = changes.iter().map(|changes| {
        let class = class::worst_class(changes);
        format!("{class} {}", class.meaning())
    });
    rows.push(["class".to_owned(), String::new()].into_iter().chain(worst).collect());
    let relief = run.rungs[1..].iter().map(|rung| list_troubles(&rung.relieves));
    rows.push(["helps against".to_owned(), String::new()].into_iter().chain(relief).collect());
    align(&rows)
}

/// Formats the rungs one below the other, for a terminal that is too narrow for the table.
fn format_list(run: &Run) -> Vec<String> {
    let full = run.preset_tree(0);
    let mut knobs = Vec::new();
    leaves(String::new(), &full, &mut knobs);
    let mut rows = vec![format!("{} ({})", run.name, run.task), format!("\n0 {}", run.rungs[0].name)];
    let indent = |cells: Vec<Vec<String>>| align(&cells).into_iter().map(|row| format!("  {row}"));
    rows.extend(indent(knobs.into_iter().map(|(path, value)| vec![path, value]).collect()));
    for (number, rung) in run.rungs.iter().enumerate().skip(1) {
        let changes = class::compare_presets(&full, &run.preset_tree(number));
        let worst = class::worst_class(&changes);
        let relieves = list_troubles(&rung.relieves);
        let relieves = if relieves.is_empty() { relieves } else { format!(", helps against {relieves}") };
        rows.push(format!("\n{number} {}: class {worst} {}{relieves}", rung.name, worst.meaning()));
        let cells = changes.iter().map(|change| {
            vec![
                change.path.clone(),
                format!("{} → {}", plain(&change.from), plain(&change.to)),
                change.class.to_string(),
            ]
        });
        rows.extend(indent(cells.collect()));
    }
    rows
}

fn heading(run: &Run) -> Vec<String> {
    let names = run.rungs.iter().enumerate().map(|(number, rung)| format!("{number} {}", rung.name));
    [format!("{} ({})", run.name, run.task)].into_iter().chain(names).collect()
}

/// Collects every knob of a tree: its path and its value.
pub fn leaves(path: String, value: &Value, found: &mut Vec<(String, String)>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let key = text::escape_line(key);
                leaves(if path.is_empty() { key.into_owned() } else { format!("{path}.{key}") }, value, found);
            }
        }
        other => found.push((path, plain(other))),
    }
}

/// Formats a value without quotes; null as a dash.
pub fn plain(value: &Value) -> String {
    match value {
        Value::Null => "–".to_owned(),
        Value::String(text) => text::escape_line(text).into_owned(),
        other => other.to_string(),
    }
}

/// Aligns cells in columns.
pub fn align(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.width()).max().unwrap_or(0))
        .collect();
    rows.iter()
        .map(|row| {
            let cells =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell}{}", " ".repeat(width - cell.width())));
            cells.collect::<Vec<_>>().join("   ").trim_end().to_owned()
        })
        .collect()
}
