//! Writes a proposal as a run file, with comments for the user.

use super::argparse::format_number;
use super::proposal::{Checkpoints, Note, Proposal, ProposedCopy, Rung};
use crate::config::command::{SaveRequest, StepCount};
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;

/// Longest line of a list that stays on one line.
const WIDTH: usize = 110;

/// Where a proposal goes.
pub struct Heading<'a> {
    /// The name of the run.
    pub name: &'a str,
    /// The file, for the commands in the comments.
    pub file: &'a str,
    /// The command's working directory, as the file has it.
    pub directory: &'a Path,
}

/// Writes the run file.
pub fn write_run_file(proposal: &Proposal, heading: &Heading<'_>) -> String {
    let mut text = String::new();
    let Heading { name, file, directory } = heading;
    let _ = write!(
        text,
        "# Proposed by `downshift init` from the script's arguments. Read it, then:\n\
         #   downshift check {file}\n\
         #   downshift run {file}\n\n\
         name: {}\n\
         task: command\n",
        scalar(&Value::from(*name))
    );
    text.push_str("# One argument each, no shell. {…} is filled in from the knobs below; a rung can change them.\n");
    if proposal.command.iter().any(|word| is_lone_placeholder(word)) {
        text.push_str("# An argument that is a placeholder alone is left out where its knob is empty.\n");
    }
    let words: Vec<String> = proposal.command.iter().map(|word| scalar(&Value::from(word.as_str()))).collect();
    text.push_str(&list("command", &words));
    write_defaults(&mut text, &proposal.defaults);
    write_constants(&mut text, &proposal.constants);
    let _ = writeln!(text, "directory: {}", scalar(&Value::from(directory.display().to_string())));
    if proposal.batch_by_companion {
        text.push_str(
            "# `run.batches` takes both numbers from the rung; its own batch_size counts without downshift. No argument \
             passes\n# them on, so a variable does: a rung must change something that the script is given.\n\
             environment: { BATCH: \"{training.micro_batch} x {training.accumulation}\" }\n",
        );
    }
    write_copies(&mut text, &proposal.copies);
    write_knobs(&mut text, proposal);
    write_checkpoints(&mut text, proposal);
    write_reading(&mut text, proposal);
    text.push_str(
        "\n# The ladder: `set` changes the rung above, or the one named by `from`; `relieves` lists what a rung helps \
         against.\nladder:\n",
    );
    for rung in &proposal.rungs {
        text.push_str(&write_rung(rung));
    }
    if let Some(rung) = &proposal.offered {
        text.extend(write_rung(rung).lines().map(|line| format!("  # {}\n", line[2..].trim_start_matches("# "))));
    }
    text
}

fn is_lone_placeholder(word: &str) -> bool {
    word.starts_with("{knobs.") && word.ends_with('}')
}

fn list(key: &str, words: &[String]) -> String {
    let line = format!("{key}: [{}]\n", words.join(", "));
    if line.chars().count() <= WIDTH {
        return line;
    }
    let lines = words.iter().map(|word| format!("  - {word}"));
    [format!("{key}:")].into_iter().chain(lines).chain([String::new()]).collect::<Vec<_>>().join("\n")
}

/// Writes the knobs that are constants of the script.
fn write_constants(text: &mut String, constants: &[String]) {
    if !constants.is_empty() {
        let _ = write!(
            text,
            "# The script has these as constants. Where a rung changes one, downshift sets it in the process.\n{}",
            list("constants", constants)
        );
    }
}

fn write_defaults(text: &mut String, defaults: &[(String, Value)]) {
    if defaults.is_empty() {
        return;
    }
    text.push_str(
        "# The script has these by default. Each is passed only on a rung where its knob has another value.\ndefaults:\n",
    );
    for (argument, default) in defaults {
        let _ = writeln!(text, "  {}: {}", quoted(argument), scalar(default));
    }
}

/// Writes the copies of settings files.
fn write_copies(text: &mut String, copies: &[ProposedCopy]) {
    for (index, ProposedCopy { name, from, set, beside }) in copies.iter().enumerate() {
        let place = if *beside { "beside it, as it names files of its folder" } else { "in the folder of the attempt" };
        let section = if index == 0 { "files:\n" } else { "" };
        let _ = write!(
            text,
            "\n# Each start reads {from} and writes a copy with these values, {place}; `full` has the values of the file.\n\
             {section}  {}:\n    from: {}\n",
            scalar(&Value::from(name.as_str())),
            scalar(&Value::from(from.as_str()))
        );
        if *beside {
            text.push_str("    beside: true\n");
        }
        text.push_str("    set:\n");
        for (key, value) in set {
            let _ = writeln!(text, "      {}: {}", quoted(key), quoted(value));
        }
    }
}

