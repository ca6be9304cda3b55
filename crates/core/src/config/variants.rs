//! Variants: named sets of overrides in a run file, at most one of which is chosen.
//!
//! ```yaml
//! variant: medium                  # or --set variant=medium; if absent: the body as written
//! variants:
//!   medium: { model.channels: 20, ladder.frugal.training.micro_batch: 8 }
//! ```
//! A shift cannot cross a change of the model's shape, so another model size is a variant, not a rung: it
//! is chosen before the start. `ladder.NAME.` addresses the `set` of a rung. `--set` wins over a variant.

use super::ladder::flatten_overrides;
use super::problem::Problem;
use super::typed;
use serde_json::{Map, Value};

/// The key, also usable as an override, that selects a variant.
pub const CHOICE: &str = "variant";

/// Knobs set by a variant: the path under which a problem is reported, and the path where it was written.
pub type Places = Vec<(String, String)>;

/// Applies the chosen variant to a run file's tree and removes both keys. Returns the paths it set, where
/// they were written, and the errors in it.
pub fn apply_variant(tree: &mut Value, overrides: &[(String, String)]) -> (Places, Vec<Problem>) {
    let Value::Object(file) = tree else { return Default::default() };
    let (written, all) = (file.shift_remove(CHOICE), file.shift_remove("variants"));
    let all = match all {
        None => Map::new(),
        Some(Value::Object(all)) => all,
        Some(_) => {
            let fix = "write names, and below each dotted paths with values";
            return (Places::new(), vec![Problem::at("variants", "`variants` must be a section", fix)]);
        }
    };
    let asked = overrides.iter().rev().find(|(path, _)| path == CHOICE).map(|(_, name)| Value::from(name.as_str()));
    let Some(chosen) = asked.or(written) else { return Default::default() };
    let name = chosen.as_str().map_or_else(|| chosen.to_string(), str::to_owned);
    let Some(Value::Object(knobs)) = all.get(&name) else {
        let known: Vec<&str> = all.keys().map(String::as_str).collect();
        let wrong = format!("this file has no variant `{name}`");
        return (Places::new(), vec![Problem::at(CHOICE, wrong, typed::suggest(&name, &known))]);
    };
    let (mut places, mut problems) = (Places::new(), Vec::new());
    for (path, value) in flatten_overrides(knobs) {
        let place = format!("variants.{name}.{path}");
        match set_knob(tree, &path, value) {
            Ok(reported) => places.push((reported, place)),
            Err(problem) => problems.push(Problem { path: place, ..problem }),
        }
    }
    (places, problems)
}

/// Sets a knob of the body, or of a rung at `ladder.NAME.PATH`. Returns the path under which its problems
/// are reported.
///
/// # Errors
/// Returns an error when the path does not exist.
pub fn set_knob(tree: &mut Value, path: &str, value: Value) -> Result<String, Problem> {
    let Some(rest) = path.strip_prefix("ladder.") else {
        return typed::set_value(tree, path, value).map(|()| path.to_owned());
    };
    let rungs = tree.get_mut("ladder").and_then(Value::as_array_mut).map(Vec::as_mut_slice).unwrap_or_default();
    let names: Vec<String> = rungs.iter().filter_map(|rung| Some(rung.get("name")?.as_str()?.to_owned())).collect();
    let below = |name: &String| Some(rest.strip_prefix(name.as_str())?.strip_prefix('.')?.to_owned());
    let found = names.iter().enumerate().find_map(|(index, name)| Some((index, below(name)?)));
    let Some((index, knob)) = found else {
        let known: Vec<&str> = names.iter().map(String::as_str).collect();
        let wrong = "no rung has this name";
        return Err(Problem::at(path, wrong, format!("write ladder.NAME.PATH, with NAME one of {}", known.join(", "))));
    };
    let Some(Value::Object(rung)) = rungs.get_mut(index) else { return Ok(path.to_owned()) };
    let set = rung.entry("set").or_insert_with(|| Value::Object(Map::new()));
    if let Value::Object(set) = set {
        // Moved to the end: if the knob is also written in a nested section, the last one wins.
        set.shift_remove(&knob);
        set.insert(knob.clone(), value);
    }
    Ok(format!("ladder[{index}].set.{knob}"))
}

#[cfg(test)]
mod tests {
    use super::{apply_variant, set_knob};
    use serde_json::{Value, json};

    fn file() -> Value {
        json!({
            "model": { "channels": 8 },
            "variants": { "wide": { "model.channels": 16, "ladder.low.training.micro_batch": 4 }, "deep": {} },
            "ladder": [{ "name": "mid" }, { "name": "low", "set": { "training": { "micro_batch": 2 } } }],
        })
    }

    #[test]
    fn the_chosen_one_reaches_the_body_and_the_rungs() {
        let mut tree = file();
        let (places, problems) = apply_variant(&mut tree, &[("variant".to_owned(), "wide".to_owned())]);
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!(tree["model"]["channels"], 16);
        assert_eq!(tree["ladder"][1]["set"]["training.micro_batch"], 4);
        assert_eq!(tree.as_object().unwrap().len(), 2, "both keys are taken out");
        assert_eq!(places[1].0, "ladder[1].set.training.micro_batch");
        assert_eq!(places[1].1, "variants.wide.ladder.low.training.micro_batch");
    }

    #[test]
    fn no_variant_is_chosen_by_default() {
        let mut tree = file();
        assert_eq!(apply_variant(&mut tree, &[]), (Vec::new(), Vec::new()));
        assert_eq!((&tree["model"]["channels"], tree.get("variants")), (&json!(8), None));
    }

    #[test]
    fn unknown_variants_and_rungs_are_reported_with_the_known_ones() {
        let (_, problems) = apply_variant(&mut file(), &[("variant".to_owned(), "wild".to_owned())]);
        assert_eq!(problems[0].to_string(), "variant: this file has no variant `wild`; did you mean `wide`?");
        let problem = set_knob(&mut file(), "ladder.lower.training.micro_batch", json!(1)).unwrap_err();
        assert!(problem.fix.ends_with("one of mid, low"), "{problem}");
    }
}
