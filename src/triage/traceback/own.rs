//! Which files of a traceback are the user's own, and which of its frames a line of the log belongs to.

use super::{Exception, OwnFrame};
use std::borrow::Cow;

/// Lines before a finding in which the traceback that belongs to it may end.
const NEAR: u64 = 50;

/// Where files that are not the user's own lie: installed packages, and downshift's companion.
const INSTALLED: [&str; 4] = ["/site-packages/", "/dist-packages/", "/downshift/companion-", ".exe/__main__.py"];
/// Modules of Python that stand in tracebacks: on Windows they lie in `Lib`, as a user's own files may.
const OF_PYTHON: [&str; 20] = [
    "asyncio",
    "codecs",
    "concurrent",
    "contextlib",
    "copy",
    "ctypes",
    "encodings",
    "functools",
    "importlib",
    "json",
    "logging",
    "multiprocessing",
    "pickle",
    "pkgutil",
    "runpy",
    "shutil",
    "socket",
    "subprocess",
    "threading",
    "zipfile",
];

/// Reports whether a file is the user's own: neither an installed package or program nor a part of Python.
pub fn is_own(file: &str) -> bool {
    let is_windows = file.contains('\\');
    let file = if is_windows { Cow::Owned(file.replace('\\', "/").to_lowercase()) } else { Cow::Borrowed(file) };
    let installed = INSTALLED.iter().any(|part| file.contains(part));
    let program = file.rsplit_once("/bin/").is_some_and(|(_, name)| !name.contains(['/', '.']));
    let library =
        file.split("/lib/python").nth(1).is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_digit()));
    let of_python = is_windows
        && file
            .rsplit_once("/lib/")
            .is_some_and(|(_, rest)| rest.split(['/', '.']).next().is_some_and(|module| OF_PYTHON.contains(&module)));
    !(file.starts_with('<') || installed || program || library || of_python)
}

/// Returns the frame of the traceback that a line of the log, printed by this rank, belongs to: the one that ends there or
/// later, else one that ended shortly before. One without own frames has that of the exception it led to.
#[must_use]
pub fn frame_of(exceptions: &[Exception], line: u64, rank: Option<u32>) -> Option<&OwnFrame> {
    let of_rank = |exception: &&Exception| rank.is_none() || exception.rank().is_none() || exception.rank() == rank;
    let of_rank = || exceptions.iter().filter(of_rank);
    let mut from_here = of_rank().skip_while(|exception| exception.line != line);
    if let Some(exact) = from_here.next() {
        let led_to = from_here.take_while(|next| next.is_chained() && next.source == exact.source);
        return exact.own.as_ref().or_else(|| led_to.filter_map(|next| next.own.as_ref()).last());
    }
    let own = || of_rank().filter_map(|exception| exception.own.as_ref());
    let before = own().rfind(|frame| frame.exception_line.saturating_add(NEAR) > line);
    own().find(|frame| frame.exception_line >= line).or(before)
}

#[cfg(test)]
mod tests {
    use super::is_own;

    #[test]
    fn programs_and_the_parts_of_python_are_not_own() {
        for (file, own) in [
            ("/v/bin/torchrun", false),
            ("/home/me/bin/train.py", true),
            ("bin/x/train", true),
            ("C:\\Python310\\lib\\multiprocessing\\spawn.py", false),
            ("C:\\app\\env\\Lib\\runpy.py", false),
            ("C:\\app\\venv\\Lib\\site-packages\\torch\\serialization.py", false),
            ("C:\\app\\venv\\Scripts\\accelerate.EXE\\__main__.py", false),
            ("D:\\app\\lib\\batches.py", true),
            ("D:\\app\\train.py", true),
        ] {
            assert_eq!(is_own(file), own, "{file}");
        }
    }
}
