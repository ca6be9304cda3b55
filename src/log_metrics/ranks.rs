//! The processes of a distributed training may all print: the lowest rank that reports progress counts.
//!
//! ```text
//! [RANK 0] step 5 loss 2.5      counts
//! [RANK 1] step 5 loss 2.7      is left out
//! 1: step 5 loss 2.7            a rank if `0: step 5` came before; else an epoch, perhaps
//! ```

use super::bar::Bar;
use super::line::Line;
use super::prefix::find_rank;

/// A line behind the rank of its process.
#[derive(Debug, PartialEq)]
pub enum Ranked<'a> {
    /// It counts, or names no rank.
    Counts(&'a str),
    /// Another rank reported these values.
    Other(Vec<(String, f64)>),
}

/// The ranks of one stream.
#[derive(Debug, Default)]
pub struct Ranks {
    /// The lowest one that reported progress.
    lowest: Option<u32>,
    /// Numbers before colons are ranks: they went back, or two of them named the same step.
    is_certain: bool,
    /// The newest of these numbers, and the step behind it.
    newest: Option<(u32, Option<u64>)>,
}

impl Ranks {
    /// Reads a line.
    pub fn read<'a>(&mut self, text: &'a str) -> Ranked<'a> {
        let Some((rank, rest)) = find_rank(text).and_then(|rank| Some((rank, text.get(rank.end..)?))) else {
            return Ranked::Counts(text);
        };
        let is_bar = Bar::read(rest).is_some();
        let line = if is_bar { Line::default() } else { Line::read(rest) };
        if !is_bar && !line.reports_metrics() {
            return Ranked::Counts(text);
        }
        if !rank.is_certain {
            let is_numbered = text[..rank.end].trim_end().ends_with(':') && (is_bar || line.step.is_some());
            if !is_numbered {
                return Ranked::Counts(text);
            }
            let before = self.newest.replace((rank.number, line.step));
            self.is_certain |= before.is_some_and(|(number, step)| {
                rank.number < number || (rank.number > number && step.is_some() && step == line.step)
            });
        }
        if (rank.is_certain || self.is_certain) && self.lowest.is_some_and(|lowest| lowest < rank.number) {
            return Ranked::Other(line.values);
        }
        self.lowest = Some(rank.number);
        Ranked::Counts(rest)
    }
}

#[cfg(test)]
mod tests {
    use crate::log_metrics::OutputReader;
    use std::fmt::Write as _;

    fn losses(output: &str) -> Vec<(Option<u64>, f64)> {
        let (mut reader, mut readings) = (OutputReader::new(&[]), Vec::new());
        reader.push(output.as_bytes(), &mut readings);
        reader.finish(&mut readings);
        readings.iter().filter_map(|reading| Some((reading.step, reading.value("loss")?))).collect()
    }

    #[test]
    fn the_lowest_rank_that_reports_progress_counts() {
        for name in [
            "[RANK {}] ",
            "[rank{}]: ",
            "[rank: {}] ",
            "{}: ",
            "[1,{}]<stdout>:",
            "Rank {}: ",
            "2026-01-01 10:00:00 [rank{}]:",
        ] {
            for ranks in [[0, 1, 2], [2, 0, 1], [3, 1, 2]] {
                let mut output = String::new();
                for step in 1..=3 {
                    for rank in ranks {
                        let prefix = name.replace("{}", &rank.to_string());
                        let _ = writeln!(output, "{prefix}loading part {step}\n{prefix}step {step} loss {step}.{rank}");
                    }
                }
                let lowest = ranks.iter().min().unwrap();
                let wanted: Vec<_> =
                    (1..=3).map(|step| (Some(step), format!("{step}.{lowest}").parse().unwrap())).collect();
                assert_eq!(losses(&output), wanted, "{name} {ranks:?}");
            }
        }
    }

    #[test]
    fn a_number_before_a_line_may_be_that_of_an_epoch() {
        let output = "1: step 10 loss 3\n1: step 20 loss 2.5\n2: step 30 loss 2\n3: step 40 loss 1\n";
        assert_eq!(losses(output), [(Some(10), 3.0), (Some(20), 2.5), (Some(30), 2.0), (Some(40), 1.0)]);
        assert_eq!(
            losses("10:\tlearn: 0.5\ttotal: 2ms\n11:\tlearn: 0.4\ttotal: 3ms\n"),
            [(Some(10), 0.5), (Some(11), 0.4)]
        );
    }

    #[test]
    fn nan_on_another_rank_is_evidence() {
        let found = losses("[rank0]: step 1 loss 2\n[rank1]: step 1 loss nan\n[rank0]: step 2 loss 1.5\n");
        assert!(found.len() == 3 && found.iter().any(|(step, loss)| step.is_none() && loss.is_nan()), "{found:?}");
    }
}
