//! Compares the ranks of a training: which one the others wait for in each step, and whose loss departs from theirs. Pure.

use super::rank_files::Losses;
use crate::protocol::ranks::{RankMark, RankRow, median_of_sorted};
use std::collections::BTreeMap;
use std::time::Duration;

/// Own time of a straggler: over the median of the others, and at least this much longer, in milliseconds.
const SLOW: (f64, f64) = (1.25, 2.0);
/// Difference of a mean loss from the median of the others that is strong: in standard errors, and in its own size.
const APART: (f64, f64) = (6.0, 0.25);
/// How long a rank must differ before it is named in the journal.
const PERSISTS: Duration = Duration::from_secs(30);
/// Steps for which a loss that was not finite marks its rank. The companion keeps the first one of as many steps.
const RECENT: u64 = 200;
/// Losses in a mean.
const LOSSES: u64 = 64;

/// The mean loss of a rank over its last losses.
#[derive(Debug, Clone, Copy, Default)]
pub struct MeanLoss {
    begin: Losses,
    /// The mean, and its standard error.
    newest: Option<(f64, f64)>,
}

impl MeanLoss {
    /// Takes in the sums so far.
    pub fn record(&mut self, losses: Losses) {
        let count = losses.count.saturating_sub(self.begin.count);
        if count < LOSSES {
            return;
        }
        let number = count as f64;
        let mean = (losses.sum - self.begin.sum) / number;
        let variance = ((losses.squares - self.begin.squares) / number - mean * mean).max(0.0);
        self.newest = Some((mean, (variance / number).sqrt()));
        self.begin = losses;
    }
}

/// What the marks are decided by, beside the row of a rank.
#[derive(Debug, Clone, Copy)]
pub struct Sign {
    /// Its mean loss.
    pub loss: MeanLoss,
    /// Its first step of late whose loss was not finite.
    pub bad_step: Option<u64>,
}

/// The marks so far.
#[derive(Debug, Default)]
pub struct RankMarks {
    /// Since when a rank differs, and whether it was named.
    since: BTreeMap<(u32, &'static str), (Duration, bool)>,
}

impl RankMarks {
    /// Marks the ranks that differ, one sign in each row. Returns what to tell the user: each once, while it lasts.
    pub fn mark(&mut self, rows: &mut [RankRow], signs: &[Sign], now: Duration) -> Vec<String> {
        let bad = find_first_bad(rows, signs);
        let found: Vec<Option<(RankMark, String)>> = (0..rows.len())
            .map(|at| {
                let bad = bad.filter(|(first, _)| *first == at).map(|(_, step)| {
                    let text =
                        format!("the loss of step {step} is NaN or infinite, and that of no other rank was before");
                    (RankMark::NonFinite, text)
                });
                let straggler = || Some((RankMark::Straggler, describe_slow(rows, at)?));
                let apart = || Some((RankMark::LossApart, describe_apart(signs, at)?));
                bad.or_else(apart).or_else(straggler)
            })
            .collect();
        let world = rows.len();
        let mut texts = Vec::new();
        let before = std::mem::take(&mut self.since);
        for (row, found) in rows.iter_mut().zip(found) {
            let Some((mark, text)) = found else { continue };
            row.mark = Some(mark);
            let (since, mut named) = before.get(&(row.rank, mark.word())).copied().unwrap_or((now, false));
            let is_certain = mark == RankMark::NonFinite || now.saturating_sub(since) >= PERSISTS;
            if is_certain && !std::mem::replace(&mut named, true) {
                texts.push(format!("rank {} of {world}: {text}", row.rank));
            }
            self.since.insert((row.rank, mark.word()), (since, named));
        }
        texts
    }
}

/// Finds the rank whose loss was the first that was not finite, once every rank has passed that step; none if several had such
/// a loss in the same step.
fn find_first_bad(rows: &[RankRow], signs: &[Sign]) -> Option<(usize, u64)> {
    let recent = |(row, sign): (&RankRow, &Sign)| sign.bad_step.filter(|step| row.step.saturating_sub(*step) < RECENT);
    let bad = || rows.iter().zip(signs).map(recent).enumerate().filter_map(|(at, step)| Some((at, step?)));
    let (at, step) = bad().min_by_key(|(_, step)| *step)?;
    let is_alone = bad().filter(|(_, other)| *other == step).count() == 1;
    (is_alone && rows.iter().all(|row| row.step >= step)).then_some((at, step))
}

fn median_of_others(values: impl Iterator<Item = (usize, f64)>, at: usize) -> Option<f64> {
    let mut others: Vec<f64> = values.filter(|(other, _)| *other != at).map(|(_, value)| value).collect();
    others.sort_by(f64::total_cmp);
    (!others.is_empty()).then(|| median_of_sorted(&others))
}

fn describe_slow(rows: &[RankRow], at: usize) -> Option<String> {
    let own = rows[at].own_ms?;
    let times = rows.iter().enumerate().filter_map(|(at, row)| Some((at, row.own_ms?)));
    let usual = median_of_others(times, at)?;
    let (factor, least) = SLOW;
    if own < usual * factor || own < usual + least {
        return None;
    }
    let data = rows[at].data_wait_ms.unwrap_or(0.0);
    let part = if data > own / 2.0 { "waiting for data" } else { "computing" };
    Some(format!(
        "a straggler: {own:.0} ms of its own in a step, mostly {part}; the others take {usual:.0} ms and wait for it"
    ))
}

fn describe_apart(signs: &[Sign], at: usize) -> Option<String> {
    let (mean, error) = signs[at].loss.newest?;
    let means = signs.iter().enumerate().filter_map(|(at, sign)| Some((at, sign.loss.newest?.0)));
    let usual = median_of_others(means, at)?;
    // With two ranks each is the other's median: neither is known to be the odd one.
    if signs.iter().filter(|sign| sign.loss.newest.is_some()).count() < 3 {
        return None;
    }
    let errors = signs.iter().enumerate().filter_map(|(at, sign)| Some((at, sign.loss.newest?.1)));
    let noise = error.max(median_of_others(errors, at)?);
    let difference = (mean - usual).abs();
    let (in_errors, in_size) = APART;
    let is_apart = difference > in_errors * noise && difference > in_size * usual.abs();
    is_apart.then(|| format!("its mean loss is {mean:.4}, that of the others {usual:.4}: does it read other data?"))
}

#[cfg(test)]
mod tests {
    use super::{LOSSES, MeanLoss, PERSISTS, RECENT, RankMarks, Sign};
    use crate::harness::rank_files::Losses;
    use crate::protocol::blank::rank as row;
    use crate::protocol::ranks::{RankMark, RankPhase, RankRow};
    use std::time::Duration;

