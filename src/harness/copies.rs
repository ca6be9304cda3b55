//! The files that are written before a start. A copy of a settings file is recorded with the file as it was, so that a later
//! attempt can tell what changed in between.

use super::launch::LaunchError;
use crate::config::command::AttemptContext;
use crate::config::command::files::{FileContent, LaunchFile, OWN_PREFIX};
use crate::config::settings_file::{Format, SettingsFile};
use crate::store::permissions::create_folder;
use crate::store::run_dir::write_unsynced;
use crate::untrusted::file::{Limit, read_text};
use crate::untrusted::text;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Changed keys that a note lists.
const LISTED: usize = 8;

/// The copies that lie outside the run directory; they are removed when the command has ended.
#[derive(Debug, Default)]
pub(super) struct Copies(Vec<PathBuf>);

impl Drop for Copies {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

/// A settings file as an attempt found it.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    from: PathBuf,
    text: String,
}

/// Writes the files of a launch, and notes what changed in settings files since an earlier attempt. In the run directory, a link
/// in the place of a file is replaced, not followed.
///
/// # Errors
/// Returns an error that names the file.
pub(super) fn write_files(
    files: &[LaunchFile],
    context: &AttemptContext,
    notes: &mut Vec<String>,
) -> Result<Copies, LaunchError> {
    let mut copies = Copies::default();
    for LaunchFile { path, content } in files {
        let wrong = |source| LaunchError::File { path: path.clone(), source };
        let original = content.read().map_err(Box::new)?;
        let written = match (content, &original) {
            (FileContent::Text(text), _) => text,
            (FileContent::Copy { .. }, Some(original)) => &original.patched.text,
            (FileContent::Copy { .. }, None) => continue,
        };
        if let FileContent::Copy { beside: true, .. } = content {
            copies.0.push(path.clone());
        }
        write_file(path, written, context).map_err(wrong)?;
        if let (FileContent::Copy { from, .. }, Some(original)) = (content, original) {
            let record = Record { from: from.clone(), text: original.text };
            notes.extend(note_change(path, &record, context));
            let stored = serde_json::to_string(&record).map_err(io::Error::from).map_err(wrong)?;
            write_file(&record_path(path, &context.attempt_dir), &stored, context).map_err(wrong)?;
        }
    }
    Ok(copies)
}

fn write_file(path: &Path, written: &str, context: &AttemptContext) -> io::Result<()> {
    if path.starts_with(&context.run_dir) {
        path.parent().map_or(Ok(()), create_folder)?;
    }
    write_unsynced(path, written.as_bytes())
}

/// Returns where an attempt records the settings file of a copy.
fn record_path(copy: &Path, attempt_dir: &Path) -> PathBuf {
    let name = copy.strip_prefix(attempt_dir).unwrap_or_else(|_| copy.file_name().map_or(copy, Path::new));
    attempt_dir.join(format!("{OWN_PREFIX}original-{}.json", name.display().to_string().replace('/', "+")))
}

/// Describes what changed in a settings file since the newest attempt that read it.
fn note_change(copy: &Path, now: &Record, context: &AttemptContext) -> Option<String> {
    let attempts = context.attempt_dir.parent()?;
    let own = record_path(copy, &context.attempt_dir);
    let name = own.file_name()?;
    let earlier = (1..context.attempt).rev().find_map(|attempt| {
        let text = read_text(&attempts.join(attempt.to_string()).join(name), Limit::Record).ok()?;
        let record: Record = serde_json::from_str(&text).ok()?;
        (record.from == now.from).then_some((attempt, record.text))
    });
    let (attempt, before) = earlier.filter(|(_, before)| *before != now.text)?;
    let format = Format::of(&now.from)?;
    let leaves =
        |text: &str| SettingsFile::parse(text.to_owned(), format).map(|file| file.leaves()).unwrap_or_default();
    let changes = describe_changes(&leaves(&before), &leaves(&now.text));
    let file = text::path(&now.from);
    (!changes.is_empty())
        .then(|| format!("{file} changed since attempt {attempt}, and this attempt uses it as it is now: {changes}"))
}

fn describe_changes(before: &[(String, Value)], now: &[(String, Value)]) -> String {
    let value =
        |of: &[(String, Value)], key: &str| of.iter().find(|(path, _)| path == key).map(|(_, value)| value.to_string());
    let keys = before.iter().chain(now.iter().filter(|(key, _)| value(before, key).is_none())).map(|(key, _)| key);
    let mut changes: Vec<String> = Vec::new();
    for key in keys {
        let (old, new) = (value(before, key), value(now, key));
        if old != new {
            let shown = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
            changes.push(text::escape_line(&format!("{key} {} → {}", shown(old), shown(new))).into_owned());
        }
    }
    let more = changes.len().saturating_sub(LISTED);
    changes.truncate(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    changes.join(", ") + &more
}
