//! The text before a program's own words: times and levels of loggers, names of processes, bars without a line end.
//!
//! ```text
//! 2026-11-20T10:11:12Z [rank1]: Killed
//! ╰─ stamp ──────────╯ ╰─────╯  ╰────╯ the program's words
//! ```

use crate::config::document;
use regex::bytes::{Regex, RegexBuilder};
use serde::Deserialize;
use std::sync::LazyLock;

const SHIPPED: &str = include_str!("../../assets/prefixes.yaml");

// None only if the shipped file is broken, which a test would find.
static PREFIXES: LazyLock<Option<Prefixes>> = LazyLock::new(Prefixes::read);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PrefixFile {
    stamps: Vec<String>,
    processes: Vec<String>,
    ambiguous: Vec<String>,
    bar: String,
}

#[derive(Debug)]
struct Prefixes {
    stamps: Regex,
    /// Stamps, and processes that are unmistakable.
    certain: Regex,
    any: Regex,
    bar: Regex,
    /// Each kind of process alone; a group is its rank.
    processes: Vec<Regex>,
}

impl Prefixes {
    fn read() -> Option<Self> {
        let file: PrefixFile = document::read("assets/prefixes.yaml", SHIPPED, |_| Vec::new()).ok()?;
        let compile = |pattern: &str| RegexBuilder::new(pattern).unicode(false).build().ok();
        let (stamps, certain) = (file.stamps.join("|"), [file.stamps.join("|"), file.processes.join("|")].join("|"));
        let any = format!("{certain}|{}", file.ambiguous.join("|"));
        let of_process = |process: &String| compile(&format!("^(?:{stamps})*(?:{process})"));
        Some(Self {
            stamps: compile(&format!("^(?:{stamps})+"))?,
            certain: compile(&format!("^(?:{certain})+"))?,
            any: compile(&format!("^(?:{any})+"))?,
            bar: compile(&format!("^(?:{any})*{}", file.bar))?,
            processes: file.processes.iter().chain(&file.ambiguous).map(of_process).collect::<Option<_>>()?,
        })
    }
}

fn end_of(line: &[u8], regex: impl Fn(&Prefixes) -> &Regex) -> usize {
    PREFIXES.as_ref().and_then(|prefixes| regex(prefixes).find(line)).map_or(0, |found| found.end())
}

/// Returns a line without its times and levels.
pub fn without_stamps(line: &[u8]) -> &[u8] {
    &line[end_of(line, |prefixes| &prefixes.stamps)..]
}

/// Returns a line without times, levels and unmistakable names of processes.
pub fn without_launchers(line: &[u8]) -> &[u8] {
    &line[end_of(line, |prefixes| &prefixes.certain)..]
}

/// Returns where the program's own words begin.
pub fn text_start(line: &[u8]) -> usize {
    end_of(line, |prefixes| &prefixes.any)
}

