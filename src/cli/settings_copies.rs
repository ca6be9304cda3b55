//! Sentences about the copies of settings files that a command is started with.

pub mod diff;

use super::Failure;
use crate::config::command::files::{changed_on_full, check_copies};
use crate::config::run::Run;
use crate::config::settings_file::Replaced;
use crate::untrusted::text;
use std::path::Path;

/// Exit code of a run file that cannot run.
const CONFIG: u8 = 13;

/// Says that rung `full` sets another value than the file.
pub fn describe_change(file: &Path, Replaced { key, from, to }: &Replaced) -> String {
    let sentence = format!("`full` sets {key} to {to}, and {} says {from}", file.display());
    text::escape_line(&sentence).into_owned()
}

/// Returns the notes about the copies of a run.
pub fn notes(run: &Run) -> Vec<String> {
    changed_on_full(run).iter().map(|(file, changed)| describe_change(file, changed)).collect()
}

/// Refuses a run with a copy that cannot be made.
pub fn refuse(run: &Run) -> Result<(), Failure> {
    let problems: Vec<String> = check_copies(run).iter().map(ToString::to_string).collect();
    if problems.is_empty() { Ok(()) } else { Err(Failure::new(CONFIG, problems.join("\n"))) }
}
