//! The run of a command that was typed instead of a run file: `downshift run -- python train.py`.

use super::init::{script, study};
use super::{Failure, profiles, say};
use crate::config::command;
use crate::config::run::{AsWritten, Run, Source};
use crate::init::proposal::{Checkpoints, Note, Proposal};
use serde_json::{Map, Value, json};
use std::path::Path;

/// Returns the run of a typed command, with further sections of a run file.
pub fn typed_run(
    words: &[String],
    directory: &Path,
    sections: Map<String, Value>,
    overrides: &[(String, String)],
) -> Result<Run, Failure> {
    let text = command::run_file(words, sections);
    let source = Source { file: "command line", text: &text, base: directory, overrides };
    Run::read(&source, &AsWritten).map_err(Failure::config)
}

/// Returns the sections of a run file that the profile of a typed command gives: its reading, its checkpoints and its signal.
pub fn sections_of_profile(words: &[String], folder: &Path) -> Result<Map<String, Value>, Failure> {
    let (profiles, mut sections) = (profiles::load()?, Map::new());
    let Ok(found) = script::find(words, folder) else { return Ok(sections) };
    let Ok(mut declared) = found.declared() else { return Ok(sections) };
    let Some(known) = profiles::recognise(&profiles, &found, &declared) else { return Ok(sections) };
    let Proposal { patterns, checkpoints, save, notes, .. } =
        study(&found, &mut declared, Some(known.profile), folder)?;
    say(&known.to_string());
    for note in notes.iter().filter(|note| matches!(note, Note::NotSaved(_) | Note::NoOutputDirectory | Note::NoResume))
    {
        say(&format!("note: {note}"));
    }
    if !patterns.is_empty() {
        sections.insert("metrics".to_owned(), json!({ "patterns": patterns }));
    }
    let Some(Checkpoints { pattern, complete, is_overwritten, resume, .. }) = checkpoints else { return Ok(sections) };
    let kept = if is_overwritten { json!({ "copy": true, "keep_last": 2 }) } else { json!({}) };
    let mut form = json!({ "match": &pattern });
    if let (Value::Object(form), Value::Object(kept)) = (&mut form, kept) {
        form.extend(complete.map(|last| ("complete".to_owned(), last.into())));
        form.extend(kept);
    }
    sections.insert("checkpoints".to_owned(), form);
    // Where the folder is not known for certain, a checkpoint may be one of another training beside this one.
    let is_certain = pattern.rsplit_once('/').is_none_or(|(folder, _)| !folder.contains('*'));
    let resume = resume.filter(|_| is_certain);
    sections.extend(resume.map(|arguments| ("resume".to_owned(), json!({ "arguments": arguments }))));
    sections.extend(save.map(|save| ("save".to_owned(), json!(save))));
    Ok(sections)
}
