//! Compares two starts of a command step by step. Pure.

use super::trace::{Seen, Trace};
use std::fmt;

/// A property of a step that two starts share if they train alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    Loss,
    Rate,
    Norm,
    Scale,
    Ids,
    Random,
}

/// A value of a property.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Number(f64),
    Digest(String),
    /// One digest for each random number generator; none for one that is not compared.
    Digests(Vec<Option<String>>),
}

/// How far two starts agree in a property.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Agreement {
    /// Steps of which both showed it.
    pub compared: u64,
    /// The first step at which they differ.
    pub difference: Option<Difference>,
    /// Two unbroken trainings differ in it, so it proves nothing.
    pub is_unstable: bool,
}

/// A step at which two starts differ.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    pub step: u64,
    /// The value without a kill.
    pub straight: Value,
    /// The value of the other start.
    pub other: Value,
}

/// A step that both starts took.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'a> {
    pub step: u64,
    pub straight: &'a Seen,
    pub other: &'a Seen,
}

/// Returns the steps that both starts took, among those that are `wanted`.
pub fn pairs<'a>(straight: &'a Trace, other: &'a Trace, wanted: impl Fn(u64) -> bool) -> Vec<Pair<'a>> {
    let both = other.steps().filter(|(step, _)| wanted(*step));
    both.filter_map(|(step, other)| Some(Pair { step, straight: straight.get(step)?, other })).collect()
}

impl Field {
    fn of(self, seen: &Seen) -> Option<Value> {
        let number = match self {
            Self::Loss => seen.loss,
            Self::Rate => seen.rate,
            Self::Norm => seen.norm,
            Self::Scale => seen.scale,
            Self::Ids => return seen.ids.clone().map(Value::Digest),
            Self::Random => return seen.random.as_deref().map(Value::of_random),
        };
        number.map(Value::Number)
    }

