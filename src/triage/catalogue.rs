//! The catalogue of causes: data shipped in `assets/`, preceded by the user's own file.

use crate::config::problem::{Problem, max_listed};
use crate::config::{typed, yaml};
use crate::protocol::class::FailureClass;
use crate::untrusted::file::{self, Limit};
use regex::bytes::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const SHIPPED: &str = include_str!("../../assets/catalogue.yaml");

/// One cause and the messages that identify it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The entry's name.
    pub name: String,
    /// The class of failure that it identifies.
    pub class: FailureClass,
    /// Patterns; a line that matches any of them belongs to the entry.
    pub patterns: Vec<String>,
    /// Patterns that exclude a line that matches.
    #[serde(default)]
    pub unless: Vec<String>,
    /// Whether the message is only a symptom of another failure.
    #[serde(default)]
    pub symptom: bool,
    /// The meaning, in a sentence.
    pub meaning: String,
    /// Advice for the user, in a sentence.
    pub advice: String,
    /// The keeper's response; defaults to that of the class.
    #[serde(default)]
    pub keeper: Option<String>,
}

/// One of NVIDIA's Xid error numbers.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Xid {
    /// The number.
    pub number: u32,
    /// The meaning.
    pub meaning: String,
    /// Advice for the user.
    pub advice: String,
    /// Whether restarting the worker is enough.
    pub restart: bool,
    /// Whether it only accompanies another error, or reports no failure at all.
    #[serde(default)]
    pub secondary: bool,
}

/// Defaults of a failure class.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassDefaults {
    /// The keeper's response, unless an entry overrides it.
    keeper: String,
    /// Advice for the user where no entry matches.
    advice: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Talk {
    before: Vec<String>,
    after: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ShippedFile {
    talk: Talk,
    classes: BTreeMap<FailureClass, ClassDefaults>,
    causes: Vec<Entry>,
    xids: Vec<Xid>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct UserFile {
    causes: Vec<Entry>,
}

/// The errors that make a catalogue unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct CatalogueError(pub Vec<String>);

/// The loaded catalogue: entries, defaults by class, Xid numbers and compiled patterns.
#[derive(Debug)]
pub struct Catalogue {
    entries: Vec<Entry>,
    classes: BTreeMap<FailureClass, ClassDefaults>,
    xids: BTreeMap<u32, Xid>,
    set: RegexSet,
    /// Index of the entry for each pattern of the set.
    owners: Vec<usize>,
    /// Each pattern as a separate regex, compiled on first use to find where it matches.
    single: Vec<OnceLock<Option<Regex>>>,
    unless: Vec<Option<RegexSet>>,
    before: RegexSet,
    after: RegexSet,
}

/// A line that matches an entry.
#[derive(Debug, Clone, Copy)]
pub struct Hit<'a> {
    /// The entry.
    pub entry: &'a Entry,
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
    pub fn load() -> Result<Self, CatalogueError> {
        let Some(path) = user_file() else { return Self::build(None) };
        match file::read_text(&path, Limit::Handwritten) {
            Ok(text) => Self::build(Some((&path, &text))),
            Err(error) if error.is_missing() => Self::build(None),
            Err(error) => Err(CatalogueError(vec![format!("{}: {error}", path.display())])),
        }
    }

    /// Builds the shipped catalogue, preceded by the entries of this file and text.
    ///
    /// # Errors
    /// Returns an error when the text is invalid: every mistake, each with its line.
    pub fn build(user: Option<(&Path, &str)>) -> Result<Self, CatalogueError> {
        let shipped: ShippedFile = parse_document("assets/catalogue.yaml", SHIPPED)?;
        let mut entries = Vec::new();
        if let Some((path, text)) = user {
            let file = path.display().to_string();
            let own: UserFile = parse_document(&file, text)?;
            let wrong = check_entries(&own.causes);
            if !wrong.is_empty() {
                return Err(locate_problems(&file, text, &wrong));
            }
            entries.extend(own.causes);
        }
        entries.extend(shipped.causes);
        let broken = |error: regex::Error| CatalogueError(vec![format!("cannot compile the catalogue: {error}")]);
        let owners: Vec<usize> =
            entries.iter().enumerate().flat_map(|(index, entry)| entry.patterns.iter().map(move |_| index)).collect();
        let unless = entries.iter().map(|entry| match entry.unless.as_slice() {
            [] => Ok(None),
            some => compile_set(some).map(Some),
        });
        Ok(Self {
            set: compile_set(entries.iter().flat_map(|entry| &entry.patterns)).map_err(broken)?,
            unless: unless.collect::<Result<_, _>>().map_err(broken)?,
            single: owners.iter().map(|_| OnceLock::new()).collect(),
            owners,
            classes: shipped.classes,
            xids: shipped.xids.into_iter().map(|xid| (xid.number, xid)).collect(),
            before: compile_set(&shipped.talk.before).map_err(broken)?,
            after: compile_set(&shipped.talk.after).map_err(broken)?,
            entries,
        })
    }

    /// Returns the entry that a line belongs to: of all that match, the first one that is not a symptom,
    /// else the first.
    #[must_use]
    pub fn find(&self, line: &[u8]) -> Option<Hit<'_>> {
        // Nearly every log line is healthy, and testing only for any match is several times faster.
        if !self.set.is_match(line) {
            return None;
        }
        // Patterns are in the order of their entries, and the set reports matches in order.
        let mut hits = self.set.matches(line).into_iter().filter_map(|pattern| {
            let index = self.owners[pattern];
            if self.unless[index].as_ref().is_some_and(|unless| unless.is_match(line)) {
                return None;
            }
            let single = self.single[pattern].get_or_init(|| compile_pattern(&self.set.patterns()[pattern]).ok());
            // A line may mention a failure first and report one later: `best_loss=inf loss=nan`.
            let reported = single.as_ref()?.find_iter(line).find(|found| {
                !self.before.is_match(&line[..found.start()]) && !self.after.is_match(&line[found.end()..])
            })?;
            Some(Hit { entry: &self.entries[index], at: reported.start() })
        });
        let first = hits.next()?;
        // A symptom gives way to a cause found in the same line.
        if first.entry.symptom { hits.find(|hit| !hit.entry.symptom).or(Some(first)) } else { Some(first) }
    }

    /// Returns the keeper's response to a class.
    #[must_use]
    pub fn keeper_response(&self, class: FailureClass) -> &str {
        self.classes.get(&class).map_or("restarts, within the restart budget", |defaults| &defaults.keeper)
    }

    /// Returns the advice for a class where no entry matches.
    #[must_use]
    pub fn class_advice(&self, class: FailureClass) -> Option<&str> {
        self.classes.get(&class).map(|defaults| defaults.advice.as_str())
    }

    /// Returns the entry for an Xid number.
    #[must_use]
    pub fn find_xid(&self, number: u32) -> Option<&Xid> {
        self.xids.get(&number)
    }

    /// Returns all entries, the user's first.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

fn compile_pattern(pattern: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(pattern).unicode(false).build()
}

fn compile_set<T: AsRef<str>>(patterns: impl IntoIterator<Item = T>) -> Result<RegexSet, regex::Error> {
    RegexSetBuilder::new(patterns).unicode(false).size_limit(64 << 20).dfa_size_limit(16 << 20).build()
}

fn check_entries(entries: &[Entry]) -> Vec<Problem> {
    let mut wrong = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        if entry.patterns.is_empty() {
            wrong.push(Problem::at(format!("causes[{index}].patterns"), "no pattern", "add one"));
        }
        for (key, patterns) in [("patterns", &entry.patterns), ("unless", &entry.unless)] {
            for (at, pattern) in patterns.iter().enumerate() {
                let path = format!("causes[{index}].{key}[{at}]");
                match compile_pattern(pattern) {
                    Err(error) => {
                        let message = error.to_string();
                        let last = message.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
                        wrong.push(Problem::at(
                            path,
                            format!("invalid regular expression: {last}"),
                            "escape special characters with \\",
                        ));
                    }
                    Ok(regex) if regex.is_match(b"") => {
                        wrong.push(Problem::at(path, "matches every line", "write part of the message"));
                    }
                    Ok(_) => {}
                }
            }
        }
    }
    wrong
}

