//! File patterns: `out/checkpoint-*`, `logs/**/events.out.tfevents.*`.
//!
//! `*` and `?` match within one name, `[a-z]` and `[!0-9]` one character, `**` any number of folders. A
//! leading dot is only matched by a dot. Only folders that can hold a match are read.

use regex::Regex;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Maximum number of entries that one search reads.
const MAX_ENTRIES: usize = 100_000;
/// Maximum number of folders that `**` descends.
const MAX_DEPTH: usize = 16;
/// Maximum length of a pattern, which bounds the time to compile it.
const MAX_LENGTH: usize = 4096;

/// A file pattern.
#[derive(Debug, Clone)]
pub struct Glob {
    /// The folder that the pattern starts from: empty, or absolute.
    root: PathBuf,
    parts: Vec<Part>,
}

#[derive(Debug, Clone)]
enum Part {
    Name(String),
    Pattern(Regex),
    Folders,
}

/// A text that is not a file pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    /// Nothing is left to match.
    #[error("the pattern is empty")]
    Empty,
    /// The pattern is unreasonably long.
    #[error("the pattern is longer than {MAX_LENGTH} bytes")]
    TooLong,
    /// A set of characters does not end.
    #[error("`[` without `]` in `{0}`")]
    OpenSet(String),
    /// A set of characters cannot be read.
    #[error("`{0}` has a set that matches nothing, such as [] or [z-a]")]
    BadSet(String),
    /// `**` shares a name with other characters.
    #[error("`**` must stand alone between slashes, not as in `{0}`")]
    Folders(String),
}

impl Glob {
    /// Parses a pattern.
    ///
    /// # Errors
    /// Returns an error when the text is not a pattern.
    pub fn parse(text: &str) -> Result<Self, GlobError> {
        if text.len() > MAX_LENGTH {
            return Err(GlobError::TooLong);
        }
        let root = if text.starts_with('/') { PathBuf::from("/") } else { PathBuf::new() };
        let names = text.split('/').filter(|name| !name.is_empty() && *name != ".");
        let parts = names.map(parse_part).collect::<Result<Vec<_>, _>>()?;
        if parts.is_empty() { Err(GlobError::Empty) } else { Ok(Self { root, parts }) }
    }

    /// Returns the existing paths that match, sorted; a relative pattern starts from `base`. Never follows a
    /// link to a folder below `**`.
    #[must_use]
    pub fn find(&self, base: &Path) -> Vec<PathBuf> {
        let mut search = Search { found: Vec::new(), entries: 0 };
        search.descend(&base.join(&self.root), &self.parts, 0);
        search.found.sort();
        search.found.dedup();
        search.found
    }

    /// Reports whether a path matches; a relative pattern starts from `base`.
    #[must_use]
    pub fn is_match(&self, base: &Path, path: &Path) -> bool {
        let Ok(below) = path.strip_prefix(base.join(&self.root)) else { return false };
        let names: Option<Vec<&str>> = below
            .components()
            .map(|part| match part {
                Component::Normal(name) => name.to_str(),
                _ => None,
            })
            .collect();
        names.is_some_and(|names| matches(&self.parts, &names))
    }
}

/// Writes a text so that it matches itself alone.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        if matches!(letter, '*' | '?' | '[') {
            escaped.extend(['[', letter, ']']);
        } else {
            escaped.push(letter);
        }
    }
    escaped
}

