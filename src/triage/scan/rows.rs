//! Findings of one entry with no two steps between them. Every process of a training may print each of them.

use super::Finding;
use crate::log_metrics::prefix::{rank_of, text_start};
use std::collections::{BTreeMap, BTreeSet};

/// Texts of reductions that are told apart: more than any entry needs in a row.
const TEXTS: usize = 64;

/// In the lines of loss scalers that lower their scale, with a large or a small first letter.
const REDUCING: &str = "educing";

/// Findings of one entry in a row.
#[derive(Debug, Default)]
pub struct Row {
    /// The line of the newest one.
    line: u64,
    /// Those of each rank, and those that name none.
    processes: BTreeMap<Option<u32>, Lines>,
}

impl Row {
    /// Returns the line of the newest finding; 0 if there is none.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Adds a finding.
    pub fn push(&mut self, finding: &Finding) {
        self.line = finding.line;
        let text = &finding.text[text_start(finding.text.as_bytes())..];
        let rank = rank_of(&finding.text).or_else(|| named_rank(text));
        self.processes.entry(rank).or_default().push(text);
    }

    /// Returns how often it happened: the lines of one process.
    pub fn events(&self) -> u64 {
        self.processes.values().map(Lines::events).max().unwrap_or(0)
    }
}

/// Findings of one rank, or of several processes that name none: these print the same text one after the other.
#[derive(Debug, Default)]
struct Lines {
    count: u64,
    first: String,
    /// The number of the first ones with the same text.
    alike: u64,
    /// Those of a scale that was reduced: no process reduces it twice from the same value to the same.
    reductions: BTreeSet<String>,
}

impl Lines {
    fn push(&mut self, text: &str) {
        if self.count == 0 {
            text.clone_into(&mut self.first);
        }
        self.alike += u64::from(self.alike == self.count && self.first == text);
        self.count += 1;
        if self.reductions.len() < TEXTS && text.contains(REDUCING) {
            self.reductions.insert(text.to_owned());
        }
    }

    /// Divides by the processes, which only a text that changes can show.
    fn events(&self) -> u64 {
        match self.reductions.len() as u64 {
            0 if self.alike < self.count => self.count.div_ceil(self.alike),
            0 => self.count,
            reductions => reductions,
        }
    }
}

/// Returns the rank in `OVERFLOW! Rank 3 Skipping step`.
fn named_rank(text: &str) -> Option<u32> {
    let (_, rest) = text.split_once("ank ")?;
    rest.split(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use crate::triage::catalogue::Catalogue;
    use std::fmt::Write as _;

    fn names_endless_overflow(log: &str) -> bool {
        let scan = super::super::scan(&mut log.as_bytes(), &Catalogue::build(None).unwrap()).unwrap();
        scan.findings.iter().any(|finding| finding.name == "endless-overflow")
    }

    /// Skips of each process, at a scale that halves.
    fn skips(form: &str, steps: u32, ranks: u32) -> String {
        let mut log = String::new();
        for step in 0..steps {
            for rank in 0..ranks {
                let scale = 2_u64.pow(40 - step).to_string();
                let _ = writeln!(log, "{}", form.replace("{rank}", &rank.to_string()).replace("{scale}", &scale));
            }
        }
        log
    }

    #[test]
    fn the_skips_of_one_process_count() {
        for form in [
            "[deepspeed] OVERFLOW! Rank {rank} Skipping step. Attempted loss scale: {scale}, reducing to 7",
            "[rank{rank}]: Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {scale}.0",
            "2026-01-05 10:00:00,100 Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {scale}.0",
            "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {scale}.0",
        ] {
            assert!(!names_endless_overflow(&skips(form, 3, 8)), "{form}");
            assert!(!names_endless_overflow(&skips(form, 19, 2)), "{form}");
            assert!(names_endless_overflow(&skips(form, 20, 8)), "{form}");
            assert!(names_endless_overflow(&skips(form, 20, 1)), "{form}");
        }
        let once = "[deepspeed] OVERFLOW! Skipping step. Attempted loss scale: {scale}, reducing to {scale}0";
        assert!(!names_endless_overflow(&skips(once, 1, 64)), "64 processes");
        assert!(names_endless_overflow(&skips(once, 20, 64)));
        let fixed = "Gradient overflow.  Skipping step\n".repeat(20);
        assert!(names_endless_overflow(&fixed), "a scale that stays");
    }
}
