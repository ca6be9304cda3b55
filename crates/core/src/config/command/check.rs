//! Errors in the sections of a command: placeholders, names, patterns, and sections that need each other.

use super::constants::check_constants;
use super::files::OWN_PREFIX;
use super::launch::{EPOCHS, find_knob};
use super::nodes::NodePlace;
use super::ranks::{MAX_RANKS, under_torchrun};
use super::reach::placeholders;
use super::template::{self, Placeholder, Template};
use super::{CommandSpec, SETUP_FILE, ScriptCheckpoints};
use crate::config::ladder::Resolved;
use crate::config::problem::Problem;
use crate::config::typed;
use crate::untrusted::glob::Glob;
use regex::RegexBuilder;
use serde_json::Value;
use std::collections::HashSet;
use std::path::{Component, Path};
use std::time::Duration;

/// Sections whose knobs a text may name.
pub(super) const KNOB_SECTIONS: [&str; 3] = ["training", "optimizer", "knobs"];
/// Maximum size of a compiled pattern for lines of output.
const PATTERN_BYTES: usize = 1 << 20;
/// Maximum number of patterns: each is tried on every line.
const MAX_PATTERNS: usize = 64;

/// Where a text is used, which decides the placeholders it may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Every start: arguments, variables, files.
    Start,
    /// Files that a start finds, which all nodes share.
    Written,
    /// A start from a checkpoint.
    Resume,
    /// Files of an attempt.
    Files,
    /// Files of all attempts and rungs.
    AllFiles,
}

impl Use {
    /// Returns why a placeholder has no value here, and the fix.
    fn refuses(self, place: &Placeholder) -> Option<(&'static str, &'static str)> {
        let resume = "only a resumed start has a checkpoint";
        let stable = "checkpoints are searched across attempts and rungs, and this changes between them";
        match (self, place) {
            (Self::Written | Self::Files | Self::AllFiles, Placeholder::Node) => {
                Some(("all nodes share this", "write {node} in an argument or a variable, or * in a file pattern"))
            }
            (Self::Written | Self::Files | Self::AllFiles, Placeholder::File(_)) => {
                Some(("a file has its place at a start only", "write it in an argument or a variable"))
            }
            (Self::Files | Self::AllFiles, Placeholder::Nodes | Placeholder::Head | Placeholder::Port) => {
                Some(("it changes between attempts", "write a name that stays the same"))
            }
            (
                Self::Start | Self::Written | Self::Files | Self::AllFiles,
                Placeholder::Checkpoint
                | Placeholder::CheckpointParent
                | Placeholder::CheckpointName
                | Placeholder::Step
                | Placeholder::StepsLeft
                | Placeholder::EpochsLeft,
            ) => Some((resume, "write it below `resume.arguments` or `resume.environment`")),
            (Self::AllFiles, Placeholder::AttemptDir | Placeholder::Rung) => {
                Some((stable, "write {run_dir}, or a path below the command's directory"))
            }
            _ => None,
        }
    }
}

/// A text with placeholders, and the path of its key.
struct Entry<'a> {
    path: String,
    text: &'a str,
    used: Use,
}

/// Returns every error in a command; `rungs` are its knobs, `full` first.
#[must_use]
pub fn check_command(spec: &CommandSpec, rungs: &[Resolved]) -> Vec<Problem> {
    let mut problems: Vec<Problem> = check_program(spec).into_iter().collect();
    problems.extend(check_files(spec));
    problems.extend(check_defaults(spec));
    problems.extend(rungs.first().iter().flat_map(|full| check_constants(spec, full, &placeholders(spec, full))));
    problems.extend(check_sections(spec));
    problems.extend(spec.checkpoints.iter().flat_map(check_checkpoints));
    problems.extend(check_line_patterns(&spec.metrics.patterns));
    problems.extend(check_file_patterns(spec));
    for text in texts(spec) {
        problems.extend(rungs.iter().find_map(|rung| check_text(&text, &rung.tree)));
        problems.extend(check_file_names(&text, spec));
    }
    let resumed = spec.resume.iter().flat_map(|resume| resume.environment.keys());
    problems.extend(resumed.filter_map(|name| check_variable("resume.environment", name)));
    let mut seen = HashSet::new();
    for rung in rungs {
        let found = check_rung(rung)
            .into_iter()
            .chain(check_ranks(spec, rungs, rung.rung.preset.ranks))
            .filter(|problem| seen.insert(problem.path.clone()));
        problems.extend(found.map(|problem| rung.blame(problem)));
    }
    problems
}

