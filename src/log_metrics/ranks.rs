//! The processes of a distributed training may all print: the lowest rank that names steps counts, if possible with a loss. A rank
//! that falls silent gives way to one that goes on.
//!
//! ```text
//! [RANK 0] step 5 loss 2.5      counts
//! [RANK 1] step 5 loss 2.7      is left out
//! 1: step 5 loss 2.7            a rank if `0: step 5` and `1: step 5` alternate for some steps; else an epoch, perhaps
//! ```

use super::bar::Bar;
use super::line::Line;
use super::names;
use super::prefix::find_rank;
use std::collections::BTreeMap;

/// Steps at which two numbers before colons must agree to be ranks.
const AGREEMENTS: u64 = 3;
/// Steps that another rank must go on for while the one that counts is silent.
const TAKES_OVER: usize = 3;

/// A line behind the rank of its process.
#[derive(Debug, PartialEq)]
pub enum Ranked<'a> {
    /// It counts, or names no rank.
    Counts(&'a str),
    /// Another rank reported these values.
    Other(Vec<(String, f64)>),
    /// The rank of these lines counts from now on.
    TakesOver(Vec<String>),
}

/// The ranks of one stream.
#[derive(Debug, Default)]
pub struct Ranks {
    /// The newest step of the rank whose steps count.
    steps: Option<Newest>,
    /// The lowest rank that reported values without a step.
    values: Option<u32>,
    /// Lines of other ranks with steps that the one that counts has not reached.
    ahead: BTreeMap<u32, Vec<(u64, String)>>,
    numbers: Numbers,
}

/// The newest step that a rank named.
#[derive(Debug, Clone, Copy)]
struct Newest {
    rank: u32,
    step: u64,
    /// The rank has named a loss beside a step.
    has_loss: bool,
}

impl Newest {
    /// Reports whether the steps of its rank count instead of those of another one.
    fn outranks(self, other: Self) -> bool {
        let is_lower = self.rank < other.rank && self.step >= other.step;
        (self.has_loss && !other.has_loss) || (is_lower && self.has_loss == other.has_loss)
    }
}

impl Ranks {
    /// Reads a line.
    pub fn read<'a>(&mut self, text: &'a str) -> Ranked<'a> {
        let Some((rank, rest)) = find_rank(text).and_then(|rank| Some((rank, text.get(rank.end..)?))) else {
            return Ranked::Counts(text);
        };
        let bar = Bar::read(rest);
        let line = if bar.is_some() { Line::default() } else { Line::read(rest) };
        if bar.is_none() && !line.reports_metrics() {
            return Ranked::Counts(text);
        }
        let names_loss = bar.as_ref().is_some_and(|bar| bar.postfix.contains("loss")) || names_loss(&line);
        let count = bar.map(|bar| bar.count).or(line.step);
        if !rank.is_certain {
            let is_numbered = text[..rank.end].trim_end().ends_with(':');
            let Some(step) = count.filter(|_| is_numbered) else { return Ranked::Counts(text) };
            if !self.numbers.are_ranks(rank.number, step) {
                return Ranked::Counts(text);
            }
        }
        match count.filter(|_| !line.is_evaluation && (line.values.is_empty() || line.has_other_than_evaluation())) {
            Some(step) => self.take_step(Newest { rank: rank.number, step, has_loss: names_loss }, rest, line.values),
            None => self.take_values(rank.number, rest, line.values),
        }
    }

    fn take_step<'a>(&mut self, mut new: Newest, rest: &'a str, values: Vec<(String, f64)>) -> Ranked<'a> {
        let Some(newest) = self.steps.filter(|newest| newest.rank != new.rank && !new.outranks(*newest)) else {
            new.has_loss |= self.steps.is_some_and(|newest| newest.rank == new.rank && newest.has_loss);
            self.steps = Some(new);
            self.ahead.clear();
            return Ranked::Counts(rest);
        };
        let lines = self.ahead.entry(new.rank).or_default();
        let is_ahead = new.step > lines.last().map_or(newest.step, |(last, _)| *last);
        if is_ahead && new.has_loss == newest.has_loss {
            lines.push((new.step, rest.to_owned()));
        }
        if lines.len() < TAKES_OVER {
            return Ranked::Other(values);
        }
        let lines = std::mem::take(lines).into_iter().map(|(_, line)| line).collect();
        self.steps = Some(new);
        self.ahead.clear();
        Ranked::TakesOver(lines)
    }

    /// Takes values without a step. A rank that names the steps may leave the evaluation to another one.
    fn take_values<'a>(&mut self, rank: u32, rest: &'a str, values: Vec<(String, f64)>) -> Ranked<'a> {
        let lowest = self.values.map_or(rank, |lowest| lowest.min(rank));
        self.values = Some(lowest);
        if rank == lowest || self.steps.is_some_and(|newest| newest.rank == rank) {
            return Ranked::Counts(rest);
        }
        Ranked::Other(values)
    }
}

fn names_loss(line: &Line) -> bool {
    line.values.iter().any(|(name, _)| names::is_loss(name) && !names::is_of_evaluation(name))
}

