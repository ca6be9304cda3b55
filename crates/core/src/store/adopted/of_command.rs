//! Checkpoints as a command leaves them: which are complete, and which step their names tell.

use super::survey;
use crate::untrusted::file::{self, Limit};
use crate::untrusted::glob::Glob;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the complete checkpoints that a pattern matches. `last` is the file that the command writes last into each.
#[must_use]
pub fn find_complete(pattern: &Glob, directory: &Path, last: Option<&str>) -> Vec<PathBuf> {
    pattern.find(directory).into_iter().filter(|path| is_complete(path, last)).collect()
}

/// Reports whether the file that the command writes last exists, and parses if it is JSON. If the run file names no
/// such file, a folder with any file passes: it is complete once it stops changing.
fn is_complete(path: &Path, last: Option<&str>) -> bool {
    let last = match (path.is_dir(), last) {
        (true, Some(name)) => path.join(name),
        (true, None) => return survey(path).is_ok_and(|files| !files.is_empty()),
        (false, _) => path.to_owned(),
    };
    let Ok(found) = fs::metadata(&last) else { return false };
    if !found.is_file() || found.len() == 0 {
        return false;
    }
    if last.extension().is_none_or(|end| end != "json") {
        return true;
    }
    file::read(&last, Limit::Record).is_ok_and(|text| serde_json::from_slice::<serde::de::IgnoredAny>(&text).is_ok())
}

/// Returns the step in a name: its last number, unless that counts epochs.
#[must_use]
pub fn step_in_name(path: &Path) -> Option<u64> {
    let numbers = numbers_in_name(path);
    numbers.last().filter(|(word, _)| !counts_epochs(word))?.1.parse().ok()
}

/// Returns the epoch in a name: the last number behind a word for it.
#[must_use]
pub fn epoch_in_name(path: &Path) -> Option<u64> {
    let numbers = numbers_in_name(path);
    numbers.iter().rfind(|(word, _)| counts_epochs(word))?.1.parse().ok()
}

fn counts_epochs(word: &str) -> bool {
    word.ends_with("epoch") || word == "ep"
}

/// Returns the numbers in a name, each with the word before it in lower case.
fn numbers_in_name(path: &Path) -> Vec<(String, &str)> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    // The number of an ending is none: `.h5`.
    let is_ending = |end: &str| end.starts_with(|letter: char| letter.is_ascii_alphabetic());
    let name = name.rsplit_once('.').filter(|(_, end)| is_ending(end)).map_or(name, |(stem, _)| stem);
    let mut numbers = Vec::new();
    let mut begin = 0;
    while let Some(first) = name[begin..].find(|letter: char| letter.is_ascii_digit()).map(|at| begin + at) {
        let digits = name[first..].find(|letter: char| !letter.is_ascii_digit());
        let end = digits.map_or(name.len(), |at| first + at);
        let before = name[..first].trim_end_matches(|letter: char| !letter.is_ascii_alphanumeric()).to_lowercase();
        let word = before.rsplit(|letter: char| !letter.is_ascii_alphabetic()).next().unwrap_or_default();
        numbers.push((word.to_owned(), &name[first..end]));
        begin = end;
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::{epoch_in_name, step_in_name};
    use std::path::Path;

    #[test]
    fn epochs_are_read_from_names() {
        for (name, epoch) in [
            ("ckpt_epoch3.pt", Some(3)),
            ("epoch=3-step=1200.ckpt", Some(3)),
            ("model-ep07_0.031.pt", Some(7)),
            ("Epoch-12-val_loss-0.5.h5", Some(12)),
            ("checkpoint-500", None),
            ("ckpt.pt", None),
        ] {
            assert_eq!(epoch_in_name(Path::new(name)), epoch, "{name}");
        }
    }

    #[test]
    fn steps_are_read_from_names() {
        for (name, step) in [
            ("checkpoint-500", Some(500)),
            ("epoch=3-step=1200.ckpt", Some(1200)),
            ("epoch_3", None),
            ("model-epoch-2.pt", None),
            ("ckpt.pt", None),
            ("at_step00000300", Some(300)),
        ] {
            assert_eq!(step_in_name(Path::new(name)), step, "{name}");
        }
    }
}
