//! The knobs of a command: those that its run file writes.
//!
//! They are checked by the types of the built-in trainer, so that a wrong name or value gets the same message.
//! Values that those types require and the file leaves out are filled in for the check alone.

use crate::config::knobs::{Preset, Section};
use crate::config::problem::Problem;
use crate::config::typed;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The sections that hold knobs.
const SECTIONS: [&str; 4] = ["training", "optimizer", "knobs", "checkpoint"];

/// Adds the knobs that every preset has.
pub fn fill_in_required(tree: &mut Value) {
    let required = [
        ("training", "micro_batch", json!(1)),
        ("optimizer", "lr", json!(1.0)),
        ("evaluation", "every", json!("never")),
        ("checkpoint", "every", json!("never")),
    ];
    let Value::Object(body) = tree else { return };
    for (section, knob, value) in required {
        if let Value::Object(section) = body.entry(section).or_insert_with(|| json!({})) {
            section.entry(knob).or_insert(value);
        }
    }
}

/// Returns the knobs that a tree writes, with variables as they were read.
pub fn written_knobs(tree: &Value, environment: &BTreeMap<String, String>) -> Section {
    let mut written = Section::new();
    for section in SECTIONS {
        let value = tree.get(section).filter(|value| value.as_object().is_some_and(|knobs| !knobs.is_empty()));
        written.extend(value.map(|value| (section.to_owned(), value.clone())));
    }
    let ranks = tree.get("ranks").filter(|ranks| !ranks.is_null());
    written.extend(ranks.map(|ranks| ("ranks".to_owned(), ranks.clone())));
    if !environment.is_empty() {
        written.insert("environment".to_owned(), json!(environment));
    }
    written
}

/// Reads the knobs of one rung, and returns every error in them.
pub fn read_preset(tree: &Value) -> (Option<Preset>, Vec<Problem>) {
    let mut whole = tree.clone();
    fill_in_required(&mut whole);
    let (preset, problems) = typed::read_tree::<Preset>(&whole);
    let preset = preset.map(|preset| Preset { written: Some(written_knobs(tree, &preset.environment)), ..preset });
    (preset, problems)
}