fn parse_part(name: &str) -> Result<Part, GlobError> {
    if name == "**" {
        return Ok(Part::Folders);
    }
    if name.contains("**") {
        return Err(GlobError::Folders(name.to_owned()));
    }
    if !name.contains(['*', '?', '[']) {
        return Ok(Part::Name(name.to_owned()));
    }
    let mut pattern = String::from("(?s)^");
    let mut rest = name;
    while let Some(letter) = rest.chars().next() {
        rest = &rest[letter.len_utf8()..];
        match letter {
            '*' => pattern.push_str(".*"),
            '?' => pattern.push('.'),
            '[' => {
                // A bracket directly after the opening one belongs to the set.
                let skip = usize::from(rest.starts_with(['!', '^']));
                let end = rest.char_indices().skip(skip + 1).find(|(_, letter)| *letter == ']');
                let Some((end, _)) = end else { return Err(GlobError::OpenSet(name.to_owned())) };
                pattern.push_str(&set(&rest[..end]));
                rest = &rest[end + 1..];
            }
            letter => pattern.push_str(&regex::escape(letter.encode_utf8(&mut [0; 4]))),
        }
    }
    pattern.push('$');
    Regex::new(&pattern).map(Part::Pattern).map_err(|_| GlobError::BadSet(name.to_owned()))
}

/// Translates the inside of `[…]`; only `-` keeps a meaning.
fn set(inside: &str) -> String {
    let (negated, letters) = inside.strip_prefix(['!', '^']).map_or((false, inside), |rest| (true, rest));
    let mut set = String::from(if negated { "[^" } else { "[" });
    for letter in letters.chars() {
        if letter != '-' && !letter.is_alphanumeric() {
            set.push('\\');
        }
        set.push(letter);
    }
    set.push(']');
    set
}

impl Part {
    /// Reports whether the part matches one name.
    fn fits(&self, name: &str) -> bool {
        match self {
            Self::Name(own) => own == name,
            Self::Folders => !name.starts_with('.'),
            Self::Pattern(pattern) => pattern.is_match(name) && (!name.starts_with('.') || self.starts_with_dot()),
        }
    }

    fn starts_with_dot(&self) -> bool {
        matches!(self, Self::Pattern(pattern) if pattern.as_str().starts_with(r"(?s)^\."))
    }
}

fn matches(parts: &[Part], names: &[&str]) -> bool {
    match (parts.split_first(), names.split_first()) {
        (None, rest) => rest.is_none(),
        (Some((Part::Folders, after)), first) => {
            matches(after, names) || first.is_some_and(|(name, rest)| Part::Folders.fits(name) && matches(parts, rest))
        }
        (Some(_), None) => false,
        (Some((part, after)), Some((name, rest))) => part.fits(name) && matches(after, rest),
    }
}

struct Search {
    found: Vec<PathBuf>,
    entries: usize,
}

impl Search {
    fn descend(&mut self, at: &Path, parts: &[Part], depth: usize) {
        let Some((part, after)) = parts.split_first() else {
            return self.found.push(at.to_owned());
        };
        match part {
            Part::Name(name) => {
                let below = at.join(name);
                if below.symlink_metadata().is_ok() {
                    self.descend(&below, after, depth);
                }
            }
            Part::Pattern(_) => {
                for (name, _) in self.entries(at) {
                    if part.fits(&name) && (after.is_empty() || at.join(&name).is_dir()) {
                        self.descend(&at.join(&name), after, depth);
                    }
                }
            }
            Part::Folders => {
                if after.is_empty() {
                    self.found.push(at.to_owned());
                } else {
                    self.descend(at, after, depth);
                }
                if depth < MAX_DEPTH {
                    for (name, is_folder) in self.entries(at) {
                        if is_folder && part.fits(&name) {
                            self.descend(&at.join(&name), parts, depth + 1);
                        }
                    }
                }
            }
        }
    }

    /// Returns the names in a folder, and whether each is a folder itself rather than a link to one.
    fn entries(&mut self, folder: &Path) -> Vec<(String, bool)> {
        let left = MAX_ENTRIES.saturating_sub(self.entries);
        let entries = fs::read_dir(folder).into_iter().flatten().take(left).flatten();
        let named: Vec<(String, bool)> = entries
            .filter_map(|entry| {
                Some((entry.file_name().into_string().ok()?, entry.file_type().is_ok_and(|kind| kind.is_dir())))
            })
            .collect();
        self.entries += named.len();
        named
    }
}

#[cfg(test)]
mod tests {
    use super::{Glob, GlobError, escape};
    use proptest::prelude::*;
    use std::fs;
    use std::path::Path;