    fn rows(own: &[f64]) -> Vec<RankRow> {
        let row = |(rank, ms): (usize, &f64)| RankRow { own_ms: Some(*ms), ..row(rank as u32, 50, RankPhase::Data) };
        own.iter().enumerate().map(row).collect()
    }

    fn sign(mean: f64, bad_step: Option<u64>) -> Sign {
        let mut loss = MeanLoss::default();
        let count = LOSSES as f64;
        loss.record(Losses { count: LOSSES, newest: mean, sum: mean * count, squares: (mean * mean + 0.01) * count });
        Sign { loss, bad_step }
    }

    fn marks_of(rows: &[RankRow]) -> Vec<Option<RankMark>> {
        rows.iter().map(|row| row.mark).collect()
    }

    #[test]
    fn a_straggler_is_marked_at_once_and_named_once_when_it_lasts() {
        let (mut marks, signs) = (RankMarks::default(), [sign(1.0, None); 3]);
        let mut texts = |seconds, own: &[f64]| {
            let mut rows = rows(own);
            let texts = marks.mark(&mut rows, &signs, Duration::from_secs(seconds));
            (marks_of(&rows)[1], texts)
        };
        assert_eq!(texts(0, &[10.0, 11.0, 10.0]), (None, vec![]), "a little slower");
        assert_eq!(texts(0, &[0.2, 0.9, 0.2]), (None, vec![]), "less than a millisecond");
        let slow = [10.0, 40.0, 10.0];
        assert_eq!(texts(1, &slow), (Some(RankMark::Straggler), vec![]));
        let (_, named) = texts(1 + PERSISTS.as_secs(), &slow);
        assert!(
            named[0].starts_with("rank 1 of 3: a straggler: 40 ms of its own in a step, mostly computing"),
            "{named:?}"
        );
        assert_eq!(texts(90, &slow).1, Vec::<String>::new());
        assert_eq!(texts(91, &[10.0; 3]).0, None);
        assert_eq!(texts(92, &slow).1, Vec::<String>::new(), "it begins anew");
    }

    #[test]
    fn the_first_loss_that_is_not_finite_is_named_once_all_have_passed_its_step() {
        let mut marks = RankMarks::default();
        let mut all = rows(&[10.0; 3]);
        let mut told = |rows: &mut [RankRow], bad: [Option<u64>; 3]| {
            let signs = bad.map(|step| sign(1.0, step));
            marks.mark(rows, &signs, Duration::ZERO)
        };
        assert!(told(&mut all, [None, Some(51), None]).is_empty(), "another rank may have such a loss in step 51 too");
        assert!(told(&mut all, [Some(40), Some(40), None]).is_empty(), "both at once");
        let texts = told(&mut all, [Some(49), None, Some(48)]);
        assert_eq!(
            texts,
            ["rank 2 of 3: the loss of step 48 is NaN or infinite, and that of no other rank was before"]
        );
        assert_eq!(marks_of(&all), [None, None, Some(RankMark::NonFinite)]);
        let mut later = rows(&[10.0, 10.0, 40.0]);
        for row in &mut later {
            row.step = 48 + RECENT;
        }
        assert!(told(&mut later, [None, None, Some(48)]).is_empty());
        assert_eq!(marks_of(&later), [None, None, Some(RankMark::Straggler)], "an old loss hides nothing");
    }

    #[test]
    fn a_loss_far_from_the_others_is_marked_where_the_odd_one_is_known() {
        let marked = |means: &[f64]| {
            let (mut rows, signs) = (rows(&vec![10.0; means.len()]), means.iter().map(|mean| sign(*mean, None)));
            let _ = RankMarks::default().mark(&mut rows, &signs.collect::<Vec<_>>(), Duration::ZERO);
            marks_of(&rows)
        };
        assert_eq!(marked(&[1.0, 1.02, 2.0, 0.99]), [None, None, Some(RankMark::LossApart), None]);
        assert_eq!(marked(&[1.0, 1.2, 1.1, 0.9]), [None; 4], "a fifth more");
        assert_eq!(marked(&[1.0, 2.0]), [None; 2]);
    }

    #[test]
    fn a_mean_is_of_the_newest_losses() {
        let mut loss = MeanLoss::default();
        loss.record(Losses { count: 10, newest: 1.0, sum: 10.0, squares: 10.0 });
        assert_eq!(loss.newest, None);
        loss.record(Losses { count: 100, newest: 1.0, sum: 300.0, squares: 900.0 });
        assert_eq!(loss.newest, Some((3.0, 0.0)));
        loss.record(Losses { count: 200, newest: 1.0, sum: 400.0, squares: 1000.0 });
        assert_eq!(loss.newest, Some((1.0, 0.0)));
    }
}
