//! Tags, a note and the archive mark of a run: `labels.json` in its directory. They are the user's words
//! about a run; nothing about training depends on them.

use super::run_dir::RunDir;
use crate::untrusted::file::{self, Limit, ReadError};
use crate::untrusted::text;
use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io;

/// The file's name in a run directory.
pub const FILE: &str = "labels.json";
/// Maximum length of a tag in characters.
const TAG: usize = 32;
/// Maximum number of tags of a run.
const TAGS: usize = 32;
/// Maximum length of a note in characters.
pub const NOTE: usize = 2_000;

/// A word that marks runs: letters, digits and `_ . / : -`, such as `baseline` or `sweep/3`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Tag(String);

impl Tag {
    /// Parses a tag.
    ///
    /// # Errors
    /// Returns an error when the word cannot be a tag.
    pub fn parse(word: &str) -> Result<Self, LabelError> {
        let fits = |letter: char| letter.is_alphanumeric() || "_./:-".contains(letter);
        let starts = word.chars().next().is_some_and(char::is_alphanumeric);
        if starts && word.chars().all(fits) && word.chars().count() <= TAG {
            Ok(Self(word.to_owned()))
        } else {
            Err(LabelError::Tag(text::escape_line(word).into_owned()))
        }
    }

    /// Returns the word.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Tag {
    type Error = LabelError;

    fn try_from(word: String) -> Result<Self, LabelError> {
        Self::parse(&word)
    }
}

impl From<Tag> for String {
    fn from(tag: Tag) -> Self {
        tag.0
    }
}

impl fmt::Display for Tag {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The labels of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Labels {
    /// Tags, in alphabetical order.
    pub tags: BTreeSet<Tag>,
    /// The note; empty if there is none.
    pub note: String,
    /// Whether lists leave the run out.
    pub archived: bool,
}

/// A change of labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelEdit {
    /// Adds tags, then removes some.
    ChangeTags {
        /// Tags to add.
        add: Vec<Tag>,
        /// Tags to remove.
        remove: Vec<Tag>,
    },
    /// Replaces all tags.
    SetTags(BTreeSet<Tag>),
    /// Replaces the note; empty removes it.
    SetNote(String),
    /// Archives the run, or brings it back.
    Archive(bool),
}

/// Reason why labels were not changed.
#[derive(Debug, thiserror::Error)]
pub enum LabelError {
    /// Not a tag.
    #[error(
        "`{0}` is not a tag; a tag starts with a letter or digit and has at most {TAG} letters, digits and _ . / : -"
    )]
    Tag(String),
    /// Too many tags.
    #[error("a run has at most {TAGS} tags; remove some first")]
    TooMany,
    /// The note is too long.
    #[error("the note has {0} characters, the limit is {NOTE}; keep longer texts in a file of the run's folder")]
    LongNote(usize),
    /// The file cannot be used; it is left as it is.
    #[error("{path}: {source}; repair the file, or delete it")]
    Unreadable {
        /// The file.
        path: String,
        /// The reason.
        source: io::Error,
    },
    /// The file cannot be written.
    #[error("{path}: {source}")]
    Write {
        /// The file.
        path: String,
        /// The system's error.
        source: io::Error,
    },
}

impl Labels {
    /// Reads the labels of a run. A run without the file has none.
    ///
    /// # Errors
    /// Returns an error when the file exists and cannot be read.
    pub fn read(run: &RunDir) -> Result<Self, LabelError> {
        let path = run.file(FILE);
        let unreadable = |source| LabelError::Unreadable { path: text::path(&path), source };
        match file::read_text(&path, Limit::Handwritten) {
            Ok(json) => serde_json::from_str(&json).map_err(|error| unreadable(error.into())),
            Err(error) if error.is_missing() => Ok(Self::default()),
            Err(error) => Err(unreadable(ReadError::into(error))),
        }
    }

    /// Applies a change.
    ///
    /// # Errors
    /// Returns an error when the result would exceed a limit.
    pub fn apply(&mut self, edit: LabelEdit) -> Result<(), LabelError> {
        match edit {
            LabelEdit::ChangeTags { add, remove } => {
                self.tags.extend(add);
                self.tags.retain(|tag| !remove.contains(tag));
            }
            LabelEdit::SetTags(tags) => self.tags = tags,
            LabelEdit::SetNote(note) => note.trim().clone_into(&mut self.note),
            LabelEdit::Archive(archived) => self.archived = archived,
        }
        let length = self.note.chars().count();
        match () {
            () if self.tags.len() > TAGS => Err(LabelError::TooMany),
            () if length > NOTE => Err(LabelError::LongNote(length)),
            () => Ok(()),
        }
    }
}

