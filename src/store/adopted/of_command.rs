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
    let name = path.file_name()?.to_str()?;
    // The number of an ending is none: `.h5`.
    let is_ending = |end: &str| end.starts_with(|letter: char| letter.is_ascii_alphabetic());
    let name = name.rsplit_once('.').filter(|(_, end)| is_ending(end)).map_or(name, |(stem, _)| stem);
    let end = name.rfind(|letter: char| letter.is_ascii_digit())? + 1;
    let begin = name[..end].rfind(|letter: char| !letter.is_ascii_digit()).map_or(0, |at| at + 1);
    let before = name[..begin].trim_end_matches(|letter: char| !letter.is_ascii_alphanumeric()).to_lowercase();
    let word = before.rsplit(|letter: char| !letter.is_ascii_alphabetic()).next().unwrap_or_default();
    if word.ends_with("epoch") || word == "ep" {
        return None;
    }
    name[begin..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::step_in_name;
    use std::path::Path;

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
