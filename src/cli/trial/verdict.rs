//! The verdict on a command's resume: a training that was killed and resumed beside an unbroken one. Pure.

use super::compare::{Agreement, Field, Pair, pairs, relative_difference};
use super::missing::{After, Missing, find_missing, is_far_off};
use super::trace::Trace;
use crate::format::{count, counted};
use std::fmt;

/// Losses that have to be compared after a resume.
pub const ENOUGH: u64 = 3;
/// Relative differences up to this one come from the order in which a device adds numbers, not from other data.
pub const NOISE: f64 = 1e-3;
/// Differences grow while a training goes on, so those after a resume may be larger than those before.
const GROWTH: f64 = 10.0;
/// Losses with at most this many decimals were rounded by the script.
const PRINTED: usize = 7;

/// Three starts of a command.
#[derive(Debug)]
pub struct Starts<'a> {
    /// The unbroken training.
    pub straight: &'a Trace,
    /// The one that was killed, up to that moment.
    pub killed: &'a Trace,
    /// The one that resumed.
    pub resumed: &'a Trace,
    /// The step of the checkpoint that it resumed from.
    pub checkpoint: u64,
}

/// The verdict.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Everything that was seen is identical.
    Exact,
    /// Two unbroken trainings differ by rounding, and the resumed one differs no more.
    WithinNoise,
    /// It reads the same data with other random numbers.
    SameData,
    /// It differs from a step on.
    Differs { step: u64, missing: Vec<Missing> },
    /// It began again from its first step.
    StartsOver,
    /// Two unbroken trainings differ from a step on; the parts that are missing all the same.
    Unreproducible { step: u64, missing: Vec<Missing> },
    /// Too few losses were seen.
    TooFew { losses: u64 },
}

/// A verdict and what it is based on.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    pub verdict: Verdict,
    /// The losses of two trainings before the kill.
    pub before: Agreement,
    pub after: After,
    /// Decimals of the losses, if the script rounded them.
    pub decimals: Option<usize>,
    /// The resumed command counted its steps from 1 again.
    pub counts_anew: bool,
    /// The largest relative difference of two unbroken trainings.
    pub noise: f64,
}

/// Judges the starts.
pub fn judge(starts: &Starts<'_>) -> Judgement {
    let Starts { straight, killed, checkpoint, .. } = *starts;
    let both = pairs(straight, killed, |_| true);
    let before = Field::Loss.compare(&both, 0.0);
    let noise = largest_difference(&both);
    let tolerance = if noise <= NOISE { noise * GROWTH } else { 0.0 };
    let count = counting(starts, tolerance);
    let shifted = starts.resumed.shifted(if count == Counting::Anew { checkpoint } else { 0 });
    let pairs_after = trim_averages(straight, checkpoint, pairs(straight, &shifted, |step| step > checkpoint));
    let compare = |field: Field| field.compare_stable(&both, &pairs_after, tolerance);
    let after = After {
        loss: compare(Field::Loss),
        rate: compare(Field::Rate),
        norm: compare(Field::Norm),
        scale: compare(Field::Scale),
        ids: compare(Field::Ids),
        random: compare(Field::Random),
    };
    let verdict = match (&before.difference, count) {
        (_, Counting::Over) => Verdict::StartsOver,
        (Some(difference), _) if noise > NOISE => {
            let missing = still_missing(straight, &pairs_after, &after);
            Verdict::Unreproducible { step: difference.step, missing }
        }
        _ => decide(straight, &pairs_after, &after, noise),
    };
    let most = [straight, starts.resumed].map(Trace::decimals).into_iter().max().unwrap_or(0);
    let decimals = (most <= PRINTED && after.loss.compared > 0).then_some(most);
    Judgement { verdict, before, after, decimals, counts_anew: count == Counting::Anew, noise }
}