/// Changes the labels of a run and writes them atomically. Returns the new ones.
///
/// # Errors
/// Returns an error when the file cannot be read or written, or a limit is exceeded; then nothing has changed.
pub fn edit_labels(run: &RunDir, edit: LabelEdit) -> Result<Labels, LabelError> {
    let _lock = lock_labels(run);
    let mut labels = Labels::read(run)?;
    labels.apply(edit)?;
    let failed = |source| LabelError::Write { path: text::path(&run.file(FILE)), source };
    let json = serde_json::to_string_pretty(&labels).map_err(|error| failed(error.into()))?;
    run.write_atomically(FILE, (json + "\n").as_bytes()).map_err(failed)?;
    Ok(labels)
}

/// Waits until no other process changes the labels. Their own file is replaced with each change, and the folder is the
/// keeper's to lock, so the lock is on the run file. Where the file system has no locks, two changes at once may lose one.
fn lock_labels(run: &RunDir) -> Option<File> {
    let file = file::open(&run.file("run.yaml")).ok()?;
    retry_on_intr(|| flock(&file, FlockOperation::LockExclusive)).ok()?;
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::{FILE, LabelEdit, LabelError, Labels, Tag, edit_labels};
    use crate::store::run_dir::RunDir;
    use std::fs;
    use std::sync::Barrier;

    fn tags(words: &[&str]) -> Vec<Tag> {
        words.iter().map(|word| Tag::parse(word).unwrap()).collect()
    }

    #[test]
    fn labels_are_kept_in_the_run_and_a_damaged_file_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("run.yaml"), "").unwrap();
        let run = RunDir::open(dir.path()).unwrap();
        assert_eq!(Labels::read(&run).unwrap(), Labels::default());
        let change = |add: &[&str], remove: &[&str]| LabelEdit::ChangeTags { add: tags(add), remove: tags(remove) };
        edit_labels(&run, change(&["b", "a", "sweep/3"], &[])).unwrap();
        edit_labels(&run, change(&["c"], &["b", "never"])).unwrap();
        edit_labels(&run, LabelEdit::SetNote("  wider warm-up \n".to_owned())).unwrap();
        let labels = edit_labels(&run, LabelEdit::Archive(true)).unwrap();
        assert_eq!(labels.tags.iter().map(Tag::as_str).collect::<Vec<_>>(), ["a", "c", "sweep/3"]);
        assert_eq!((labels.note.as_str(), labels.archived), ("wider warm-up", true));
        assert_eq!(Labels::read(&run).unwrap(), labels);

        let long = edit_labels(&run, LabelEdit::SetNote("x".repeat(2_001))).unwrap_err();
        assert!(matches!(long, LabelError::LongNote(2_001)));
        let many: Vec<String> = (0..33).map(|number| format!("t{number}")).collect();
        let many = change(&many.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
        assert!(matches!(edit_labels(&run, many), Err(LabelError::TooMany)));
        assert_eq!(Labels::read(&run).unwrap(), labels, "a refused change changes nothing");

        fs::write(run.file(FILE), "{ half").unwrap();
        assert!(matches!(edit_labels(&run, LabelEdit::Archive(false)), Err(LabelError::Unreadable { .. })));
        assert_eq!(fs::read_to_string(run.file(FILE)).unwrap(), "{ half");
        fs::write(run.file(FILE), r#"{ "tags": ["two words"] }"#).unwrap();
        assert!(Labels::read(&run).is_err());
    }

    #[test]
    fn two_editors_at_once_lose_no_change() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("run.yaml"), "").unwrap();
        let run = RunDir::open(dir.path()).unwrap();
        let together = Barrier::new(2);
        let edit = |editor: &str| {
            for round in 0..16 {
                together.wait();
                let add = tags(&[&format!("{editor}{round}")]);
                edit_labels(&run, LabelEdit::ChangeTags { add, remove: Vec::new() }).unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| edit("a"));
            scope.spawn(|| edit("b"));
        });
        assert_eq!(Labels::read(&run).unwrap().tags.len(), 32);
    }

    #[test]
    fn a_tag_is_one_word_that_no_option_starts_with() {
        for word in ["a", "baseline", "sweep/3", "lr:1e-3", "v1.2", "größe"] {
            assert_eq!(Tag::parse(word).unwrap().as_str(), word);
        }
        for word in ["", "two words", "-x", "+x", "a,b", "\u{1b}[2J", &"x".repeat(33)] {
            assert!(matches!(Tag::parse(word), Err(LabelError::Tag(_))), "{word}");
        }
    }
}