/// Parses a typed document, or returns every error in it.
fn parse_document<T: DeserializeOwned>(file: &str, text: &str) -> Result<T, CatalogueError> {
    let (tree, mut wrong) = yaml::parse(text).map_err(|error| {
        let (line, column) = error.place;
        CatalogueError(vec![format!("{file}:{line}:{column}: {}", error.message)])
    })?;
    let (value, more) = typed::read_tree::<T>(&tree);
    wrong.extend(more);
    match value {
        Some(value) if wrong.is_empty() => Ok(value),
        _ => Err(locate_problems(file, text, &wrong)),
    }
}

fn locate_problems(file: &str, text: &str, wrong: &[Problem]) -> CatalogueError {
    let mut lines: Vec<_> = wrong
        .iter()
        .take(max_listed(text))
        .map(|problem| {
            let (line, column) = yaml::locate(text, &problem.path, problem.part);
            ((line, column), format!("{file}:{line}:{column}: {problem}"))
        })
        .collect();
    lines.sort();
    CatalogueError(lines.into_iter().map(|(_, line)| line).collect())
}

#[cfg(test)]
mod tests {
    use super::Catalogue;
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
        }
        for class in FailureClass::ALL {
            let defaults = catalogue.classes.get(&class);
            let whole = defaults.is_some_and(|defaults| !defaults.keeper.is_empty() && !defaults.advice.is_empty());
            assert!(whole, "{class:?}: {defaults:?}");
        }
        for number in [13, 31, 43, 45, 48, 62, 63, 64, 79, 94, 95, 109, 119, 154] {
            assert!(catalogue.find_xid(number).is_some(), "{number}");
        }
        assert!(!catalogue.find_xid(79).unwrap().restart && catalogue.find_xid(31).unwrap().restart);
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
