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

/// A rank in a pattern.
const RANK: &str = r"(\d{1,5})";

// None only if the shipped file is broken, which a test would find.
static PREFIXES: LazyLock<Option<Prefixes>> = LazyLock::new(Prefixes::read);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PrefixFile {
    times: Vec<String>,
    levels: Vec<String>,
    processes: Vec<String>,
    ambiguous: Vec<String>,
    bar: String,
}

#[derive(Debug)]
struct Prefixes {
    time: Regex,
    stamps: Regex,
    /// Stamps, and processes that are unmistakable.
    certain: Regex,
    any: Regex,
    bar: Regex,
    /// A process that is named by its rank, which is a group.
    ranks: Regex,
    /// The number of groups of processes that are unmistakable.
    certain_ranks: usize,
}

impl Prefixes {
    fn read() -> Option<Self> {
        let file: PrefixFile = document::read("assets/prefixes.yaml", SHIPPED, |_| Vec::new()).ok()?;
        let compile = |pattern: &str| RegexBuilder::new(pattern).unicode(false).build().ok();
        let times = file.times.join("|");
        let stamps = format!("{times}|{}", file.levels.join("|"));
        let certain = format!("{stamps}|{}", file.processes.join("|"));
        // `[3] ` before any other prefix is one, too: `[3] [rank0]: `.
        let any = format!(r"{certain}|{}|\[\d{{1,5}}\] (?:{certain})", file.ambiguous.join("|"));
        let (ranked, others): (Vec<&String>, Vec<&String>) =
            file.processes.iter().chain(&file.ambiguous).partition(|process| process.contains(RANK));
        let certain_ranks = file.processes.iter().filter(|process| process.contains(RANK)).count();
        let join = |patterns: &[&String]| {
            patterns.iter().map(|pattern| format!("(?:{pattern})")).collect::<Vec<_>>().join("|")
        };
        Some(Self {
            time: compile(&times)?,
            // The indentation behind a time is the program's.
            stamps: compile(&format!("^(?:{stamps})+"))?,
            certain: compile(&format!("^(?:(?:{certain})+ *)+"))?,
            any: compile(&format!("^(?:(?:{any})+ *)+"))?,
            bar: compile(&format!("^(?:{any})*{}", file.bar))?,
            ranks: compile(&format!("^(?:{stamps}|{})*(?:{})", join(&others), join(&ranked)))?,
            certain_ranks,
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

/// Returns a text without its times and levels.
pub fn behind_stamps(text: &str) -> &str {
    text.get(text.len() - without_stamps(text.as_bytes()).len()..).unwrap_or(text)
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

/// The text before each line of one process. The times in it differ from line to line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinePrefix(Vec<String>);

impl LinePrefix {
    /// Reads the text before the first line.
    pub fn read(text: &str) -> Self {
        let Some(prefixes) = PREFIXES.as_ref() else { return Self(vec![text.to_owned()]) };
        let (mut parts, mut end) = (Vec::new(), 0);
        for time in prefixes.time.find_iter(text.as_bytes()) {
            parts.extend(text.get(end..time.start()).map(str::to_owned));
            end = time.end();
        }
        parts.extend(text.get(end..).map(str::to_owned));
        Self(parts)
    }

    /// Returns the text behind it; none if the line is that of another process.
    pub fn strip<'a>(&self, line: &'a str) -> Option<&'a str> {
        let (first, others) = self.0.split_first()?;
        others.iter().try_fold(line.strip_prefix(first.as_str())?, |rest, part| {
            let time = PREFIXES.as_ref()?.time.find(rest.as_bytes()).filter(|time| time.start() == 0)?;
            rest.get(time.end()..)?.strip_prefix(part.as_str())
        })
    }

    /// Returns it without the times.
    pub fn name(&self) -> String {
        self.0.concat()
    }
}

/// A rank before a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rank {
    /// Its number.
    pub number: u32,
    /// Nothing else is written this way: `12: ` may be a step, too.
    pub is_certain: bool,
    /// Where the text behind it begins.
    pub end: usize,
}

/// Returns the rank that the prefix of a line names.
pub fn find_rank(line: &str) -> Option<Rank> {
    let prefixes = PREFIXES.as_ref()?;
    let found = prefixes.ranks.captures(line.as_bytes())?;
    let (group, number) = found.iter().enumerate().skip(1).find_map(|(group, number)| Some((group, number?)))?;
    let number = std::str::from_utf8(number.as_bytes()).ok()?.parse().ok()?;
    Some(Rank { number, is_certain: group <= prefixes.certain_ranks, end: found.get(0)?.end() })
}

/// Returns the rank that the prefix of a line, or a prefix alone, names.
pub fn rank_of(line: &str) -> Option<u32> {
    // The prefix of a traceback comes without the space behind it.
    find_rank(&format!("{line} ")).map(|rank| rank.number)
}

#[cfg(test)]
mod tests {
    use super::{LinePrefix, after_bar, rank_of, text_start, without_launchers, without_stamps};

    /// Text before the words of a program.
    const BEFORE: [&str; 58] = [
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
        "[pod/trainer-0/pytorch] 2026-11-20T10:11:12.123456789Z ",
        "trainer-7d9f8b5c4-x2x9z pytorch ",
        "trainer-0 pytorch 2026-11-20T10:11:12.123456789Z ",
        "mnist-worker-0 pytorch ",
        "fine-tune-x2x9z main ",
        "llama-0 › main ",
        "llama-0 main 2026-11-20T10:11:12Z ",
        "trainer-1  | 2026-11-20 10:11:12,345   ",
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
        "2026-11-20T10:11:12+0000 node1 python[4711]: ",
        "2026-11-20T10:11:12.123456Z 01O ",
        "Fri Nov 20 10:11:12 2026[1,0]<stderr>:",
        "E1120 10:11:12.345678 4711 train.py:88] ",
        "[2026-11-20T10:11:12.123+0000] {subprocess.py:93} INFO - ",
        "(worker1, rank=1, pid=4711, ip=10.0.0.2) ",
        "team/trainer-0[pytorch]: ",
        "team trainer-7d9f8b5c4-x2x9z pytorch ",
        "ERROR\t2026-11-20 10:11:12 +0000\tworkerpool0-0\t",
        "trainer/0 ",
        "trainer-1  | [rank1]: ",
        "node1: [rank1]: ",
        "[3] [rank1]: ",
        "[3] [2026-11-20 10:11:12] ",
        "[node1] 2026-11-20 10:11:12,345 (trainer:338) INFO: ",
    ];

    #[test]
    fn the_programs_words_begin_behind_every_prefix() {
        for prefix in BEFORE {
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
            "resnet-50 model Killed",
            "gpt-2 run Killed",
            "checkpoint-45678 is corrupt",
            "layer-12b weights Killed",
            "bert-base-768d model Killed",
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
    fn the_prefix_of_a_process_has_other_times_in_each_line() {
        let prefix = LinePrefix::read("trainer-0 pytorch 2026-11-20T10:11:12Z [rank0]: ");
        assert_eq!(prefix.strip("trainer-0 pytorch 2026-11-20T10:11:13Z [rank0]:   File"), Some("  File"));
        assert_eq!(prefix.strip("trainer-1 pytorch 2026-11-20T10:11:13Z [rank0]: x"), None);
        assert_eq!(prefix.strip("trainer-0 pytorch x [rank0]: x"), None);
        assert_eq!(prefix.name(), "trainer-0 pytorch [rank0]: ");
        assert_eq!(LinePrefix::read("").strip("x"), Some("x"));
        assert_eq!(without_stamps(b"[2026-11-20 10:11:12]   File \"a.py\""), b"  File \"a.py\"");
        assert_eq!(without_stamps(b"[2026-11-20 10:11:12,345] [ERROR]   File \"a.py\""), b"  File \"a.py\"");
        assert_eq!(without_stamps(b"[2026-11-20 10:11:12] | loss | nan |"), b"| loss | nan |");
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
            ("[RANK 3] x", Some(3)),
            ("Rank 2: x", Some(2)),
            ("rank=2 | x", Some(2)),
            ("(RayTrainWorker pid=4711) [rank1]: x", Some(1)),
            ("rank: 64, alpha: 32", None),
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
