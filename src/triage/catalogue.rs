//! The catalogue of causes: data shipped in `assets/`, preceded by the user's own file.

pub mod entry;
mod literals;

use super::ends;
use crate::config::document::{self, DocumentError};
use crate::untrusted::file::{self, Limit};
use entry::{CatalogueEntry, check_entries, compile_pattern};
use literals::Literals;
use regex::bytes::{Regex, RegexSet, RegexSetBuilder};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const SHIPPED: &str = include_str!("../../assets/catalogue.yaml");

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Talk {
    before: Vec<String>,
    after: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ShippedFile {
    /// Parts of patterns, by name.
    parts: BTreeMap<String, String>,
    talk: Talk,
    causes: Vec<CatalogueEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UserFile {
    causes: Vec<CatalogueEntry>,
}

/// The loaded catalogue: entries and compiled patterns.
#[derive(Debug)]
pub struct Catalogue {
    entries: Vec<CatalogueEntry>,
    literals: Literals,
    /// Index of the entry for each pattern.
    owners: Vec<usize>,
    /// Each pattern, compiled on first use.
    single: Vec<OnceLock<Option<Regex>>>,
    unless: Vec<Option<RegexSet>>,
    before: RegexSet,
    after: RegexSet,
}

/// A line that matches an entry.
#[derive(Debug, Clone, Copy)]
pub struct Hit<'a> {
    /// The entry.
    pub entry: &'a CatalogueEntry,
    /// The byte offset of the match in the line.
    pub at: usize,
}

/// Returns the path of the user's own entries: `downshift/catalogue.yaml` in the configuration folder.
#[must_use]
pub fn user_file() -> Option<PathBuf> {
    Some(config_folder()?.join("catalogue.yaml"))
}

/// Returns the user's configuration folder: `$XDG_CONFIG_HOME/downshift`, else `~/.config/downshift`.
#[must_use]
pub fn config_folder() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = named("XDG_CONFIG_HOME").or_else(|| Some(named("HOME")?.join(".config")))?;
    Some(base.join("downshift"))
}

impl Catalogue {
    /// Loads the shipped catalogue, preceded by the user's own entries.
    ///
    /// # Errors
    /// Returns an error when the user's file is invalid: every mistake, each with its line.
    pub fn load() -> Result<Self, DocumentError> {
        let Some(path) = user_file() else { return Self::build(None) };
        match file::read_text(&path, Limit::Handwritten) {
            Ok(text) => Self::build(Some((&path, &text))),
            Err(error) if error.is_missing() => Self::build(None),
            Err(error) => Err(DocumentError(vec![format!("{}: {error}", path.display())])),
        }
    }

    /// Builds the shipped catalogue, preceded by the entries of this file and text.
    ///
    /// # Errors
    /// Returns an error when the text is invalid: every mistake, each with its line.
    pub fn build(user: Option<(&Path, &str)>) -> Result<Self, DocumentError> {
        let shipped: ShippedFile = document::read("assets/catalogue.yaml", SHIPPED, |_| Vec::new())?;
        let mut entries = Vec::new();
        if let Some((path, text)) = user {
            let file = path.display().to_string();
            let own = document::read(&file, text, |own: &UserFile| check_entries(&own.causes))?;
            entries.extend(own.causes);
        }
        let mut ends = ends::patterns()?;
        entries.extend(shipped.causes.into_iter().map(|mut entry| {
            for pattern in &mut entry.patterns {
                for (name, part) in &shipped.parts {
                    *pattern = pattern.replace(&format!("{{{name}}}"), part);
                }
            }
            entry.patterns.extend(ends.remove(&entry.name).unwrap_or_default());
            entry
        }));
        let broken = |error: regex::Error| DocumentError(vec![format!("cannot compile the catalogue: {error}")]);
        let too_many = || DocumentError(vec!["cannot compile the catalogue: too many patterns".to_owned()]);
        let owners: Vec<usize> =
            entries.iter().enumerate().flat_map(|(index, entry)| entry.patterns.iter().map(move |_| index)).collect();
        let unless = entries.iter().map(|entry| match entry.unless.as_slice() {
            [] => Ok(None),
            some => compile_set(some).map(Some),
        });
        Ok(Self {
            literals: Literals::of(entries.iter().flat_map(|entry| &entry.patterns)).ok_or_else(too_many)?,
            unless: unless.collect::<Result<_, _>>().map_err(broken)?,
            single: owners.iter().map(|_| OnceLock::new()).collect(),
            owners,
            before: compile_set(&shipped.talk.before).map_err(broken)?,
            after: compile_set(&shipped.talk.after).map_err(broken)?,
            entries,
        })
    }

    /// Returns the patterns that may match a line, or a part of it, in the order of their entries.
    #[must_use]
    pub fn candidates(&self, line: &[u8]) -> Vec<usize> {
        self.literals.candidates(line)
    }