    #[test]
    fn patterns_match_names_and_folders() {
        let table = [
            ("out/checkpoint-*", "out/checkpoint-500", true),
            ("out/checkpoint-*", "out/checkpoint-500/optimizer.pt", false),
            ("./out//checkpoint-*", "out/checkpoint-500", true),
            ("out/*", "out/.hidden", false),
            ("out/.h*", "out/.hidden", true),
            ("ckpt_[0-9][0-9].pt", "ckpt_42.pt", true),
            ("ckpt_[!0-9].pt", "ckpt_4.pt", false),
            ("ckpt_[!0-9].pt", "ckpt_x.pt", true),
            ("x[]]y", "x]y", true),
            ("x[.]y", "x_y", false),
            ("a?c", "abc", true),
            ("a?c", "a/c", false),
            ("logs/**/events.*", "logs/events.1", true),
            ("logs/**/events.*", "logs/a/b/events.1", true),
            ("logs/**/events.*", "logs/a/.git/events.1", false),
            ("a+(b).pt", "a+(b).pt", true),
            ("a.c", "abc", false),
        ];
        for (pattern, path, expected) in table {
            let glob = Glob::parse(pattern).unwrap();
            assert_eq!(glob.is_match(Path::new("/run"), &Path::new("/run").join(path)), expected, "{pattern} {path}");
        }
        let absolute = Glob::parse("/data/out-*/last.pt").unwrap();
        assert!(absolute.is_match(Path::new("/run"), Path::new("/data/out-1/last.pt")));
        assert!(!absolute.is_match(Path::new("/run"), Path::new("/run/data/out-1/last.pt")));
    }

    #[test]
    fn wrong_patterns_are_named() {
        let table = [
            ("", GlobError::Empty),
            ("./", GlobError::Empty),
            ("a/b[0-9", GlobError::OpenSet("b[0-9".to_owned())),
            ("b[z-a]", GlobError::BadSet("b[z-a]".to_owned())),
            ("a/x**", GlobError::Folders("x**".to_owned())),
        ];
        for (pattern, error) in table {
            assert_eq!(Glob::parse(pattern).unwrap_err(), error, "{pattern}");
        }
    }

    #[test]
    fn found_files_are_those_that_match() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["out/checkpoint-2/a", "out/checkpoint-10/a", "out/other/a", "deep/x/y/z.pt", "deep/w.pt"] {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        std::os::unix::fs::symlink(dir.path(), dir.path().join("deep/loop")).unwrap();
        let found = |pattern: &str| -> Vec<String> {
            let found = Glob::parse(pattern).unwrap().find(dir.path());
            found.iter().map(|path| path.strip_prefix(dir.path()).unwrap().display().to_string()).collect()
        };
        assert_eq!(found("out/checkpoint-*"), ["out/checkpoint-10", "out/checkpoint-2"]);
        assert_eq!(found("out/*/a"), ["out/checkpoint-10/a", "out/checkpoint-2/a", "out/other/a"]);
        assert_eq!(found("deep/**/*.pt"), ["deep/w.pt", "deep/x/y/z.pt"], "the loop is not followed");
        assert_eq!(found("missing/*"), [""; 0]);
    }

    proptest! {
        #[test]
        fn an_escaped_name_matches_itself_alone(name in "[a-z*?!\\[\\].]{1,12}", other in "[a-z*?!\\[\\].]{1,12}") {
            prop_assume!(!matches!(name.as_str(), "." | ".."));
            prop_assume!(!matches!(other.as_str(), "." | ".."));
            let glob = Glob::parse(&escape(&name)).unwrap();
            prop_assert!(glob.is_match(Path::new("/"), &Path::new("/").join(&name)));
            prop_assert_eq!(glob.is_match(Path::new("/"), &Path::new("/").join(&other)), name == other);
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in ".{0,40}", path in "[a-z./]{0,20}") {
            if let Ok(glob) = Glob::parse(&text) {
                let _ = glob.is_match(Path::new("/"), &Path::new("/").join(path));
            }
        }
    }
}