/// Returns every text of a command except its variables, which each rung may change.
fn texts<'a>(spec: &'a CommandSpec) -> Vec<Entry<'a>> {
    let mut texts = Vec::new();
    let mut list = |path: &str, listed: &'a [String], used| {
        let numbered = listed.iter().enumerate();
        texts.extend(numbered.map(|(index, text)| Entry { path: format!("{path}[{index}]"), text, used }));
    };
    list("command", &spec.command, Use::Start);
    list("metrics.files", &spec.metrics.files, Use::Files);
    if let Some(resume) = &spec.resume {
        list("resume.arguments", &resume.arguments, Use::Resume);
    }
    let variables = spec.resume.iter().flat_map(|resume| &resume.environment);
    texts.extend(variables.map(|(name, text)| Entry {
        path: format!("resume.environment.{name}"),
        text,
        used: Use::Resume,
    }));
    texts.extend(spec.defaults.keys().map(|text| Entry { path: format!("defaults.{text}"), text, used: Use::Start }));
    for (name, file) in &spec.files {
        let written = file.texts().into_iter();
        texts.extend(written.map(|(below, text)| Entry {
            path: format!("files.{name}{below}"),
            text,
            used: Use::Written,
        }));
    }
    let samples = spec.samples.iter();
    texts.extend(samples.map(|text| Entry { path: "samples.match".to_owned(), text, used: Use::Files }));
    let touched = spec.save.iter().filter_map(|save| save.touch.as_ref());
    texts.extend(touched.map(|text| Entry { path: "save.touch".to_owned(), text, used: Use::Files }));
    let checkpoints = spec.checkpoints.iter().map(|found| &found.pattern);
    texts.extend(checkpoints.map(|text| Entry { path: "checkpoints.match".to_owned(), text, used: Use::AllFiles }));
    texts
}

/// Returns the first error in a text: its braces, or a placeholder without a value.
fn check_text(entry: &Entry<'_>, knobs: &Value) -> Option<Problem> {
    let Entry { path, text, used } = entry;
    if text.contains('\0') {
        return Some(Problem::at(path, "it contains a NUL character", "remove it"));
    }
    let template = match Template::parse(text) {
        Ok(template) => template,
        Err(error) => return Some(Problem::at(path, error.to_string(), "write {{ and }} for single braces")),
    };
    template.placeholders().find_map(|place| {
        let refused = used.refuses(place).map(|(wrong, fix)| Problem::at(path, format!("`{place}`: {wrong}"), fix));
        refused.or_else(|| check_knob(path, place, knobs))
    })
}

/// Reports a placeholder that names no file of the command.
fn check_file_names(entry: &Entry<'_>, spec: &CommandSpec) -> Option<Problem> {
    let template = Template::parse(entry.text).ok()?;
    template.placeholders().find_map(|place| match place {
        Placeholder::File(name) if !spec.files.contains_key(name) => {
            let known: Vec<&str> = spec.files.keys().map(String::as_str).collect();
            let wrong = format!("`{place}` names no file below `files`");
            Some(Problem::at(&entry.path, wrong, typed::suggest(name, &known)))
        }
        _ => None,
    })
}

/// Reports a placeholder that names no knob of the file.
fn check_knob(path: &str, place: &Placeholder, knobs: &Value) -> Option<Problem> {
    let name = match place {
        Placeholder::Knob(name) => name,
        Placeholder::EpochsLeft if find_knob(knobs, EPOCHS).is_none_or(|epochs| !epochs.is_u64()) => {
            let wrong = format!("`{place}`: the number of epochs is unknown");
            return Some(Problem::at(path, wrong, format!("write it as `{EPOCHS}`")));
        }
        _ => return None,
    };
    let section = name.split('.').next().unwrap_or_default();
    if KNOB_SECTIONS.contains(&section) && find_knob(knobs, name).is_some() {
        return None;
    }
    let mut known: Vec<String> = template::built_in_names().map(str::to_owned).collect();
    for section in KNOB_SECTIONS {
        collect_paths(section, knobs.get(section), &mut known);
    }
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    let wrong = format!("`{place}` names no knob of this file");
    Some(Problem::at(path, wrong, typed::suggest(name, &known)))
}