    /// Returns the entry that a line belongs to: of all that match, the first one that is not a symptom,
    /// else the first.
    #[must_use]
    pub fn find(&self, line: &[u8]) -> Option<Hit<'_>> {
        self.find_among(&self.candidates(line), line)
    }

    /// Does the same with the candidates of the line that a part belongs to.
    #[must_use]
    pub fn find_among(&self, candidates: &[usize], line: &[u8]) -> Option<Hit<'_>> {
        let mut hits = candidates.iter().copied().filter_map(|pattern| {
            let entry = &self.entries[self.owners[pattern]];
            let single = self.single[pattern].get_or_init(|| compile_pattern(self.pattern(pattern)).ok());
            // A line may mention a failure first and report one later: `best_loss=inf loss=nan`.
            let reported = single.as_ref()?.find_iter(line).find(|found| {
                !self.before.is_match(&line[..found.start()]) && !self.after.is_match(&line[found.end()..])
            })?;
            let unless = self.unless[self.owners[pattern]].as_ref();
            (!unless.is_some_and(|unless| unless.is_match(line))).then_some(Hit { entry, at: reported.start() })
        });
        let first = hits.next()?;
        // A symptom gives way to a cause found in the same line.
        if first.entry.symptom { hits.find(|hit| !hit.entry.symptom).or(Some(first)) } else { Some(first) }
    }

    fn pattern(&self, index: usize) -> &str {
        let entry = self.owners[index];
        &self.entries[entry].patterns[index - self.owners.partition_point(|owner| *owner < entry)]
    }

    /// Returns the number of lines that must match an entry in a row.
    #[must_use]
    pub fn needs_in_a_row(&self, name: &str) -> u64 {
        let entry = self.entries.iter().find(|entry| entry.name == name);
        entry.and_then(|entry| entry.in_a_row).unwrap_or(1)
    }

    /// Returns all entries, the user's first.
    #[must_use]
    pub fn entries(&self) -> &[CatalogueEntry] {
        &self.entries
    }
}

fn compile_set<T: AsRef<str>>(patterns: impl IntoIterator<Item = T>) -> Result<RegexSet, regex::Error> {
    RegexSetBuilder::new(patterns).unicode(false).size_limit(64 << 20).dfa_size_limit(16 << 20).build()
}

#[cfg(test)]
mod tests {
    use super::{Catalogue, compile_pattern};
    use crate::protocol::class::FailureClass;
    use std::collections::BTreeSet;
    use std::path::Path;

    #[test]
    fn the_shipped_catalogue_is_whole() {
        let catalogue = Catalogue::build(None).unwrap();
        let mut names = BTreeSet::new();
        for entry in catalogue.entries() {
            assert!(names.insert(&entry.name), "{} is defined twice", entry.name);
            assert!(!entry.patterns.is_empty() && !entry.meaning.is_empty() && !entry.advice.is_empty());
            for pattern in &entry.patterns {
                assert!(compile_pattern(pattern).is_ok(), "{}: {pattern}", entry.name);
            }
        }
        let patterns: Vec<&String> = catalogue.entries().iter().flat_map(|entry| &entry.patterns).collect();
        let by_index = (0..patterns.len()).map(|index| catalogue.pattern(index));
        assert!(patterns.iter().map(|pattern| pattern.as_str()).eq(by_index));
    }

    #[test]
    fn of_the_causes_that_end_a_run_these_may_pass() {
        use FailureClass::{Checkpoint, Config, Data, DiskFull, Driver, GpuLost};
        let catalogue = Catalogue::build(None).unwrap();
        let (transient, certain): (Vec<_>, Vec<_>) = catalogue.entries().iter().partition(|entry| entry.transient);
        let names: Vec<&str> = transient.iter().map(|entry| entry.name.as_str()).collect();
        let wanted = [
            "io-error-of-program",
            "gpu-busy",
            "device-lost",
            "jax-cudnn",
            "fabric-manager",
            "loader-gone",
            "thread-limit",
            "hub-rate",
            "hub-connection",
            "stale-file",
            "too-many-files",
            "tracker-connection",
            "file-in-use",
        ];
        assert_eq!(names, wanted);
        let ends_runs = |class| matches!(class, Checkpoint | Config | Data | DiskFull | Driver | GpuLost);
        assert!(transient.iter().all(|entry| ends_runs(entry.class)), "any other class restarts anyway");
        assert!(certain.iter().any(|entry| ends_runs(entry.class)));
    }

    #[test]
    fn the_users_entries_come_first() {
        let text = "causes:\n  - name: mine\n    class: data\n    patterns: ['CUDA out of memory']\n    meaning: m\n    advice: a\n";
        let catalogue = Catalogue::build(Some((Path::new("c.yaml"), text))).unwrap();
        let hit = catalogue.find(b"RuntimeError: CUDA out of memory. Tried to allocate 2 MiB").unwrap();
        assert_eq!((hit.entry.name.as_str(), hit.at), ("mine", 14));
    }

    #[test]
    fn mistakes_in_the_users_file_are_all_named_with_their_lines() {
        let text =
            "causes:\n  - name: a\n    class: oom\n    patterns: ['(']\n    meaning: m\n    advice: a\n    extra: 1\n";
        let error = Catalogue::build(Some((Path::new("c.yaml"), text))).unwrap_err();
        assert!(error.0.iter().any(|line| line.starts_with("c.yaml:3:12: causes[0].class")), "{error}");
        assert!(error.0.iter().any(|line| line.starts_with("c.yaml:7:")), "{error}");
        let text =
            "causes:\n  - name: a\n    class: data\n    patterns: ['ok', '(', 'x*']\n    meaning: m\n    advice: a\n";
        let error = Catalogue::build(Some((Path::new("c.yaml"), text))).unwrap_err();
        assert_eq!(error.0.len(), 2, "{error}");
        assert!(error.0[0].contains("causes[0].patterns[1]: invalid regular expression"), "{error}");
        assert!(error.0[1].contains("patterns[2]: matches every line"), "{error}");
        assert!(Catalogue::build(Some((Path::new("c.yaml"), ""))).is_err());
    }
}