/// Writes the patterns for lines of output, and how the script is asked to save.
fn write_reading(text: &mut String, proposal: &Proposal) {
    if let Some(SaveRequest { signal, touch, within }) = &proposal.save {
        let way = match (signal, touch) {
            (Some(signal), _) => format!("signal: {}", scalar(&serde_json::json!(signal))),
            (None, file) => format!("touch: {}", quoted(file.as_deref().unwrap_or_default())),
        };
        let _ = writeln!(text, "# Before a shift, a pause or a stop.\nsave: {{ {way}, within: {within} }}");
    }
    if !proposal.patterns.is_empty() {
        let patterns: Vec<String> = proposal.patterns.iter().map(|pattern| quoted(pattern)).collect();
        let _ = write!(
            text,
            "\n# Lines of the trainer that the general reader does not know.\nmetrics: {{ patterns: [{}] }}\n",
            patterns.join(", ")
        );
    }
}

/// Writes the knobs by section.
fn write_knobs(text: &mut String, proposal: &Proposal) {
    let comments = [
        ("training", "# effective batch = micro_batch × accumulation × number of processes"),
        ("optimizer", ""),
        ("knobs", "# the script's own arguments"),
    ];
    for (section, comment) in comments {
        let mut lines = String::new();
        for (path, value) in &proposal.knobs {
            if let Some(name) = path.strip_prefix(section).and_then(|rest| rest.strip_prefix('.')) {
                let _ = writeln!(lines, "  {name}: {}", scalar(value));
            }
        }
        if !lines.is_empty() {
            let space = if comment.is_empty() { "" } else { "  " };
            let _ = write!(text, "\n{section}:{space}{comment}\n{lines}");
        }
    }
}

fn write_checkpoints(text: &mut String, proposal: &Proposal) {
    if proposal.notes.contains(&Note::Attached) {
        text.push_str(
            "\n# Checkpoints are written and read by `downshift.attach` in the script, every 30 s to 10 min, or:\n\
             #   checkpoint: { every: 500 steps }\n",
        );
        return;
    }
    if let (None, Some(kept)) = (&proposal.checkpoints, proposal.kept()) {
        let _ = write!(
            text,
            "\n# downshift resumes {kept}, which saves as its arguments say and before a shift; more often with:\n\
             #   checkpoint: {{ every: 500 steps }}\n",
        );
        return;
    }
    let Some(Checkpoints { writer, pattern, complete, is_overwritten, resume, count }) = &proposal.checkpoints else {
        write_unresumable(text, proposal);
        return;
    };
    let pattern = quoted(pattern);
    let _ = match complete {
        Some(last) => write!(
            text,
            "\n# Checkpoints as {writer} writes them: complete once they contain the file that is written last.\n\
             checkpoints: {{ match: {pattern}, complete: {} }}\n",
            scalar(&Value::from(last.as_str()))
        ),
        None if !is_overwritten => {
            write!(text, "\n# Checkpoints as {writer} writes them.\ncheckpoints: {{ match: {pattern} }}\n")
        }
        None => write!(
            text,
            "\n# The checkpoint as {writer} writes it: one file, which each save overwrites, so the run keeps copies.\n\
             checkpoints: {{ match: {pattern}, copy: true, keep_last: 2 }}\n"
        ),
    };
    write_resume(text, resume.as_deref(), *count, example_argument(&proposal.command));
}

fn write_resume(text: &mut String, resume: Option<&[String]>, count: Option<StepCount>, example: &str) {
    let Some(arguments) = resume else {
        let _ = write!(
            text,
            "# No argument that takes a checkpoint was found. Give the script one, which loads model, optimizer and step, and \
             name it here,\n# so that a run that fails goes on:\n#   resume: {{ arguments: [\"{example}\"] }}\n",
        );
        text.push_str(FOUR_LINES);
        text.push_str(FROM_START);
        return;
    };
    let words: Vec<String> = arguments.iter().map(|word| quoted(word)).collect();
    let count = match count {
        Some(StepCount::Restarts) => {
            text.push_str(
                "# Its own count of steps, also in the names of its checkpoints, begins again after a resume: they are copied.\n",
            );
            ", count: restarts"
        }
        _ => "",
    };
    let _ = writeln!(text, "resume: {{ arguments: [{}]{count} }}", words.join(", "));
}

