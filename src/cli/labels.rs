//! `tag`, `note` and `archive`: the user's own words about runs.

use super::{Failure, Outcome, find_run, line, say};
use crate::store::labels::{LabelEdit, Labels, Tag, edit_labels};
use crate::untrusted::text;
use clap::Args;
use std::path::Path;

/// Arguments of `tag`.
#[derive(Debug, Args)]
pub struct TagArgs {
    /// The run's name, a prefix of it, or its folder
    #[arg(value_name = "RUN")]
    run: String,
    /// Tags to add (`+baseline`, or `baseline`) and to remove (`-baseline`); without any, prints the tags
    #[arg(value_name = "+TAG|-TAG", allow_hyphen_values = true)]
    changes: Vec<String>,
}

/// Arguments of `note`.
#[derive(Debug, Args)]
pub struct NoteArgs {
    /// The run's name, a prefix of it, or its folder
    #[arg(value_name = "RUN")]
    run: String,
    /// The note; "" removes it, and without one the note is printed
    #[arg(value_name = "TEXT")]
    note: Option<String>,
}

/// Arguments of `archive`.
#[derive(Debug, Args)]
pub struct ArchiveArgs {
    /// The runs' names, prefixes of them, or their folders
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<String>,
    /// Bring archived runs back into the lists
    #[arg(long)]
    undo: bool,
}

pub fn tag(args: &TagArgs, runs: &Path) -> Outcome {
    let run = find_run(runs, Some(&args.run))?;
    let before = Labels::read(&run)?;
    let labels = if args.changes.is_empty() {
        before
    } else {
        let (add, remove) = parse_changes(&args.changes)?;
        for missing in remove.iter().filter(|tag| !before.tags.contains(*tag)) {
            say(&format!("{} has no tag {missing}", run.name()));
        }
        edit_labels(&run, LabelEdit::ChangeTags { add, remove })?
    };
    line!("{}: {}", run.name(), list_tags(&labels));
    Ok(0)
}

/// Parses `+a -b c` into tags to add and to remove: a word without a sign adds.
fn parse_changes(words: &[String]) -> Result<(Vec<Tag>, Vec<Tag>), Failure> {
    let (mut add, mut remove) = (Vec::new(), Vec::new());
    for word in words {
        if word.starts_with("--") {
            let word = text::escape_line(word);
            return Err(Failure::new(
                2,
                format!("write the option {word} before the run: `downshift tag {word} … RUN +TAG`"),
            ));
        }
        let (list, name) = match word.strip_prefix('-') {
            Some(name) => (&mut remove, name),
            None => (&mut add, word.strip_prefix('+').unwrap_or(word)),
        };
        list.push(Tag::parse(name).map_err(|error| Failure::new(2, error.to_string()))?);
    }
    Ok((add, remove))
}

/// Returns the tags of a run as one line.
fn list_tags(labels: &Labels) -> String {
    if labels.tags.is_empty() {
        return "no tags".to_owned();
    }
    labels.tags.iter().map(Tag::as_str).collect::<Vec<_>>().join(" ")
}

pub fn note(args: &NoteArgs, runs: &Path) -> Outcome {
    let run = find_run(runs, Some(&args.run))?;
    let labels = match &args.note {
        Some(note) => edit_labels(&run, LabelEdit::SetNote(note.clone()))?,
        None => Labels::read(&run)?,
    };
    let note = if labels.note.is_empty() { "no note".into() } else { text::escape_lines(&labels.note) };
    line!("{}: {note}", run.name());
    Ok(0)
}

pub fn archive(args: &ArchiveArgs, runs: &Path) -> Outcome {
    let found = args.runs.iter().map(|name| find_run(runs, Some(name))).collect::<Result<Vec<_>, _>>()?;
    for run in found {
        edit_labels(&run, LabelEdit::Archive(!args.undo))?;
        if args.undo {
            line!("{}: back in the lists", run.name());
        } else {
            line!("{}: archived; `downshift runs --archived` lists it", run.name());
        }
    }
    Ok(0)
}
