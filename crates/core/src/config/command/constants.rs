//! Knobs that a script has as constants: its companion sets them in the process, on the rungs where they differ from `full`.

use super::CommandSpec;
use super::launch::find_knob;
use crate::config::knobs::Preset;
use crate::config::ladder::Resolved;
use crate::config::problem::Problem;
use crate::config::settings_file::is_same;
use crate::config::typed;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The knobs that have a place in the settings of a framework. Any other is `knobs.NAME`, the field NAME of these settings.
pub const SETTABLE: [&str; 9] = [
    "training.micro_batch",
    "training.accumulation",
    "training.epochs",
    "training.steps",
    "training.precision",
    "training.gradient_checkpointing",
    "optimizer.lr",
    "optimizer.max_norm",
    "optimizer.weight_decay",
];

/// Returns the constants that a rung changes, with its values. On `full`, a script keeps its own.
#[must_use]
pub fn changed_constants(spec: &CommandSpec, full: &Preset, rung: &Preset) -> BTreeMap<String, Value> {
    let (full, rung) = (full.tree(), rung.tree());
    let changed = |path: &String| {
        let (before, now) = (find_knob(&full, path)?, find_knob(&rung, path)?);
        (!is_same(before, now)).then(|| (path.clone(), now.clone()))
    };
    spec.constants.iter().filter_map(changed).collect()
}

/// Reports constants that nothing can set, or that something else takes. `taken`: the knobs that texts of the command name.
pub(super) fn check_constants(spec: &CommandSpec, full: &Resolved, taken: &BTreeSet<String>) -> Vec<Problem> {
    let problem = |(index, path): (usize, &String)| {
        let place = format!("constants[{index}]");
        if !SETTABLE.contains(&path.as_str()) && !path.starts_with("knobs.") {
            let wrong = format!("the settings of Hugging Face, Lightning and accelerate have no `{path}`");
            return Some(Problem::at(place, wrong, typed::suggest(path, &SETTABLE)));
        }
        if find_knob(&full.tree, path).is_none() {
            let wrong = format!("`{path}` has no value in this file");
            return Some(Problem::at(place, wrong, "write the one that the script has"));
        }
        let fix = "remove it here: the script has it from there";
        taken.contains(path).then(|| Problem::at(place, format!("the command takes `{path}` already"), fix))
    };
    spec.constants.iter().enumerate().filter_map(problem).collect()
}