/// Returns an argument that hands a checkpoint over, in the form in which a command takes its arguments.
#[must_use]
pub fn example_argument(command: &[String]) -> &'static str {
    let is_pair = |word: &&String| !word.starts_with('-') && word.contains('=');
    let takes_pairs =
        command.iter().skip(1).any(|word| is_pair(&word)) && !command.iter().any(|word| word.starts_with("--"));
    if takes_pairs { "resume={checkpoint}" } else { "--resume={checkpoint}" }
}

/// The loop that resumes whatever a script saves.
const FOUR_LINES: &str = "# Or, in a plain PyTorch loop, change four lines. Then it resumes exactly; remove this file, and\n\
     # `downshift init` writes another, which also halves the batch of `run.batches` when memory runs out:\n\
     #   import downshift_cockpit as downshift\n\
     #   run = downshift.attach(model, optimizer)\n\
     #   for batch in run.batches(dataset, epochs=3, batch_size=32):\n\
     #       run.step(loss_function(model, batch))    # backward, optimizer step, save\n";
/// The way for a script that may lose its steps.
const FROM_START: &str =
    "# Or let it begin again from its first step, which loses all before:\n#   restart: from_start\n";

/// Says what makes a script resume that saves nothing to resume from.
fn write_unresumable(text: &mut String, proposal: &Proposal) {
    let has_weights = proposal.notes.iter().any(|note| matches!(note, Note::OnlyWeights(_)));
    text.push_str(if has_weights {
        "\n# The script saves weights alone, from which no training goes on: a run that fails cannot continue. To make it, let the script\n\
         # save model, optimizer and step, and load them by an argument. Then name both here:\n"
    } else {
        "\n# No checkpoints of the script were found: a run that fails cannot continue. If the script saves any, a file or a folder each,\n\
         # name them and the argument that loads one:\n"
    });
    let _ = write!(
        text,
        "#   checkpoints: {{ match: \"out/step_*.pt\" }}\n\
         #   checkpoints: {{ match: \"out/checkpoint-*\", complete: FILE-WRITTEN-LAST-IN-IT }}\n\
         #   resume: {{ arguments: [\"{}\"] }}\n",
        example_argument(&proposal.command)
    );
    text.push_str(FOUR_LINES);
    text.push_str(FROM_START);
}

fn write_rung(rung: &Rung) -> String {
    let from = if rung.from_full { "    from: full\n" } else { "" };
    let settings: Vec<String> = rung.set.iter().map(|(path, value)| format!("{path}: {}", scalar(value))).collect();
    let mut set = format!("    set: {{ {} }}\n", settings.join(", "));
    if set.chars().count() > WIDTH {
        set = settings.iter().fold("    set:\n".to_owned(), |lines, setting| format!("{lines}      {setting}\n"));
    }
    let relieves: Vec<String> = rung.relieves.iter().map(ToString::to_string).collect();
    let (why, name, relieves) = (&rung.why, &rung.name, relieves.join(", "));
    format!("  # {why}\n  - name: {name}\n    relieves: [{relieves}]\n{from}{set}")
}

/// Writes a value as YAML, quoted where it would read as something else.
fn scalar(value: &Value) -> String {
    match value {
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (None, Some(number)) => format_number(number),
            _ => number.to_string(),
        },
        Value::String(text) if is_plain(text) => text.clone(),
        Value::String(text) => quoted(text),
        other => other.to_string(),
    }
}

/// Reports whether a text means itself without quotes, also inside brackets.
fn is_plain(text: &str) -> bool {
    let first = text.chars().next();
    let starts = first.is_some_and(|letter| letter.is_ascii_alphabetic() || "./_".contains(letter))
        || text.strip_prefix("--").is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_alphabetic()));
    let word = text.to_ascii_lowercase();
    let reads_otherwise = ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "."].contains(&word.as_str());
    starts
        && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_./=".contains(letter))
        && (!reads_otherwise || text == ".")
        && text.parse::<f64>().is_err()
}

/// Quotes a text. JSON's escapes are YAML's too.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
