//! Whether the script of a command is where the command says.

use crate::config::command::CommandSpec;
use crate::config::command::invocation::{Target, find_script, is_python, is_script};
use crate::config::typed::nearest;
use crate::untrusted::text;
use std::fs;
use std::path::Path;

/// Entries of a folder among which a mistyped script is looked for.
const MOST_SCRIPTS: usize = 1_000;

/// Returns a sentence about a directory or a Python script that is missing: its interpreter would start, and end at once.
pub fn find_missing_script(command: &CommandSpec) -> Option<String> {
    if !command.directory.is_dir() {
        return Some(format!("{} is not a directory", text::path(&command.directory)));
    }
    missing_script(&command.command, &command.directory)
}

/// Returns a sentence about the missing Python script of a command that starts in a folder.
pub fn missing_script(command: &[String], directory: &Path) -> Option<String> {
    // A launcher may change the folder.
    let starts_python = command.first().is_some_and(|word| is_python(word.rsplit('/').next().unwrap_or(word)));
    let Target::Script(script) = find_script(command)?.target else { return None };
    // One that `files:` writes does not exist yet.
    let is_known = starts_python && is_script(&script) && !script.contains('{');
    if !is_known || directory.join(&script).is_file() {
        return None;
    }
    let near = nearest_script(directory, &script);
    let near = near.map_or_else(String::new, |near| format!("; did you mean {}?", text::escape_line(&near)));
    Some(format!("{} is missing in {}{near}", text::escape_line(&script), text::path(directory)))
}

/// Returns the script in a folder whose name was probably meant.
fn nearest_script(folder: &Path, script: &str) -> Option<String> {
    let names = fs::read_dir(folder)
        .ok()?
        .flatten()
        .take(MOST_SCRIPTS)
        .filter_map(|entry| entry.file_name().into_string().ok());
    let names: Vec<String> = names.filter(|name| is_script(name)).collect();
    nearest(script, &names.iter().map(String::as_str).collect::<Vec<_>>()).map(str::to_owned)
}
