//! The text without which a pattern cannot match. One automaton over all patterns needs another state for nearly each
//! stretch of text that some pattern may begin with; texts alone need few, and nearly every line holds none of them.
//!
//! ```text
//! line ─▶ texts in it ─▶ the few patterns that require one of them ─▶ each is matched by itself
//! ```

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind};

/// Shortest text that is looked for.
const SHORTEST: usize = 3;
/// Text in the lines of nearly every training: looked for where a pattern requires nothing else.
const COMMON: [&str; 12] =
    ["loss", "step", "epoch", "train", "iter", "time", "info", "error", "warn", "grad", ": [", "[rank"];

/// Which patterns may match a line.
#[derive(Debug)]
pub struct Literals {
    texts: AhoCorasick,
    /// The pattern of each text.
    owners: Vec<usize>,
    /// Patterns that require no text.
    others: Vec<usize>,
}

impl Literals {
    /// Finds the texts of these patterns. Returns none if there are too many of them.
    pub fn of<'a>(patterns: impl IntoIterator<Item = &'a String>) -> Option<Self> {
        let (mut texts, mut owners, mut others) = (Vec::new(), Vec::new(), Vec::new());
        for (index, pattern) in patterns.into_iter().enumerate() {
            let required = parse(pattern).and_then(|hir| required(&hir)).filter(|texts| shortest(texts) >= SHORTEST);
            match required {
                Some(required) => {
                    owners.extend(required.iter().map(|_| index));
                    texts.extend(required);
                }
                None => others.push(index),
            }
        }
        // A table of all transitions would take most of the memory of the program.
        let kind = Some(AhoCorasickKind::ContiguousNFA);
        let texts = AhoCorasick::builder().ascii_case_insensitive(true).kind(kind).build(&texts).ok()?;
        Some(Self { texts, owners, others })
    }

    /// Returns the patterns that may match a line, in their order.
    pub fn candidates(&self, line: &[u8]) -> Vec<usize> {
        let found = self.texts.find_overlapping_iter(line).map(|found| self.owners[found.pattern().as_usize()]);
        let mut candidates: Vec<usize> = self.others.iter().copied().chain(found).collect();
        candidates.sort_unstable();
        candidates.dedup();
        candidates
    }
}

fn parse(pattern: &str) -> Option<Hir> {
    ParserBuilder::new().unicode(false).utf8(false).build().parse(pattern).ok()
}

/// Returns texts of which every match contains one.
fn required(hir: &Hir) -> Option<Vec<Vec<u8>>> {
    match hir.kind() {
        HirKind::Literal(literal) => Some(vec![literal.0.to_vec()]),
        HirKind::Capture(capture) => required(&capture.sub),
        HirKind::Repetition(repetition) if repetition.min > 0 => required(&repetition.sub),
        HirKind::Alternation(parts) => parts.iter().map(required).collect::<Option<Vec<_>>>().map(|all| all.concat()),
        HirKind::Concat(parts) => required_of_sequence(parts),
        _ => None,
    }
}

/// Returns the texts of the part that says most.
fn required_of_sequence(parts: &[Hir]) -> Option<Vec<Vec<u8>>> {
    let (mut found, mut run) = (Vec::new(), Vec::new());
    for part in parts {
        if let Some(text) = exact(part) {
            run.extend(text);
        } else {
            found.push(vec![std::mem::take(&mut run)]);
            found.extend(required(part));
        }
    }
    found.push(vec![run]);
    let says = |texts: &Vec<Vec<u8>>| (!texts.iter().any(|text| is_common(text)), shortest(texts));
    found.into_iter().filter(|texts| shortest(texts) > 0).max_by_key(says)
}

/// Returns the only text that an expression matches, in any case.
fn exact(hir: &Hir) -> Option<Vec<u8>> {
    match hir.kind() {
        HirKind::Empty | HirKind::Look(_) => Some(Vec::new()),
        HirKind::Literal(literal) => Some(literal.0.to_vec()),
        HirKind::Class(Class::Bytes(class)) => {
            let letters: Vec<u8> = class.ranges().iter().flat_map(|range| [range.start(), range.end()]).collect();
            let first =
                letters.first().filter(|first| letters.iter().all(|letter| letter.eq_ignore_ascii_case(first)))?;
            Some(vec![*first])
        }
        _ => None,
    }
}

fn shortest(texts: &[Vec<u8>]) -> usize {
    texts.iter().map(Vec::len).min().unwrap_or(0)
}

fn is_common(text: &[u8]) -> bool {
    text.len() < SHORTEST || COMMON.iter().any(|common| text.trim_ascii().eq_ignore_ascii_case(common.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::{Literals, parse, required};

    fn texts(pattern: &str) -> Option<Vec<String>> {
        let texts = required(&parse(pattern).unwrap())?;
        Some(texts.into_iter().map(|text| String::from_utf8(text).unwrap().to_lowercase()).collect())
    }

    #[test]
    fn every_match_contains_one_of_the_texts() {
        for (pattern, wanted) in [
            ("CUDA out of memory", vec!["cuda out of memory"]),
            (r"^\s*Killed\s*$", vec!["killed"]),
            (r"(?i)\bloss nan\b", vec!["loss nan"]),
            (r"loss[=: ]+nan", vec!["nan"]),
            ("Segmentation (fault|violation)", vec!["segmentation "]),
            (r"(?:Killed|Aborted)\b", vec!["killed", "aborted"]),
            ("(ab)+ out of [Mm]emory", vec![" out of memory"]),
            ("a?b*(x{2,})?error: 段错误", vec!["error: 段错误"]),
        ] {
            assert_eq!(texts(pattern), Some(wanted.into_iter().map(str::to_owned).collect()), "{pattern}");
        }
        for pattern in [r"\d+", "(a|[xy])", "a*"] {
            assert!(texts(pattern).is_none_or(|texts| texts.iter().any(|text| text.len() < 3)), "{pattern}");
        }
    }

    #[test]
    fn a_line_has_the_patterns_whose_texts_it_holds_and_those_that_require_none() {
        let patterns = ["out of memory", r"\d\d", "(?i)KILLED|memory leak", "bus error"].map(str::to_owned);
        let literals = Literals::of(&patterns).unwrap();
        assert_eq!(literals.candidates(b"CUDA Out Of Memory"), [0, 1]);
        assert_eq!(literals.candidates(b"killed: memory leak"), [1, 2]);
    }
}