/// Returns where the text behind a progress bar begins, if there is any.
pub fn after_bar(line: &[u8]) -> Option<usize> {
    let end = line.contains(&b'|').then(|| end_of(line, |prefixes| &prefixes.bar)).filter(|end| *end > 0)?;
    let end = end + line[end..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    (end < line.len()).then_some(end)
}

/// Returns the rank that the prefix of a line names.
pub fn rank_of(line: &str) -> Option<u32> {
    // The prefix of a traceback comes without the space behind it.
    let line = format!("{line} ");
    let named = PREFIXES.as_ref()?.processes.iter().find_map(|process| process.captures(line.as_bytes())?.get(1))?;
    std::str::from_utf8(named.as_bytes()).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{after_bar, rank_of, text_start, without_launchers, without_stamps};

    #[test]
    fn the_programs_words_begin_behind_every_prefix() {
        for prefix in [
            "",
            "[rank0]: ",
            "[rank0]:",
            "[default12]:",
            "[rank: 3] ",
            "[1,0]<stderr>:",
            "[2]<stdout>:",
            "[prterun-node1-4711@1,12]<stdout>: ",
            "[1,mpirank:3,algo-1]<stdout>:",
            "[0]: ",
            "[3] ",
            "0: ",
            " 12: ",
            "(RayTrainWorker pid=4711) ",
            "(RayTrainWorker pid=4711, ip=10.0.0.2) ",
            "(pid=4711) ",
            "(raylet, ip=10.0.0.2) ",
            "trainer-1  | ",
            "0|train  | ",
            "[pod/trainer-0/pytorch] ",
            "node1: ",
            "ip-10-0-0-2.ec2.internal: ",
            "10.0.0.2: ",
            "2026-11-20T10:11:12.123456789Z ",
            "2026-11-20T10:11:12.123456789Z stderr F ",
            "2026-11-20 10:11:12,345 - trainer.core - ERROR - ",
            "2026-11-20 10:11:12.345 | ERROR    | train:main:12 - ",
            "[2026-11-20 10:11:12,345] [ERROR] ",
            "[ERROR|trainer.py:607] 2026-11-20 10:11:12,345 >> ",
            "10:11:12-093626 ERROR    ",
            "Nov 20 10:11:12 node1 python[4711]: ",
            "Nov  2 10:11:12 ",
            "[ 8123.114312] ",
            "ERROR:root:",
            "2026-11-20T10:11:12Z [rank1]: ",
            "trainer-1  | [rank1]: ",
            "node1: [rank1]: ",
        ] {
            for text in [
                "Killed",
                "[1]+  Killed                  python train.py",
                "line 3: 999 Killed   python t.py",
                "{'a': 1}",
            ] {
                if prefix == "[3] " && text != "Killed" {
                    continue;
                }
                let line = format!("{prefix}{text}");
                assert_eq!(&line[text_start(line.as_bytes())..], text, "{line}");
            }
        }
        for text in [
            "[1]  + 4711 killed     python train.py",
            "[1]    4711 killed     python train.py",
            "RuntimeError: x",
            "a.sh: line 3: x",
        ] {
            assert_eq!(text_start(text.as_bytes()), 0, "{text}");
        }
    }

    #[test]
    fn stamps_go_and_the_name_of_the_process_stays() {
        let line = b"2026-11-20T10:11:12Z [rank1]: Traceback";
        assert_eq!(without_stamps(line), b"[rank1]: Traceback");
        assert_eq!(without_launchers(line), b"Traceback");
        assert_eq!(without_launchers(b"[1,2]<stderr>:12: loss 2.0"), b"12: loss 2.0", "a step, perhaps");
    }

    #[test]
    fn a_bar_may_stand_before_a_line() {
        let behind = |line: &str| after_bar(line.as_bytes()).map(|at| line[at..].to_owned());
        let bar = "steps:  41%|████      | 820/2000 [1:10:02<1:40:11,  5.09s/it, loss=0.27]";
        assert_eq!(behind(&format!("{bar}Killed")).as_deref(), Some("Killed"));
        assert_eq!(behind(&format!("[rank0]: {bar} Killed")).as_deref(), Some("Killed"));
        assert_eq!(behind(bar), None);
        assert_eq!(behind("| a | b |"), None);
    }

    #[test]
    fn a_rank_is_known_by_its_prefix() {
        for (line, rank) in [
            ("[rank1]: x", Some(1)),
            ("[default12]:x", Some(12)),
            ("[rank0]:[E1127 x]", Some(0)),
            ("[rank0]:", Some(0)),
            ("[1,3]<stderr>:x", Some(3)),
            ("12: x", Some(12)),
            ("2026-11-20T10:11:12Z [rank1]: x", Some(1)),
            ("[1/2] x", None),
            ("node1: x", None),
            ("x [rank1]: y", None),
        ] {
            assert_eq!(rank_of(line), rank, "{line}");
        }
    }
}