/// Collects the dotted paths of a section and of everything below it.
pub(super) fn collect_paths(path: &str, value: Option<&Value>, found: &mut Vec<String>) {
    let Some(value) = value else { return };
    found.push(path.to_owned());
    for (key, below) in value.as_object().into_iter().flatten() {
        collect_paths(&format!("{path}.{key}"), Some(below), found);
    }
}

fn check_program(spec: &CommandSpec) -> Option<Problem> {
    let empty = spec.command.first().is_none_or(|program| program.trim().is_empty());
    let fix = "write the program and its arguments as a list, such as [python, train.py]";
    empty.then(|| Problem::at("command", "the command names no program", fix))
}

/// Reports arguments with a default that name no knob to compare with it.
fn check_defaults(spec: &CommandSpec) -> Vec<Problem> {
    let is_wrong = |text: &&String| Template::parse(text).is_ok_and(|template| template.only_knob().is_none());
    let fix = "write one knob, such as \"--lr={optimizer.lr}\": 1.0e-3, or move the argument to `command`";
    let problem = |text| Problem::of_key(format!("defaults.{text}"), "it names no knob, or several", fix);
    spec.defaults.keys().filter(is_wrong).map(problem).collect()
}

/// Reports files that would be written outside the attempt's directory, or replace a file of downshift in it.
fn check_files(spec: &CommandSpec) -> Vec<Problem> {
    let fix = "write a name such as rung.json; the script finds it as {attempt_dir}/rung.json";
    let problem = |name: &String, what| Problem::of_key(format!("files.{name}"), what, fix);
    let refused = spec.files.keys().filter_map(|name| match name.as_str() {
        _ if !is_below(name) => Some(problem(name, "this file would leave the attempt's directory")),
        _ if name.split('/').any(|part| part.starts_with(OWN_PREFIX)) => {
            Some(problem(name, "names that begin so are for downshift itself"))
        }
        SETUP_FILE => Some(problem(name, "downshift writes a file of this name into the attempt's directory")),
        _ => None,
    });
    refused.collect()
}

/// Reports whether a path stays below the folder it is joined to.
fn is_below(name: &str) -> bool {
    let plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    plain && !name.is_empty() && !name.ends_with('/') && !name.contains('\0')
}

/// Reports sections that need another section, which is missing.
fn check_sections(spec: &CommandSpec) -> Vec<Problem> {
    let mut problems = Vec::new();
    let fix = "write `checkpoints: { match: \"out/checkpoint-*\", complete: NAME }`, or remove this section";
    if spec.checkpoints.is_none() {
        if spec.resume.is_some() {
            problems.push(Problem::at("resume", "without `checkpoints` there is nothing to resume from", fix));
        }
        if spec.save.is_some() {
            problems.push(Problem::at(
                "save",
                "without `checkpoints`, downshift cannot see whether the script saved",
                fix,
            ));
        }
    }
    if let Some(save) = &spec.save {
        if save.signal.is_some() == save.touch.is_some() {
            let wrong = "the script is asked to save in one way: by a signal or by a file";
            problems.push(Problem::at("save", wrong, "write `signal: USR1`, or `touch: FILE`"));
        }
        let bounded = |time| (Duration::from_secs(1)..=Duration::from_hours(1)).contains(&time);
        if !save.within.duration().is_some_and(bounded) {
            problems.push(Problem::at("save.within", "must be a time of 1 s to 1 h", "write 60 s"));
        }
    }
    problems
}

fn check_checkpoints(checkpoints: &ScriptCheckpoints) -> Vec<Problem> {
    let mut problems = Vec::new();
    if checkpoints.complete.as_deref().is_some_and(|name| !is_below(name)) {
        let wrong = "must be a file inside the checkpoint's folder";
        problems.push(Problem::at("checkpoints.complete", wrong, "write its name, such as trainer_state.json"));
    }
    if checkpoints.keep_last == Some(0) {
        let fix = "write 1 or more, or remove it to keep all";
        problems.push(Problem::at("checkpoints.keep_last", "0 would delete every checkpoint", fix));
    }
    problems
}

