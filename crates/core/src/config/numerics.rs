//! Advice on the rungs that help against NaN losses. The order of the remedies is the mildest first: half the learning
//! rate, a longer warm-up, another precision.

use super::knobs::Relief;
use super::ladder::Rung;
use serde_json::Value;
use std::fmt;

/// A remedy against NaN losses, mildest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Remedy {
    Rate,
    WarmUp,
    Precision,
}

impl Remedy {
    const ALL: [Self; 3] = [Self::Rate, Self::WarmUp, Self::Precision];

    fn knob(self) -> &'static str {
        match self {
            Self::Rate => "/optimizer/lr",
            Self::WarmUp => "/optimizer/schedule/warmup",
            Self::Precision => "/training/precision",
        }
    }

    /// Reports whether a rung uses the remedy, compared with `full`.
    fn is_used(self, full: &Value, rung: &Value) -> bool {
        let (before, after) = (full.pointer(self.knob()), rung.pointer(self.knob()));
        let numbers = before.and_then(Value::as_f64).zip(after.and_then(Value::as_f64));
        match self {
            Self::Rate => numbers.is_some_and(|(before, after)| after < before),
            Self::WarmUp => numbers.is_some_and(|(before, after)| after > before),
            Self::Precision => before != after,
        }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Rate => "half the learning rate",
            Self::WarmUp => "a longer warm-up (0.15 to 0.25)",
            Self::Precision => "another precision",
        })
    }
}

/// Advice on a ladder's rungs for numerics.
#[derive(Debug, Clone, PartialEq)]
pub enum NumericsAdvice {
    /// No rung helps against NaN losses.
    Missing {
        /// Half the learning rate of `full`.
        lr: f64,
    },
    /// A rung comes with a remedy before a milder one was tried.
    OutOfOrder {
        /// The rung.
        rung: String,
        /// Its remedy.
        remedy: String,
        /// The milder one.
        milder: String,
    },
}

impl fmt::Display for NumericsAdvice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { lr } => write!(
                formatter,
                "no rung helps against NaN losses, so they can only be skipped; in this order, add rungs with {}, {} and {}: \
                 `- {{ name: calm, relieves: [numerics], from: full, set: {{ optimizer.lr: {lr:e} }} }}`",
                Remedy::Rate,
                Remedy::WarmUp,
                Remedy::Precision
            ),
            Self::OutOfOrder { rung, remedy, milder } => write!(
                formatter,
                "rung {rung} helps against NaN losses with {remedy} before any rung tries {milder}; milder remedies first cost less"
            ),
        }
    }
}

/// Judges a ladder, `full` first; `None` if nothing is to be said: it has no rungs, it is in order, or it is that of a
/// command whose file does not write its learning rate.
#[must_use]
pub fn advise(rungs: &[Rung]) -> Option<NumericsAdvice> {
    let (full, below) = rungs.split_first().filter(|(_, below)| !below.is_empty())?;
    let tree = full.preset.tree();
    let lr = tree.pointer(Remedy::Rate.knob()).and_then(Value::as_f64)?;
    let mut helping = below.iter().filter(|rung| rung.relieves.contains(&Relief::Numerics)).peekable();
    if helping.peek().is_none() {
        return Some(NumericsAdvice::Missing { lr: lr / 2.0 });
    }
    let mut tried = Vec::new();
    for rung in helping {
        let used: Vec<Remedy> =
            Remedy::ALL.into_iter().filter(|remedy| remedy.is_used(&tree, &rung.preset.tree())).collect();
        tried.extend(used.iter().copied());
        let Some(harshest) = used.last().copied() else { continue };
        // A milder one that the run file cannot change is not missed.
        let possible = |remedy: &Remedy| tree.pointer(remedy.knob()).is_some();
        let missed = Remedy::ALL.into_iter().filter(|it| *it < harshest && possible(it)).find(|it| !tried.contains(it));
        if let Some(milder) = missed {
            let (rung, remedy) = (rung.name.clone(), harshest.to_string());
            return Some(NumericsAdvice::OutOfOrder { rung, remedy, milder: milder.to_string() });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{NumericsAdvice, advise};
    use crate::config::run::{AsWritten, Run, Source};
    use std::path::Path;

    fn advice(ladder: &str) -> Option<NumericsAdvice> {
        let text = format!(
            "name: a\ntask: vision\ntraining: {{ epochs: 1, micro_batch: 4 }}\n\
             optimizer: {{ lr: 2.0e-3, schedule: {{ kind: cosine, warmup: 0.15 }} }}\nladder: {ladder}\n"
        );
        let source = Source { file: "a.yaml", text: &text, base: Path::new("/"), overrides: &[] };
        advise(&Run::read(&source, &AsWritten).unwrap_or_else(|refusal| panic!("{refusal}")).rungs)
    }

    #[test]
    fn a_ladder_without_a_rung_for_numerics_gets_one_proposed() {
        assert_eq!(advice("[]"), None);
        let missing = advice("[{ name: small, relieves: [memory], set: { training.accumulation: 2 } }]").unwrap();
        assert_eq!(missing, NumericsAdvice::Missing { lr: 1e-3 });
        assert!(missing.to_string().contains("set: { optimizer.lr: 1e-3 }"), "{missing}");
    }

    #[test]
    fn the_milder_remedy_comes_first() {
        let calm = "{ name: calm, relieves: [numerics], set: { optimizer.lr: 1.0e-3 } }";
        let warm = "{ name: warm, relieves: [numerics], set: { optimizer.schedule.warmup: 0.25 } }";
        let exact = "{ name: exact, relieves: [numerics], set: { training.precision: bf16 } }";
        let clip = "{ name: clip, relieves: [numerics], set: { optimizer.max_norm: 0.5 } }";
        for ladder in [vec![calm], vec![calm, warm], vec![calm, warm, exact], vec![clip], vec![clip, calm]] {
            assert_eq!(advice(&format!("[{}]", ladder.join(", "))), None, "{ladder:?}");
        }
        for (ladder, rung, milder) in [
            (vec![warm, calm], "warm", "half the learning rate"),
            (vec![exact], "exact", "half the learning rate"),
            (vec![calm, exact, warm], "exact", "a longer warm-up (0.15 to 0.25)"),
        ] {
            let advice = advice(&format!("[{}]", ladder.join(", "))).unwrap();
            let names = matches!(&advice, NumericsAdvice::OutOfOrder { rung: named, milder: mild, .. } if named == rung && mild == milder);
            assert!(names, "{advice}");
        }
    }
}
