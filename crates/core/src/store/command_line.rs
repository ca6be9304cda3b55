//! The command lines that started a run, one per line in `commands.log`: for bug reports, and for a run that can only be
//! started anew.

use super::run_dir::RunDir;
use crate::format::quoted;
use crate::untrusted::file::{self, Limit};
use crate::untrusted::text;
use crate::untrusted::words::split_words;
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

/// Returns the command line that began the run, as `downshift run …`; none if something else began it.
#[must_use]
pub fn first_command_line(dir: &RunDir) -> Option<String> {
    let log = file::read_text(&dir.file(FILE), Limit::Record).ok()?;
    begun_by(log.lines().next()?)
}

fn begun_by(line: &str) -> Option<String> {
    let (_, words) = line.split_once("  ")?;
    // The program's path may hold spaces, and is then quoted.
    let (_, rest) = match words.strip_prefix('\'') {
        Some(quoted) => quoted.split_once("' ")?,
        None => words.split_once(' ')?,
    };
    let rest = rest.trim_start();
    rest.starts_with("run ").then(|| format!("downshift {}", text::escape_line(rest)))
}

/// Returns what `--set` changed in the run file when the run began: `optimizer.lr=0.004`.
#[must_use]
pub fn overrides(dir: &RunDir) -> Vec<String> {
    first_command_line(dir).map_or_else(Vec::new, |line| overrides_in(&line))
}

fn overrides_in(line: &str) -> Vec<String> {
    let run = line.split_once(" -- ").map_or(line, |(run, _)| run);
    let mut words = split_words(run, |_, _| false).words.into_iter();
    let mut set = Vec::new();
    while let Some(word) = words.next() {
        match word.strip_prefix("--set=") {
            Some(value) => set.push(value.to_owned()),
            None if word == "--set" => set.extend(words.next()),
            None => {}
        }
    }
    set
}

/// Returns the words that were typed after `--`, as a shell reads them; none if the line names a run file.
#[must_use]
pub fn typed_command(line: &str) -> Option<&str> {
    line.split_once(" -- ").map(|(_, words)| words)
}

/// Returns the command line with one more option.
#[must_use]
pub fn with_option(line: &str, option: &str) -> String {
    match line.split_once(" -- ") {
        Some((run, words)) => format!("{run} {option} -- {words}"),
        None => format!("{line} {option}"),
    }
}

/// Returns the command line of a run without this option, such as `--from`, and its value.
#[must_use]
pub fn without_option(line: &str, option: &str) -> String {
    let run = line.split_once(" -- ").map_or(line, |(run, _)| run);
    let found = [' ', '='].into_iter().find_map(|sign| run.split_once(&format!(" {option}{sign}")));
    let Some((before, value)) = found else { return line.to_owned() };
    let length = match value.strip_prefix('\'') {
        Some(quoted) => quoted.find('\'').map_or(value.len(), |end| end + 2),
        None => value.find(' ').unwrap_or(value.len()),
    };
    format!("{before}{}", &line[run.len() - value.len() + length..])
}

#[cfg(test)]
mod tests {
    use super::{begun_by, overrides_in, typed_command, with_option, without_option};

    #[test]
    fn an_option_is_left_out_with_its_value() {
        for (option, line, without) in [
            ("--from", "downshift run my.yaml --from x-1@7 --headless", "downshift run my.yaml --headless"),
            ("--from", "downshift run --from 'out/a b.pt@7' -- python3 x.py", "downshift run -- python3 x.py"),
            ("--from", "downshift run my.yaml --from x-1", "downshift run my.yaml"),
            ("--from", "downshift run -- python3 x.py --from y", "downshift run -- python3 x.py --from y"),
            ("--job", "downshift run my.yaml --job night --headless", "downshift run my.yaml --headless"),
            ("--job", "downshift run my.yaml --job='a b'", "downshift run my.yaml"),
            ("--job", "downshift run -- python3 x.py --job 7", "downshift run -- python3 x.py --job 7"),
            ("--job", "downshift run my.yaml --job-name x", "downshift run my.yaml --job-name x"),
        ] {
            assert_eq!(without_option(line, option), without);
        }
    }

    #[test]
    fn an_option_comes_before_a_typed_command() {
        let of = |line| with_option(line, "--from x-1");
        assert_eq!(of("downshift run my.yaml --headless"), "downshift run my.yaml --headless --from x-1");
        assert_eq!(of("downshift run -- python3 x.py -- 7"), "downshift run --from x-1 -- python3 x.py -- 7");
    }

    #[test]
    fn a_typed_command_follows_two_dashes() {
        assert_eq!(typed_command("downshift run --headless -- python3 x.py -- 7"), Some("python3 x.py -- 7"));
        assert_eq!(typed_command("downshift run my.yaml --headless"), None);
    }

    #[test]
    fn only_a_run_is_started_anew_by_its_command_line() {
        let of = |words: &str| begun_by(&format!("2026-11-25T10:00:00Z  {words}"));
        let wanted = Some("downshift run -- python3 train.py --lr '1 e'".to_owned());
        assert_eq!(of("./downshift run -- python3 train.py --lr '1 e'"), wanted);
        assert_eq!(of("'/a b/downshift' run -- python3 train.py --lr '1 e'"), wanted);
        for other in ["downshift adopt --pid 7", "downshift", "downshift runs", "'broken"] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(begun_by(""), None);
    }

    #[test]
    fn overrides_are_read_from_the_line_that_began_the_run() {
        let line = "downshift run my.yaml --set optimizer.lr=0.004 --headless '--set=data.path=a b' --set 'x=c d' \
                    -- python train.py --set other=1";
        assert_eq!(overrides_in(line), ["optimizer.lr=0.004", "data.path=a b", "x=c d"]);
        assert_eq!(overrides_in("downshift run my.yaml --setup=1"), [""; 0]);
    }
}