/// Checks the patterns that read the lines of a command. Returns every mistake.
#[must_use]
pub fn check_line_patterns(patterns: &[String]) -> Vec<Problem> {
    let example = r"write a group for each metric, such as 'loss: (?P<loss>\S+)'";
    if patterns.len() > MAX_PATTERNS {
        let wrong = format!("{} patterns, at most {MAX_PATTERNS} are allowed", patterns.len());
        return vec![Problem::at("metrics.patterns", wrong, "join similar ones with |")];
    }
    let check = |(index, pattern): (usize, &String)| {
        let path = format!("metrics.patterns[{index}]");
        match RegexBuilder::new(pattern).size_limit(PATTERN_BYTES).build() {
            Ok(regex) if regex.capture_names().flatten().all(|name| name == "step") => {
                Some(Problem::at(path, "no named group reads a metric", example))
            }
            Ok(_) => None,
            Err(error) => {
                let reason = error.to_string();
                let reason = reason.lines().next_back().unwrap_or_default().trim_start_matches("error: ").to_owned();
                Some(Problem::at(path, format!("not a regular expression: {reason}"), example))
            }
        }
    };
    patterns.iter().enumerate().filter_map(check).collect()
}

fn check_file_patterns(spec: &CommandSpec) -> Vec<Problem> {
    let files = texts(spec).into_iter().filter(|text| matches!(text.used, Use::Files | Use::AllFiles));
    let wrong = files.filter_map(|text| {
        // Values that are filled in are escaped.
        let filled = Template::parse(text.text).ok()?.render(|_| "x".to_owned());
        let error = Glob::parse(&filled).err()?;
        Some(Problem::at(text.path, error.to_string(), "write a file pattern such as out/checkpoint-*"))
    });
    wrong.collect()
}

/// Returns the errors in one rung's names and variables.
fn check_rung(rung: &Resolved) -> Vec<Problem> {
    let preset = &rung.rung.preset;
    let mut problems: Vec<Problem> =
        preset.environment.keys().filter_map(|name| check_variable("environment", name)).collect();
    problems.extend(preset.environment.iter().filter_map(|(name, text)| {
        check_text(&Entry { path: format!("environment.{name}"), text, used: Use::Start }, &rung.tree)
    }));
    let mut paths = Vec::new();
    collect_paths("knobs", rung.tree.get("knobs"), &mut paths);
    let unnamed = preset.knobs.keys().filter(|name| !template::is_knob_name(name));
    let fix = "a name consists of letters, digits, `_` and `-`";
    problems.extend(unnamed.map(|name| Problem::of_key(format!("knobs.{name}"), "no placeholder can name this", fix)));
    problems
}

/// Reports a number of ranks that cannot be started, or a command that cannot be started in ranks.
fn check_ranks(spec: &CommandSpec, rungs: &[Resolved], ranks: Option<u32>) -> Option<Problem> {
    let full = rungs.first().and_then(|full| full.rung.preset.ranks);
    if full.is_some() != ranks.is_some() {
        let wrong = "a rung may change the number of ranks, but not whether torchrun starts them";
        return Some(Problem::at("ranks", wrong, "write `ranks: 1` in the body of the file for one rank"));
    }
    let ranks = ranks?;
    if !(1..=MAX_RANKS).contains(&ranks) {
        let fix = "write the number of cards that the script trains on";
        return Some(Problem::at("ranks", format!("must be 1 to {MAX_RANKS}"), fix));
    }
    let error = under_torchrun(&spec.command, ranks, &NodePlace::default()).err()?;
    Some(Problem::at("ranks", error.to_string(), error.fix()))
}

/// Reports a variable that cannot be set, or that belongs to downshift.
fn check_variable(section: &str, name: &str) -> Option<Problem> {
    let letters = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let (wrong, fix) =
        if name.is_empty() || !name.chars().all(letters) || name.starts_with(|c: char| c.is_ascii_digit()) {
            ("this is not a valid variable name", "write letters, digits and `_`, such as OMP_NUM_THREADS")
        } else if matches!(name, "CUDA_VISIBLE_DEVICES" | "CUDA_DEVICE_ORDER") {
            ("downshift sets this variable from --device", "remove it, and start with --device cuda:0 or cuda:0,1")
        } else if name.starts_with("DOWNSHIFT_") {
            ("names with DOWNSHIFT_ are for downshift itself", "choose another name")
        } else {
            return None;
        };
    Some(Problem::of_key(format!("{section}.{name}"), wrong, fix))
}
