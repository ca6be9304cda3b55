//! The command lines that started a run, one per line in `commands.log`, for bug reports.

use super::run_dir::RunDir;
use crate::format::quoted;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

/// The file's name in a run directory.
pub const FILE: &str = "commands.log";

/// Appends the command line of this process. A failure to write it does not prevent the start.
pub fn record_command_line(dir: &RunDir) {
    let words: Vec<String> = std::env::args_os().map(|word| quoted(&word.to_string_lossy())).collect();
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ");
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    // Writing must not follow a link in its place.
    options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
    let _ = options.open(dir.file(FILE)).and_then(|mut file| writeln!(file, "{now}  {}", words.join(" ")));
}
