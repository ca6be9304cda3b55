//! Checks what a shift to each rung would meet before its first step: arguments, files and shapes.

use crate::cli::undeclared::undeclared_words;
use crate::config::command::{CommandLaunch, first_launch};
use crate::config::run::Run;
use crate::diagnose::doctor::Check;
use crate::untrusted::text;
use std::collections::BTreeMap;
use std::path::Path;

const NAME: &str = "rungs";
/// Endings of files that a program reads its configuration from.
const CONFIGURATIONS: [&str; 5] = ["yaml", "yml", "toml", "cfg", "ini"];
/// Names of arguments that change the shape of a model, as the usual scripts spell them.
const SHAPES: [&str; 18] = [
    "depth",
    "d_ff",
    "d_model",
    "dim",
    "embed_dim",
    "hidden_dim",
    "hidden_size",
    "intermediate_size",
    "layers",
    "n_embd",
    "n_head",
    "n_heads",
    "n_layer",
    "n_layers",
    "num_heads",
    "num_hidden_layers",
    "num_layers",
    "vocab_size",
];

/// Checks each rung of a command against the first one.
pub fn checks(run: &Run) -> Vec<Check> {
    let Some(full) = first_launch(run, 0, 1) else { return Vec::new() };
    let of_rung =
        |rung: usize| first_launch(run, rung, 1).map(|launch| check_rung(&run.rungs[rung].name, &full, &launch));
    (1..run.rungs.len()).filter_map(of_rung).flatten().collect()
}

fn check_rung(name: &str, full: &CommandLaunch, launch: &CommandLaunch) -> Vec<Check> {
    let warn =
        |what: String, fix: &'static str| Check::warn(NAME, format!("`{}`: {what}", text::escape_line(name)), fix);
    let (before, now) = (arguments_of(full), arguments_of(launch));
    let known = undeclared_words(&full.argv, &full.directory);
    let undeclared = undeclared_words(&launch.argv, &launch.directory).into_iter().filter(|it| !known.contains(it));
    let mut found: Vec<Check> =
        undeclared.map(|what| warn(what, "correct it, unless the script takes it anyway")).collect();
    for (argument, value) in now.iter().filter(|(argument, value)| before.get(*argument) != Some(*value)) {
        let old = before.get(argument).map(String::as_str);
        let shown = (text::escape_line(argument), text::escape_line(value));
        if is_missing_file(&launch.directory, old, value) {
            let what = format!("{} does not exist, which {} names", shown.1, shown.0);
            found.push(warn(what, "write the file, or correct its name in the ladder"));
        } else if changes_shape(argument, old, value) {
            let what =
                format!("{} becomes {}, so a checkpoint of another rung may not fit its model", shown.0, shown.1);
            found.push(warn(what, "keep the shape of the model on every rung that a run shifts to"));
        }
    }
    found
}

/// Returns the arguments and variables of a start by name. One without a name has its place among those.
fn arguments_of(launch: &CommandLaunch) -> BTreeMap<String, String> {
    let variables = launch.environment.iter();
    let mut named: BTreeMap<String, String> =
        variables.filter_map(|(name, value)| Some((name.clone(), value.clone().into_string().ok()?))).collect();
    let mut words = launch.argv.iter().peekable();
    let mut unnamed = 0;
    while let Some(word) = words.next() {
        let follows = words.peek().filter(|next| !next.starts_with('-')).copied();
        match (word.split_once('='), follows) {
            (Some((name, value)), _) => drop(named.insert(name.to_owned(), value.to_owned())),
            (None, Some(value)) if word.starts_with("--") => {
                named.insert(word.clone(), value.clone());
                words.next();
            }
            (None, _) => {
                unnamed += 1;
                named.insert(format!("argument {unnamed}"), word.clone());
            }
        }
    }
    named
}

/// Reports whether a value names a file to read that is missing: that of the first rung is there, or it ends like a
/// configuration.
fn is_missing_file(directory: &Path, before: Option<&str>, value: &str) -> bool {
    let is_file = |name: &str| !name.is_empty() && directory.join(name).is_file();
    let ending = Path::new(value).extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    let is_read = before.is_some_and(is_file) && !ending.is_empty() || CONFIGURATIONS.contains(&ending);
    is_read && !directory.join(value).exists()
}

/// Reports whether an argument changes the shape of the model.
fn changes_shape(argument: &str, before: Option<&str>, value: &str) -> bool {
    let last = argument.trim_start_matches('-').rsplit('.').next().unwrap_or_default();
    let name = last.replace('-', "_").to_ascii_lowercase();
    let is_number = |text: &str| text.parse::<u64>().is_ok();
    SHAPES.contains(&name.as_str()) && before.is_some_and(is_number) && is_number(value)
}
