//! Checkpoints that a command wrote and its run file does not declare, so that nothing resumes from them. Found by their
//! names once the command has failed, for a note that says what to declare.

use super::run_loop::Harness;
use crate::config::command::Level;
use crate::format::counted;
use crate::protocol::worker::{Event, Level as Severity};
use crate::untrusted::text;
use std::collections::BTreeMap;
use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Folders below the command's that are searched.
const DEPTH: usize = 4;
/// Entries that are looked at.
const ENTRIES: usize = 5_000;
/// Endings of files with weights.
const ENDINGS: [&str; 7] = ["pt", "pth", "ckpt", "safetensors", "msgpack", "h5", "keras"];
/// Beginnings of the names of folders with a checkpoint each.
const FOLDERS: [&str; 4] = ["checkpoint", "ckpt", "step", "global_step"];
/// Folders that hold no outputs.
const SKIPPED: [&str; 4] = ["venv", "env", "node_modules", "__pycache__"];

/// Checkpoints of one pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Undeclared {
    pattern: String,
    newest: PathBuf,
    modified: SystemTime,
    count: u64,
}

impl Harness {
    /// Reports the checkpoints that the command wrote since its start, if nothing declares or makes any.
    pub(super) fn note_undeclared_checkpoints(&mut self) {
        let args = &self.args;
        let declares = args.spec.checkpoints.is_some() || args.spec.level() != Level::Command;
        let Some(began) = SystemTime::now().checked_sub(self.began.elapsed()) else { return };
        if declares || self.companion.has_checkpoints() || args.purpose.is_temporary() || self.foreign.is_some() {
            return;
        }
        let Some(found) = find(&args.spec.directory, began) else { return };
        let (files, newest) = (counted(found.count, "file"), text::path(&found.newest));
        let pattern = text::escape_line(&found.pattern);
        let text = format!(
            "the script wrote {files} that may be checkpoints, the newest {newest}, and nothing declares them. If the \
             script can load one, a run file with `checkpoints: {{ match: \"{pattern}\" }}` and `resume: {{ arguments: \
             [--resume, \"{{checkpoint}}\"] }}` continues from it; `downshift init -- COMMAND` proposes one"
        );
        self.link.send(&Event::Note { level: Severity::Warn, text });
    }
}

/// Finds the checkpoints below a folder that are newer than `since`; of several patterns, the one written last.
fn find(folder: &Path, since: SystemTime) -> Option<Undeclared> {
    let mut found: BTreeMap<String, Undeclared> = BTreeMap::new();
    let (mut waiting, mut entries) = (vec![(PathBuf::new(), DEPTH)], 0);
    while let Some((below, depth)) = waiting.pop() {
        for entry in fs::read_dir(folder.join(&below)).into_iter().flatten().flatten() {
            entries += 1;
            if entries > ENTRIES {
                return newest(found);
            }
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let path = below.join(&name);
            match changed_since(&entry, since).filter(|_| is_checkpoint(&name, is_folder)) {
                Some(modified) => add(&mut found, path, modified),
                None if is_folder && depth > 0 && !name.starts_with('.') && !SKIPPED.contains(&name.as_str()) => {
                    waiting.push((path, depth - 1));
                }
                None => {}
            }
        }
    }
    newest(found)
}

fn changed_since(entry: &DirEntry, since: SystemTime) -> Option<SystemTime> {
    entry.metadata().ok()?.modified().ok().filter(|modified| *modified >= since)
}

fn is_checkpoint(name: &str, is_folder: bool) -> bool {
    let ends = |ending: &str| name.rsplit_once('.').is_some_and(|(_, own)| own == ending);
    if is_folder {
        let is_numbered = name.ends_with(|letter: char| letter.is_ascii_digit());
        return is_numbered && FOLDERS.iter().any(|begin| name.starts_with(begin));
    }
    ENDINGS.iter().any(|ending| ends(ending))
}

fn add(found: &mut BTreeMap<String, Undeclared>, path: PathBuf, modified: SystemTime) {
    let Some(pattern) = path.to_str().map(pattern_of) else { return };
    let known = found.entry(pattern.clone()).or_insert_with(|| Undeclared {
        pattern,
        newest: path.clone(),
        modified,
        count: 0,
    });
    known.count += 1;
    if modified > known.modified {
        (known.newest, known.modified) = (path, modified);
    }
}

/// Returns the pattern of a path and its like: the last number of its name may differ.
fn pattern_of(path: &str) -> String {
    let name = path.rfind('/').map_or(0, |at| at + 1);
    let Some(end) = path[name..].rfind(|letter: char| letter.is_ascii_digit()).map(|at| name + at + 1) else {
        return path.to_owned();
    };
    let begin = path[name..end].rfind(|letter: char| !letter.is_ascii_digit()).map_or(name, |at| name + at + 1);
    format!("{}*{}", &path[..begin], &path[end..])
}

/// Returns the pattern written last; numbered files count before `best.pt`.
fn newest(found: BTreeMap<String, Undeclared>) -> Option<Undeclared> {
    found.into_values().max_by_key(|found| (found.pattern.contains('*'), found.modified))
}

#[cfg(test)]
mod tests {
    use super::find;
    use std::fs;
    use std::path::Path;
    use std::time::{Duration, SystemTime};

    #[test]
    fn the_checkpoints_that_a_command_wrote_are_found_with_their_pattern() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        };
        let long_ago = SystemTime::UNIX_EPOCH;
        for name in ["data/images.csv", "venv/lib/model.pt", ".cache/weights_1.pt", "train.py"] {
            write(name);
        }
        assert_eq!(find(folder.path(), long_ago), None);
        for name in ["out/step_100.pt", "out/step_200.pt", "out/best.pt"] {
            write(name);
        }
        let found = find(folder.path(), long_ago).unwrap();
        assert_eq!((found.pattern.as_str(), found.count), ("out/step_*.pt", 2));
        assert_eq!(find(folder.path(), SystemTime::now() + Duration::from_mins(1)), None, "an earlier run wrote them");
        fs::remove_dir_all(folder.path().join("out")).unwrap();
        write("runs/a/checkpoint-20/model.safetensors");
        let found = find(folder.path(), long_ago).unwrap();
        assert_eq!(
            (found.pattern.as_str(), found.newest.as_path()),
            ("runs/a/checkpoint-*", Path::new("runs/a/checkpoint-20"))
        );
    }
}