/// Numbers before colons: ranks, epochs, folds or steps.
#[derive(Debug, Default)]
struct Numbers {
    newest: Option<(u32, u64)>,
    /// The steps at which two numbers agreed one after the other, and the newest of them.
    agreements: u64,
    agreed: Option<u64>,
}

impl Numbers {
    /// Reports whether they are ranks. Epochs that end at the same step agree as well, at that step alone.
    fn are_ranks(&mut self, number: u32, step: u64) -> bool {
        let before = self.newest.replace((number, step));
        let agrees = before.is_some_and(|(known, last)| known != number && last == step);
        if agrees && self.agreed.replace(step) != Some(step) {
            self.agreements += 1;
        }
        self.agreements >= AGREEMENTS
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
    fn the_lowest_rank_that_names_steps_counts() {
        for name in [
            "[RANK {}] ",
            "[rank{}]: ",
            "[rank: {}] ",
            "{}: ",
            "[1,{}]<stdout>:",
            "Rank {}: ",
            "2026-01-01 10:00:00 [rank{}]:",
        ] {
            // A number alone becomes a rank after some steps.
            let from = if name == "{}: " { 4 } else { 1 };
            for ranks in [[0, 1, 2], [2, 0, 1], [3, 1, 2]] {
                let mut output = String::new();
                for step in 1..=6 {
                    for rank in ranks {
                        let prefix = name.replace("{}", &rank.to_string());
                        let _ = writeln!(output, "{prefix}loading part {step}\n{prefix}step {step} loss {step}.{rank}");
                    }
                }
                let lowest = ranks.iter().min().unwrap();
                let wanted: Vec<_> =
                    (from..=6).map(|step| (Some(step), format!("{step}.{lowest}").parse().unwrap())).collect();
                let found = losses(&output);
                assert_eq!((found.len(), &found[found.len() - wanted.len()..]), (6, &wanted[..]), "{name} {ranks:?}");
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

    #[test]
    fn a_rank_that_names_no_step_silences_none() {
        for line in [
            "[rank0]: learning rate: 0.0001, batch size: 32",
            "[rank0]: lr 0.0001",
            "[rank0]: validation loss at iteration 0 | lm loss value: 7.1 |",
            "[rank0]: val loss 2.0",
            "[rank0]: step 0 lr 0.0001",
            "[rank0]: Map: 100%|██████████| 900/900 [00:01<00:00,  2.0it/s]",
        ] {
            let mut output = format!("{line}\n");
            for step in 1..=6 {
                let _ = writeln!(output, "[rank7]: step {step} loss {step}.5");
                if step == 3 {
                    let _ = writeln!(output, "{line}");
                }
            }
            let steps: Vec<_> = losses(&output).iter().filter_map(|(step, _)| *step).collect();
            assert_eq!(steps, [1, 2, 3, 4, 5, 6], "{line}");
        }
    }

    #[test]
    fn a_rank_that_goes_on_takes_over_from_one_that_fell_silent() {
        let lines = |rank: u32, steps: std::ops::RangeInclusive<u64>| {
            steps.map(|step| format!("[gpu{rank}] step {step} loss {step}.{rank}\n")).collect::<Vec<_>>().concat()
        };
        let steps = |output: &str| losses(output).iter().filter_map(|(step, _)| *step).collect::<Vec<_>>();
        let found = losses(&(lines(0, 1..=3) + &lines(1, 4..=6)));
        assert_eq!(found[3..], [(Some(4), 4.1), (Some(5), 5.1), (Some(6), 6.1)]);
        // Each rank writes its lines in blocks.
        let blocks =
            lines(1, 1..=10) + &lines(0, 1..=10) + &lines(1, 11..=20) + &lines(0, 11..=20) + &lines(0, 21..=22);
        assert_eq!(steps(&blocks), (1..=22).collect::<Vec<_>>());
        // A rank that is a little ahead takes nothing over.
        let found = losses(&(lines(0, 1..=1) + &lines(1, 1..=3) + &lines(0, 2..=4)));
        assert_eq!(found, [(Some(1), 1.0), (Some(2), 2.0), (Some(3), 3.0), (Some(4), 4.0)]);
    }

    #[test]
    fn epochs_and_folds_before_a_colon_are_no_ranks() {
        let epochs: Vec<String> = (0..6).map(|epoch| format!("{epoch}: step 100 loss {}.5\n", 9 - epoch)).collect();
        assert_eq!(losses(&epochs.concat()).last(), Some(&(Some(100), 4.5)), "an epoch each, of as many steps");
        let folds: Vec<String> = [0, 1, 2, 0]
            .iter()
            .flat_map(|fold| (1..=3).map(move |step| format!("{fold}: step {step} loss {fold}.{step}\n")))
            .collect();
        let mut ranks = super::Ranks::default();
        assert!(
            folds.concat().lines().all(|line| ranks.read(line) == super::Ranked::Counts(line)),
            "folds one after the other"
        );
    }
}
