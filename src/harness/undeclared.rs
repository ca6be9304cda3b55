//! Checkpoints that a command wrote and its run file does not declare, or not by their names, so that nothing resumes from
//! them. Found by their names once the command has failed, for a note that says what to declare.

use super::checkpoints::Candidate;
use super::progress::trail::FILE_CLOCK;
use super::run_loop::Harness;
use crate::config::command::CommandSpec;
use crate::protocol::worker::{CommandNews, Event, Level};
use crate::store::adopted::{self, WrittenCheckpoint, epoch_in_name, step_in_name};
use crate::untrusted::text;
use crate::untrusted::thread::run_beside;
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, DirEntry};
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Folders below the command's that are searched.
const DEPTH: usize = 4;
/// Folders that are searched, and entries looked at in each.
const MOST_FOLDERS: usize = 200;
const ENTRIES: usize = 1_000;
/// The time that the search may take.
const LIMIT: Duration = Duration::from_secs(1);
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
    /// Reports the checkpoints that the command wrote since its start, if nothing declares or makes any. A file system that
    /// does not answer delays the report of the end no longer than [`LIMIT`].
    pub(super) fn note_undeclared_checkpoints(&mut self) {
        let args = &self.args;
        let Some(began) = SystemTime::now().checked_sub(self.began.elapsed() + FILE_CLOCK) else { return };
        let has_some = self.companion.has_checkpoints() || !adopted::list(args.run_dir.path()).is_empty();
        if has_some || args.purpose.is_temporary() {
            return;
        }
        let (folder, (sender, found)) = (args.spec.directory.clone(), mpsc::channel());
        let own = args.run_dir.path().canonicalize().ok();
        let named = named_paths(&args.spec.command, &folder);
        run_beside("outputs", move || drop(sender.send(newest(find(&folder, began, own.as_deref()), &named))));
        let Ok(Some(found)) = found.recv_timeout(LIMIT) else { return };
        let newest = text::path(&found.newest);
        let pattern = text::escape_line(&found.pattern);
        let wrote = match found.count {
            1 => format!("the script wrote {newest}, which may be a checkpoint"),
            several => format!("the script wrote {several} outputs that may be checkpoints, the newest {newest}"),
        };
        let text = match &args.spec.checkpoints {
            Some(declared) => format!(
                "{wrote}, but `checkpoints.match: {}` matched nothing; `{pattern}` would",
                text::escape_line(&declared.pattern)
            ),
            None => format!(
                "{wrote}, and no run file declares that. If the script can load one, a run file with `checkpoints: {{ match: \
                 \"{pattern}\" }}` and `resume: {{ arguments: [--resume, \"{{checkpoint}}\"] }}` continues from it; \
                 `downshift init -- COMMAND` proposes one"
            ),
        };
        self.link.send(&Event::Note { level: Level::Warn, text });
        if args.spec.checkpoints.is_some() {
            self.remember_unmatched(&found);
            let news = CommandNews::Unmatched { pattern: found.pattern };
            self.link.send(&Event::Command { news });
        }
    }
}

impl Harness {
    /// Remembers the step of an output that no pattern matches, for a start with a corrected pattern.
    fn remember_unmatched(&mut self, found: &Undeclared) {
        if self.progress.nan_in_a_row > 0 {
            return;
        }
        let path = self.args.spec.directory.join(&found.newest);
        let written = found.modified.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64);
        let (step, epoch) = (step_in_name(&path), epoch_in_name(&path));
        let step = self.step_held(&Candidate { path: path.clone(), step, epoch, modified_ns: written });
        let known = WrittenCheckpoint::now(step, self.progress.samples(step), &path);
        let waiting: Vec<_> = known.into_iter().map(|known| WrittenCheckpoint { unmatched: true, ..known }).collect();
        if let Err(error) = adopted::record_written(self.args.run_dir.path(), &waiting) {
            self.warn(format!("the step of {} cannot be stored: {error}", text::path(&path)));
        }
    }
}

/// Returns the output that a command wrote last since a moment, if it may be a checkpoint: below the first of these folders
/// that has one.
#[must_use]
pub fn find_output(command: &CommandSpec, folders: &[&Path], since: SystemTime) -> Option<PathBuf> {
    let since = since.checked_sub(FILE_CLOCK)?;
    let newest_in = |folder: &&Path| newest(find(folder, since, Some(folder)), &named_paths(&command.command, folder));
    folders.iter().find_map(newest_in).map(|found| found.newest)
}

/// Returns the paths in a folder that a command may name: its words, and what follows `=` in them.
fn named_paths(command: &[String], folder: &Path) -> Vec<PathBuf> {
    let values = command.iter().map(|word| word.split_once('=').map_or(word.as_str(), |(_, value)| value));
    let plain = |path: &Path| path.components().filter(|part| *part != Component::CurDir).collect();
    values.map(|value| plain(Path::new(value).strip_prefix(folder).unwrap_or(Path::new(value)))).collect()
}

