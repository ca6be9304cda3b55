//! Names the parts of a training's state that a resume probably leaves out. Pure.
//!
//! The first step after a resume shows what went in: its loss depends on weights, data and random numbers, but on no rate
//! and on no moment; those act on the second.

use super::compare::{Agreement, Pair};
use super::trace::Trace;
use std::fmt;

/// Differences below this share of the usual change between two steps come from other random numbers.
const SAME_DATA: f64 = 0.5;
/// Differences above this share come from other data.
const OTHER_DATA: f64 = 0.9;
/// Multiple of the usual scatter of losses above which a loss is that of other weights.
const FAR_OFF: f64 = 4.0;
/// Losses at the beginning of a training, and after a resume, that make its level.
const LEVEL: usize = 3;

/// A part of the state that a resume leaves out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missing {
    Weights,
    DataOrder,
    RandomState,
    Scheduler,
    Scaler,
    Moments,
}

impl fmt::Display for Missing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Weights => "the weights",
            Self::DataOrder => "the order of the data",
            Self::RandomState => "the random state",
            Self::Scheduler => "the scheduler",
            Self::Scaler => "the loss scaler",
            Self::Moments => "the optimizer's moments",
        })
    }
}

/// How the steps after a resume agree with those of the unbroken training.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct After {
    pub loss: Agreement,
    pub rate: Agreement,
    pub norm: Agreement,
    pub scale: Agreement,
    pub ids: Agreement,
    pub random: Agreement,
}

/// Returns the parts that the differences point to. `after` are the steps after the resume.
pub fn find_missing(straight: &Trace, after: &[Pair<'_>], seen: &After) -> Vec<Missing> {
    let direct = [
        (Missing::DataOrder, &seen.ids),
        (Missing::RandomState, &seen.random),
        (Missing::Scheduler, &seen.rate),
        (Missing::Scaler, &seen.scale),
    ];
    let broken = direct.iter().filter(|(_, agreement)| agreement.is_broken());
    let mut missing: Vec<Missing> = broken.map(|(part, _)| *part).collect();
    if let Some(difference) = &seen.loss.difference {
        let with_loss = after.iter().filter(|pair| pair.straight.loss.is_some() && pair.other.loss.is_some());
        let equal = with_loss.take_while(|pair| pair.step < difference.step).count();
        let shape = Shape::of(straight, after);
        match equal {
            0 => missing.extend(blame_first_step(&shape, seen)),
            _ if missing.is_empty() => missing.extend(blame_later_step(&shape, seen, equal)),
            // The rate, say, explains the difference.
            _ => {}
        }
    }
    missing.sort();
    missing.dedup();
    missing
}

/// The first loss after the resume differs: the step had other weights, other data or other random numbers.
fn blame_first_step(shape: &Shape, seen: &After) -> Vec<Missing> {
    let (knows_ids, knows_random) = (seen.ids.compared > 0, seen.random.compared > 0);
    if shape.is_far_off || (seen.ids.holds() && seen.random.holds()) {
        return vec![Missing::Weights];
    }
    match (knows_ids, knows_random) {
        (false, true) if seen.random.holds() => vec![Missing::DataOrder],
        (false, false) if shape.ratio > OTHER_DATA => vec![Missing::DataOrder],
        (false, false) if shape.ratio < SAME_DATA => vec![Missing::RandomState],
        (false, false) => vec![Missing::DataOrder, Missing::RandomState],
        (true, false) if seen.ids.holds() => vec![Missing::RandomState],
        // The ids or the random state differ, and explain it.
        _ => Vec::new(),
    }
}

/// A later loss differs, after this many that are equal.
fn blame_later_step(shape: &Shape, seen: &After, equal: usize) -> Vec<Missing> {
    // Other data from a later step on: an epoch began there, in an order that random numbers decide.
    if equal > 1 && shape.ratio > SAME_DATA {
        return vec![Missing::RandomState];
    }
    let scheduler = (seen.rate.compared == 0).then_some(Missing::Scheduler);
    scheduler.into_iter().chain([Missing::Moments]).collect()
}

/// Reports whether the losses after a resume are those of other weights.
pub fn is_far_off(straight: &Trace, after: &[Pair<'_>]) -> bool {
    Shape::of(straight, after).is_far_off
}

/// The size of the differences between losses, beside how losses change anyway.
struct Shape {
    /// The usual difference between two resumed and unbroken losses, in units of the usual change between two steps.
    ratio: f64,
    /// The first losses after the resume are nearer to those of untrained weights.
    is_far_off: bool,
}

impl Shape {
    fn of(straight: &Trace, after: &[Pair<'_>]) -> Self {
        let losses = |pair: &Pair<'_>| Some((pair.straight.loss?, pair.other.loss?));
        let both: Vec<(f64, f64)> = after.iter().filter_map(losses).collect();
        let (expected, resumed): (Vec<f64>, Vec<f64>) = both.iter().copied().unzip();
        let changes: Vec<f64> = expected.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let differences: Vec<f64> =
            both.iter().map(|(straight, other)| other - straight).skip_while(|change| *change == 0.0).collect();
        let begin: Vec<f64> = straight.losses().map(|(_, loss)| loss).take(LEVEL).collect();
        let usual = root_mean_square(&changes);
        let (level, here) = (mean(&expected), mean(&resumed[..resumed.len().min(LEVEL)]));
        let scatter = usual.max(f64::EPSILON * level.abs());
        let is_far_off = (here - level).abs() > FAR_OFF * scatter && (here - mean(&begin)).abs() < (here - level).abs();
        Self { ratio: root_mean_square(&differences) / usual.max(f64::MIN_POSITIVE), is_far_off }
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn root_mean_square(values: &[f64]) -> f64 {
    mean(&values.iter().map(|value| value * value).collect::<Vec<_>>()).sqrt()
}