fn decide(straight: &Trace, pairs: &[Pair<'_>], after: &After, noise: f64) -> Verdict {
    let all = [&after.loss, &after.rate, &after.norm, &after.scale, &after.ids, &after.random];
    let first = all.iter().filter_map(|agreement| agreement.difference.as_ref()).map(|found| found.step).min();
    let Some(step) = first else {
        return match after.loss.compared {
            losses if losses < ENOUGH => Verdict::TooFew { losses },
            _ if noise > 0.0 => Verdict::WithinNoise,
            _ => Verdict::Exact,
        };
    };
    let missing = find_missing(straight, pairs, after);
    if after.ids.holds() && missing == [Missing::RandomState] {
        return Verdict::SameData;
    }
    Verdict::Differs { step, missing }
}

/// Returns the parts that are missing although two unbroken trainings differ: their losses say nothing, and the random
/// numbers little.
fn still_missing(straight: &Trace, pairs: &[Pair<'_>], after: &After) -> Vec<Missing> {
    let stable = After { loss: Agreement::default(), random: Agreement::default(), ..after.clone() };
    let mut missing = find_missing(straight, pairs, &stable);
    if is_far_off(straight, pairs) {
        missing.insert(0, Missing::Weights);
    }
    missing
}

/// How the resumed command counts its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counting {
    /// On from its checkpoint.
    On,
    /// From 1 again, though it goes on.
    Anew,
    /// From 1 again, because it started over.
    Over,
}

fn counting(starts: &Starts<'_>, tolerance: f64) -> Counting {
    let Starts { straight, resumed, checkpoint, .. } = *starts;
    let (Some((begin, _)), Some((first, _))) = (straight.losses().next(), resumed.losses().next()) else {
        return Counting::On;
    };
    if first > begin {
        // A companion counts on from the checkpoint whatever the script does.
        let again = Field::Loss.compare(&pairs(&straight.shifted(checkpoint), resumed, |_| true), tolerance);
        let goes_on = Field::Loss.compare(&pairs(straight, resumed, |_| true), tolerance).holds();
        return if again.holds() && again.compared >= ENOUGH && !goes_on { Counting::Over } else { Counting::On };
    }
    if checkpoint <= begin {
        return Counting::On;
    }
    let distance = |offset: u64| {
        let shifted = resumed.shifted(offset);
        let both = pairs(straight, &shifted, |step| step <= checkpoint + offset);
        let all: Vec<f64> =
            both.iter().filter_map(|pair| Some((pair.straight.loss? - pair.other.loss?).abs())).collect();
        let same = Field::Loss.compare(&both, tolerance).holds();
        (!all.is_empty()).then(|| if same { 0.0 } else { all.iter().sum::<f64>() / all.len() as f64 })
    };
    match (distance(0), distance(checkpoint)) {
        (Some(over), Some(anew)) if anew < over => Counting::Anew,
        _ => Counting::Over,
    }
}

/// Removes the first loss after the resume if it is an average that began before: the resumed command has only the steps
/// since its checkpoint.
fn trim_averages<'a>(straight: &Trace, checkpoint: u64, mut pairs: Vec<Pair<'a>>) -> Vec<Pair<'a>> {
    let steps: Vec<u64> = straight.losses().map(|(step, _)| step).collect();
    let stride = steps.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap_or(1);
    let is_average = stride > 1 && !steps.contains(&checkpoint);
    if is_average && let Some(first) = pairs.iter().position(|pair| pair.straight.loss.is_some()) {
        pairs.drain(..=first);
    }
    pairs
}

fn largest_difference(pairs: &[Pair<'_>]) -> f64 {
    let losses = pairs.iter().filter_map(|pair| Some((pair.straight.loss?, pair.other.loss?)));
    // A NaN on one side only is a difference without a size.
    losses
        .filter(|(one, other)| !(one.is_nan() && other.is_nan()))
        .map(|(one, other)| relative_difference(one, other))
        .fold(0.0, |most, size| if size.is_nan() { f64::INFINITY } else { f64::max(most, size) })
}

impl Verdict {
    /// Reports whether the resume may be trusted, although its random numbers may differ.
    pub fn is_proven(&self) -> bool {
        matches!(self, Self::Exact | Self::WithinNoise | Self::SameData)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => formatter.write_str("exact: the resumed training equals the unbroken one"),
            Self::WithinNoise => formatter.write_str(
                "same data: the resumed training differs from the unbroken one no more than two unbroken ones do",
            ),
            Self::SameData => formatter
                .write_str("same data: the samples agree, the numbers do not; probably missing: the random state"),
            Self::Differs { step, missing } => {
                write!(formatter, "differs from step {} on{}", count(*step), Probably(missing))
            }
            Self::StartsOver => formatter.write_str(
                "starts over: the resumed command begins at its first step again, so it does not read its checkpoint; \
                 see `resume:` in the run file",
            ),
            Self::Unreproducible { step, missing } => write!(
                formatter,
                "not reproducible: two starts of this command differ from step {} on, without any kill; set its seeds \
                 (Python, NumPy, torch, the data loader's generator), then try again{}",
                count(*step),
                Probably(missing)
            ),
            Self::TooFew { losses } => write!(
                formatter,
                "unknown: only {} with a loss could be compared after the resume, {ENOUGH} are needed; let the script \
                 report its loss at each step (a tqdm bar with mininterval=0 shows all), or raise --steps",
                counted(*losses, "step")
            ),
        }
    }
}

/// The end of a sentence that names missing parts.
struct Probably<'a>(&'a [Missing]);

impl fmt::Display for Probably<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts: Vec<String> = self.0.iter().map(Missing::to_string).collect();
        match parts.as_slice() {
            [] => Ok(()),
            parts => write!(formatter, "; probably missing: {}", parts.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests;