    /// Compares a property at each step. Losses and norms within the relative `tolerance` are the same.
    pub fn compare(self, pairs: &[Pair<'_>], tolerance: f64) -> Agreement {
        self.compare_parts(pairs, tolerance, &[])
    }

    /// Compares a property after the resume, as far as it agreed `before` the kill.
    pub fn compare_stable(self, before: &[Pair<'_>], after: &[Pair<'_>], tolerance: f64) -> Agreement {
        if matches!(self, Self::Loss | Self::Norm) {
            return self.compare(after, tolerance);
        }
        let stable = self.stable_parts(before);
        let is_unstable = self.compare_parts(before, 0.0, &stable).is_broken() || stable.iter().any(|part| !part);
        if is_unstable && !stable.contains(&true) {
            return Agreement { is_unstable, ..Agreement::default() };
        }
        self.compare_parts(after, tolerance, &stable)
    }

    /// Returns which digests agree in all pairs; nothing for a property that has no parts.
    fn stable_parts(self, pairs: &[Pair<'_>]) -> Vec<bool> {
        let mut stable: Vec<bool> = Vec::new();
        for pair in pairs {
            let both = self.of(pair.straight).zip(self.of(pair.other));
            let Some((Value::Digests(straight), Value::Digests(other))) = both else { continue };
            stable.resize(straight.len().max(stable.len()), true);
            for (index, is_stable) in stable.iter_mut().enumerate() {
                *is_stable &= straight.get(index) == other.get(index);
            }
        }
        stable
    }

    fn compare_parts(self, pairs: &[Pair<'_>], tolerance: f64, wanted: &[bool]) -> Agreement {
        let tolerance = if matches!(self, Self::Loss | Self::Norm) { tolerance } else { 0.0 };
        let mut agreement = Agreement::default();
        for pair in pairs {
            let Some((straight, other)) = self.of(pair.straight).zip(self.of(pair.other)) else { continue };
            let (straight, other) = (straight.keep(wanted), other.keep(wanted));
            agreement.compared += 1;
            if agreement.difference.is_none() && !straight.is_same(&other, tolerance) {
                agreement.difference = Some(Difference { step: pair.step, straight, other });
            }
        }
        agreement
    }
}

impl Value {
    fn of_random(text: &str) -> Self {
        Self::Digests(text.split('-').map(|part| Some(part.to_owned())).collect())
    }

    /// Returns the value without the digests that are not `wanted`.
    fn keep(self, wanted: &[bool]) -> Self {
        let Self::Digests(parts) = self else { return self };
        let keep = |(index, part): (usize, Option<String>)| part.filter(|_| wanted.get(index).copied().unwrap_or(true));
        Self::Digests(parts.into_iter().enumerate().map(keep).collect())
    }

    fn is_same(&self, other: &Self, tolerance: f64) -> bool {
        match (self, other) {
            (Self::Number(one), Self::Number(other)) => {
                let both_nan = one.is_nan() && other.is_nan();
                both_nan || one.to_bits() == other.to_bits() || relative_difference(*one, *other) <= tolerance
            }
            (one, other) => one == other,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(formatter, "{number}"),
            Self::Digest(digest) => formatter.write_str(digest.get(..8).unwrap_or(digest)),
            Self::Digests(parts) => {
                let parts: Vec<&str> = parts.iter().flatten().map(|part| part.get(..8).unwrap_or(part)).collect();
                formatter.write_str(&parts.join("-"))
            }
        }
    }
}

impl Agreement {
    /// Reports whether both starts showed the property, and it agreed at each step.
    pub fn holds(&self) -> bool {
        self.compared > 0 && self.difference.is_none()
    }

    /// Reports whether it differed.
    pub fn is_broken(&self) -> bool {
        self.difference.is_some()
    }
}

/// Returns the difference of two numbers, relative to the larger.
pub fn relative_difference(one: f64, other: f64) -> f64 {
    let larger = one.abs().max(other.abs());
    let difference = (one - other).abs();
    if difference == 0.0 { 0.0 } else { difference / larger }
}

#[cfg(test)]
mod tests {
    use super::{Field, Value, pairs};
    use crate::cli::trial::trace::Trace;

    fn losses(losses: &[(u64, f64)]) -> Trace {
        let mut trace = Trace::default();
        for (step, loss) in losses {
            trace.at(*step).loss = Some(*loss);
        }
        trace
    }

    #[test]
    fn steps_of_both_starts_are_compared_bit_by_bit_or_within_a_tolerance() {
        let straight = losses(&[(1, 1.0), (2, f64::NAN), (3, 0.5)]);
        let other = losses(&[(2, f64::NAN), (3, 0.500_1), (4, 9.0)]);
        let both = pairs(&straight, &other, |_| true);
        let exact = Field::Loss.compare(&both, 0.0);
        let difference = exact.difference.clone().unwrap();
        assert_eq!((exact.compared, difference.step, &difference.other), (2, 3, &Value::Number(0.500_1)));
        assert!(Field::Loss.compare(&both, 1e-3).holds());
        let unseen = Field::Ids.compare(&both, 0.0);
        assert!(!unseen.holds() && !unseen.is_broken());
        assert!(pairs(&straight, &other, |step| step > 3).is_empty());
    }

    #[test]
    fn a_generator_that_was_never_seeded_is_not_compared() {
        let random = |parts: &[&str]| {
            let mut trace = Trace::default();
            for (part, step) in parts.iter().zip(1..) {
                trace.at(step).random = Some((*part).to_owned());
            }
            trace
        };
        let compare = |straight: &[&str], other: &[&str]| {
            let (straight, other) = (random(straight), random(other));
            let before = pairs(&straight, &other, |step| step < 3);
            Field::Random.compare_stable(&before, &pairs(&straight, &other, |step| step >= 3), 0.0)
        };
        assert!(compare(&["a-x", "b-x", "c-x"], &["a-y", "b-y", "c-y"]).holds(), "the second is Python's, unseeded");
        assert!(compare(&["a-x", "b-x", "c-x"], &["a-y", "b-y", "z-y"]).is_broken());
        let unseeded = compare(&["a", "b", "c"], &["x", "y", "z"]);
        assert!(unseeded.is_unstable && unseeded.compared == 0);
    }
}