/// Finds the checkpoints below a folder that are newer than `since`, by their patterns. Folders near the top are searched
/// first, so that one with many files hides no other. Runs but `own` write theirs themselves.
fn find(folder: &Path, since: SystemTime, own: Option<&Path>) -> BTreeMap<String, Undeclared> {
    let is_other_run = |path: &Path| path.join("run.db").is_file() && path.canonicalize().ok().as_deref() != own;
    let mut found: BTreeMap<String, Undeclared> = BTreeMap::new();
    let mut waiting = VecDeque::from([(PathBuf::new(), DEPTH)]);
    let mut folders = 0;
    while let Some((below, depth)) = waiting.pop_front() {
        folders += 1;
        if folders > MOST_FOLDERS {
            break;
        }
        if depth < DEPTH && is_other_run(&folder.join(&below)) {
            continue;
        }
        for entry in fs::read_dir(folder.join(&below)).into_iter().flatten().flatten().take(ENTRIES) {
            let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let path = below.join(&name);
            let is_output = is_checkpoint(&name, is_folder);
            match is_output.then(|| changed_since(&entry, since)).flatten() {
                Some(modified) => add(&mut found, path, modified),
                None if is_folder && depth > 0 && !name.starts_with('.') && !SKIPPED.contains(&name.as_str()) => {
                    waiting.push_back((path, depth - 1));
                }
                None => {}
            }
        }
    }
    found
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
    if (modified, &path) > (known.modified, &known.newest) {
        (known.newest, known.modified) = (path, modified);
    }
}

/// Returns the pattern of a path and its like: the numbers in its name may differ, but not those in its ending.
fn pattern_of(path: &str) -> String {
    let name = path.rfind('/').map_or(0, |at| at + 1);
    let ending = ENDINGS
        .iter()
        .find_map(|ending| path[name..].strip_suffix(ending))
        .map_or(path.len(), |stem| name + stem.len());
    let mut pattern = path[..name].to_owned();
    for letter in path[name..ending].chars() {
        match letter {
            '0'..='9' if pattern.ends_with('*') => {}
            '0'..='9' => pattern.push('*'),
            _ => pattern.push(letter),
        }
    }
    pattern + &path[ending..]
}

/// Returns the pattern written last. Those below a path that the command names come first, since others in the folder may be
/// those of another training; then numbered files, before `best.pt`.
fn newest(found: BTreeMap<String, Undeclared>, named: &[PathBuf]) -> Option<Undeclared> {
    let is_below = |found: &Undeclared, path: &PathBuf| path.iter().next().is_some() && found.newest.starts_with(path);
    let is_named = |found: &Undeclared| named.iter().any(|path| is_below(found, path));
    found.into_values().max_by_key(|found| (is_named(found), found.pattern.contains('*'), found.modified))
}

#[cfg(test)]
mod tests {
    use super::{Undeclared, named_paths, newest, pattern_of};
    use std::fs;
    use std::path::Path;
    use std::time::{Duration, SystemTime};

    fn find(folder: &Path, since: SystemTime, own: Option<&Path>) -> Option<Undeclared> {
        newest(super::find(folder, since, own), &[])
    }

    #[test]
    fn of_two_trainings_in_one_folder_the_one_that_the_command_names_is_its_own() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["o_exc/ckpt-100.pt", "o_nan/ckpt-300.pt"] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        let command = |word: &str| ["python".to_owned(), word.to_owned()];
        let absolute = folder.path().join("o_exc").display().to_string();
        for (word, pattern) in
            [("--out=./o_exc/", "o_exc/ckpt-*.pt"), ("o_nan", "o_nan/ckpt-*.pt"), (&absolute, "o_exc/ckpt-*.pt")]
        {
            let found = super::find(folder.path(), SystemTime::UNIX_EPOCH, None);
            let named = named_paths(&command(word), folder.path());
            assert_eq!(newest(found, &named).unwrap().pattern, pattern, "{word}");
        }
    }

    #[test]
    fn the_checkpoints_of_another_run_are_not_the_commands() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("runs/other-1");
        fs::create_dir_all(run.join("out")).unwrap();
        fs::write(run.join("run.db"), "").unwrap();
        fs::write(run.join("out/step_10.pt"), "10").unwrap();
        let found = |own: Option<&Path>| find(folder.path(), SystemTime::UNIX_EPOCH, own).map(|found| found.pattern);
        assert_eq!(found(None), None);
        let own = run.canonicalize().unwrap();
        assert_eq!(found(Some(&own)).as_deref(), Some("runs/other-1/out/step_*.pt"));
    }

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
        assert_eq!(find(folder.path(), long_ago, None), None);
        for name in ["out/step_100.pt", "out/step_200.pt", "out/best.pt"] {
            write(name);
        }
        let found = find(folder.path(), long_ago, None).unwrap();
        assert_eq!((found.pattern.as_str(), found.count), ("out/step_*.pt", 2));
        assert_eq!(
            find(folder.path(), SystemTime::now() + Duration::from_mins(1), None),
            None,
            "an earlier run wrote them"
        );
        for (name, pattern) in
            [("a.h5", "a.h5"), ("out/w_10.h5", "out/w_*.h5"), ("epoch=3-step=1000.ckpt", "epoch=*-step=*.ckpt")]
        {
            assert_eq!(pattern_of(name), pattern);
        }
        for number in 0..1_200 {
            write(&format!("data/{number}.txt"));
        }
        assert_eq!(find(folder.path(), long_ago, None).unwrap().pattern, "out/step_*.pt", "much data hides nothing");
        fs::remove_dir_all(folder.path().join("out")).unwrap();
        write("runs/a/checkpoint-20/model.safetensors");
        let found = find(folder.path(), long_ago, None).unwrap();
        assert_eq!(
            (found.pattern.as_str(), found.newest.as_path()),
            ("runs/a/checkpoint-*", Path::new("runs/a/checkpoint-20"))
        );
    }
}
