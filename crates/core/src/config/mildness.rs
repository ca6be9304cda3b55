//! Rungs that are no safer than those above them: the same knobs, or a knob that goes the wrong way. An override of the body
//! does this easily, since the rungs keep their own values.

use super::knobs::Relief;
use super::ladder::Rung;
use crate::recipe::class::compare_presets;
use serde_json::Value;
use std::fmt;

/// A knob by which a rung relieves a problem, and the direction that helps.
struct Measure {
    relief: Relief,
    knob: &'static str,
    helps_lower: bool,
}

const MEASURES: [Measure; 4] = [
    Measure { relief: Relief::Numerics, knob: "optimizer.lr", helps_lower: true },
    Measure { relief: Relief::Numerics, knob: "optimizer.schedule.warmup", helps_lower: false },
    Measure { relief: Relief::Numerics, knob: "optimizer.max_norm", helps_lower: true },
    Measure { relief: Relief::Memory, knob: "training.micro_batch", helps_lower: true },
];

/// A rung that is not safer than one above it.
#[derive(Debug, Clone, PartialEq)]
pub enum NoSafer {
    /// All of its knobs are those of another rung.
    Same {
        /// The rung.
        rung: String,
        /// The one above with the same knobs.
        as_rung: String,
    },
    /// A knob by which it relieves a problem goes the wrong way.
    Harsher {
        /// The rung.
        rung: String,
        /// The problem.
        relief: Relief,
        /// The knob.
        knob: &'static str,
        /// Its value on the rung.
        value: f64,
        /// Its value in the body of the file.
        full: f64,
    },
}

impl fmt::Display for NoSafer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same { rung, as_rung } => {
                write!(formatter, "rung {rung} has the same knobs as {as_rung}, so a shift to it changes nothing")
            }
            Self::Harsher { rung, relief, knob, value, full } => {
                let beside = if value > full { "above" } else { "below" };
                write!(
                    formatter,
                    "rung {rung} helps against {}, but its {knob} of {value} is {beside} the {full} that the run begins with; \
                     correct it, such as with `--set ladder.{rung}.{knob}=VALUE`",
                    relief.trouble()
                )
            }
        }
    }
}

/// Returns the rungs of a ladder, `full` first, that are no safer than those above them.
#[must_use]
pub fn find_no_safer(rungs: &[Rung]) -> Vec<NoSafer> {
    let trees: Vec<Value> = rungs.iter().map(|rung| rung.preset.tree()).collect();
    let judge = |at: usize| {
        let name = || rungs[at].name.clone();
        if let Some(twin) = (0..at).rev().find(|above| compare_presets(&trees[*above], &trees[at]).is_empty()) {
            return Some(NoSafer::Same { rung: name(), as_rung: rungs[twin].name.clone() });
        }
        MEASURES.iter().filter(|measure| rungs[at].relieves.contains(&measure.relief)).find_map(|measure| {
            let [full, value] = [&trees[0], &trees[at]]
                .map(|tree| tree.pointer(&format!("/{}", measure.knob.replace('.', "/"))).and_then(Value::as_f64));
            let (full, value) = (full?, value?);
            let is_harsher = if measure.helps_lower { value > full } else { value < full };
            let Measure { relief, knob, .. } = *measure;
            is_harsher.then(|| NoSafer::Harsher { rung: name(), relief, knob, value, full })
        })
    };
    (1..rungs.len()).filter_map(judge).collect()
}

#[cfg(test)]
mod tests {
    use super::find_no_safer;
    use crate::config::run::{AsWritten, Run, Source};
    use std::path::Path;

    fn said(set: &[(&str, &str)]) -> Vec<String> {
        let text = "name: a\ntask: vision\ntraining: { epochs: 1, micro_batch: 8 }\noptimizer: { lr: 0.01 }\nladder:\n\
                    \x20 - { name: small, relieves: [memory], set: { training.micro_batch: 4, training.accumulation: 2 } }\n\
                    \x20 - { name: lower-rate, relieves: [memory, numerics], set: { optimizer.lr: 0.005 } }\n\
                    \x20 - { name: clip, relieves: [numerics], from: full, set: { optimizer.max_norm: 1.0 } }\n";
        let overrides: Vec<(String, String)> =
            set.iter().map(|(path, value)| ((*path).to_owned(), (*value).to_owned())).collect();
        let source = Source { file: "a.yaml", text, base: Path::new("/"), overrides: &overrides };
        let run = Run::read(&source, &AsWritten).unwrap_or_else(|refusal| panic!("{refusal}"));
        // The run.yaml of the run says the same.
        let kept = run.to_yaml();
        let kept =
            Run::reopen(&Source { file: "run.yaml", text: &kept, base: Path::new("/"), overrides: &[] }).unwrap();
        assert_eq!(find_no_safer(&kept.rungs), find_no_safer(&run.rungs));
        find_no_safer(&run.rungs).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_override_that_makes_a_rung_no_safer_than_the_body_is_named() {
        assert_eq!(said(&[]), [""; 0]);
        let lower = said(&[("optimizer.lr", "0.004")]);
        assert_eq!(lower.len(), 1, "{lower:?}");
        assert!(
            lower[0].starts_with(
                "rung lower-rate helps against NaN losses, but its optimizer.lr of 0.005 is above the 0.004"
            )
        );
        assert!(lower[0].ends_with("`--set ladder.lower-rate.optimizer.lr=VALUE`"), "{lower:?}");
        let same = said(&[("optimizer.lr", "0.005")]);
        assert_eq!(same, ["rung lower-rate has the same knobs as small, so a shift to it changes nothing"]);
        let batch = said(&[("training.micro_batch", "2"), ("training.accumulation", "4")]);
        assert_eq!(batch.len(), 2, "lower-rate inherits it: {batch:?}");
        assert!(batch[0].contains("its training.micro_batch of 4 is above the 2"), "{batch:?}");
        let clip = said(&[("optimizer.max_norm", "0.5")]);
        assert!(
            clip.len() == 1 && clip[0].starts_with("rung clip helps against NaN losses, but its optimizer.max_norm"),
            "{clip:?}"
        );
    }
}
