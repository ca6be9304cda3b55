//! The effect of a change of knobs on the experiment.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;

/// How far a change moves the experiment, mildest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Class {
    /// The same optimization problem: sums differ by rounding only.
    A,
    /// Another trajectory: the same weights continue under other rules.
    B,
    /// Other shapes: weights or optimizer state no longer fit one to one.
    C,
}

impl Class {
    /// Returns the meaning of the class in two words.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::A => "same training",
            Self::B => "changes the training",
            Self::C => "changes the model",
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self:?}")
    }
}

/// One knob that differs between two presets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Dotted path of the knob.
    pub path: String,
    /// Its value before; `null` where it was not set.
    pub from: Value,
    /// Its value after; `null` where it is no longer set.
    pub to: Value,
    /// The class of the change.
    pub class: Class,
}

/// Returns every knob that differs between two presets (as JSON objects), in the order of `from`.
#[must_use]
pub fn compare_presets(from: &Value, to: &Value) -> Vec<Change> {
    let mut changes = Vec::new();
    collect_changes(String::new(), from, to, &mut changes);
    let batches = effective_batch(from).zip(effective_batch(to));
    let same_batch = batches.is_some_and(|(from, to)| from == to);
    let fixed_shape = is_pretrained(from) && is_pretrained(to);
    let unrolls = is_unrolled(from) || is_unrolled(to);
    for change in &mut changes {
        change.class = class_of(&change.path, same_batch);
        // A pretrained model has fixed shapes, whatever the sequence length.
        if change.path == "model.sequence" && fixed_shape {
            change.class = Class::B;
        }
        // Each micro-batch takes a step of its own within a gradient of second order.
        if unrolls && matches!(change.path.as_str(), "training.micro_batch" | "training.accumulation") {
            change.class = change.class.max(Class::B);
        }
    }
    changes
}

/// Returns the class of a whole shift: the worst class of its changes, or A if nothing changes.
#[must_use]
pub fn worst_class(changes: &[Change]) -> Class {
    changes.iter().map(|change| change.class).max().unwrap_or(Class::A)
}

/// Reports whether weights at `path` are always carried over to another shape, in either direction: adapters
/// are truncated, widened, merged or added without an explicit request.
#[must_use]
pub fn carries_over(path: &str) -> bool {
    path == "model.lora" || path.starts_with("model.lora.")
}

/// Returns the samples per optimizer step of a preset, over all its ranks; none for a command that does not write both
/// of its factors, since its script may choose the other one.
#[must_use]
pub fn effective_batch(preset: &Value) -> Option<u64> {
    let training = preset.get("training")?;
    // Presets are compared before their values are validated, so the product may overflow.
    let of_rank = training.get("micro_batch")?.as_u64()?.saturating_mul(training.get("accumulation")?.as_u64()?);
    Some(of_rank.saturating_mul(ranks(preset)))
}

/// Returns the units by which a command's clock advances a step: samples where its knobs tell the micro-batch, else steps.
#[must_use]
pub fn units_per_step(preset: &Value) -> u64 {
    let knob = |path: &str| preset.pointer(path).and_then(Value::as_u64);
    let Some(micro) = knob("/training/micro_batch") else { return 1 };
    micro.saturating_mul(knob("/training/accumulation").unwrap_or(1)).saturating_mul(ranks(preset)).max(1)
}

/// Returns the ranks of a preset: each takes its own micro-batches.
#[must_use]
pub fn ranks(preset: &Value) -> u64 {
    preset.get("ranks").and_then(Value::as_u64).unwrap_or(1)
}

/// Reports whether a preset's model takes its sizes from pretrained weights.
fn is_pretrained(preset: &Value) -> bool {
    preset.pointer("/model/init_from").is_some_and(Value::is_string)
}

/// Reports whether a preset searches with gradients of second order.
fn is_unrolled(preset: &Value) -> bool {
    preset.pointer("/model/search/order").is_some_and(|order| order == "second")
}

/// Variables of a command that change its memory, speed or messages, but no more of its numbers than their
/// rounding. Any other variable, and any knob of a script, may change its results.
const SAME_PROBLEM_VARIABLES: [&str; 16] = [
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "MALLOC_ARENA_MAX",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TOKENIZERS_PARALLELISM",
    "TORCHDYNAMO_DISABLE",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_COMPILE_DISABLE",
    "TORCH_LOGS",
    "TRITON_CACHE_DIR",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
];

fn class_of(path: &str, same_batch: bool) -> Class {
    const SAME_PROBLEM: [&str; 7] = [
        "training.gradient_checkpointing",
        "training.fused_kernels",
        "training.autotune",
        "training.memory_cleanup_every",
        "training.loader",
        "optimizer.offload",
        "model.fused_separable",
    ];
    let under = |prefix: &str| path == prefix || path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'));
    match path {
        "training.micro_batch" | "training.accumulation" if same_batch => Class::A,
        "model.dropout" | "model.lora.dropout" => Class::B,
        _ if under("model.search") => Class::B,
        _ if under("evaluation") || under("checkpoint") => Class::A,
        _ if SAME_PROBLEM.into_iter().any(under) => Class::A,
        _ if path.strip_prefix("environment.").is_some_and(|name| SAME_PROBLEM_VARIABLES.contains(&name)) => Class::A,
        _ if path.strip_prefix("knobs.").is_some_and(recomputes_activations) => Class::A,
        _ if under("model") || under("data") => Class::C,
        _ => Class::B,
    }
}

/// Reports whether a script's own knob is gradient checkpointing, by the names that scripts give it: the same numbers, computed twice.
fn recomputes_activations(name: &str) -> bool {
    const WORDS: [&str; 4] =
        ["gradient_checkpointing", "grad_checkpointing", "activation_checkpointing", "checkpoint_activations"];
    name == "grad_checkpoint" || WORDS.iter().any(|word| name.contains(word))
}

/// Reports whether the section holds names of the user's choice.
fn is_open(path: &str) -> bool {
    matches!(path, "environment" | "knobs")
}

fn collect_changes(path: String, from: &Value, to: &Value, changes: &mut Vec<Change>) {
    let none = Map::new();
    let (before, after) = match (from, to) {
        (Value::Object(before), Value::Object(after)) => (before, after),
        // Each variable is a change of its own, even if the other rung sets none at all.
        (Value::Null, Value::Object(after)) if is_open(&path) => (&none, after),
        (Value::Object(before), Value::Null) if is_open(&path) => (before, &none),
        _ => {
            if from != to {
                changes.push(Change { path, from: from.clone(), to: to.clone(), class: Class::A });
            }
            return;
        }
    };
    let join = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    for (key, value) in before {
        collect_changes(join(key), value, after.get(key).unwrap_or(&Value::Null), changes);
    }
    for (key, value) in after.iter().filter(|(key, _)| !before.contains_key(*key)) {
        collect_changes(join(key), &Value::Null, value, changes);
    }
}

#[cfg(test)]
mod tests {
    use super::{Class, compare_presets, worst_class};
    use serde_json::json;

    #[test]
    fn micro_batch_and_accumulation_are_a_only_while_the_effective_batch_stays() {
        let full = json!({"training": {"micro_batch": 32, "accumulation": 1}});
        let same = json!({"training": {"micro_batch": 8, "accumulation": 4}});
        let other = json!({"training": {"micro_batch": 8, "accumulation": 1}});
        assert_eq!(worst_class(&compare_presets(&full, &same)), Class::A);
        assert_eq!(compare_presets(&full, &same).len(), 2);
        assert_eq!(worst_class(&compare_presets(&full, &other)), Class::B);
    }

    #[test]
    fn each_knob_has_its_class() {
        let table = [
            ("training", "fused_kernels", Class::A),
            ("training", "autotune", Class::A),
            ("training", "precision", Class::B),
            ("training", "epochs", Class::B),
            ("optimizer", "lr", Class::B),
            ("optimizer", "plateau", Class::B),
            ("model", "channels", Class::C),
            ("model", "dropout", Class::B),
            ("model", "fused_separable", Class::A),
            ("model", "search.weight_epochs", Class::B),
            ("model", "lora.rank", Class::C),
            ("model", "lora.dropout", Class::B),
            ("optimizer", "groups", Class::B),
            ("optimizer", "moments", Class::B),
            ("optimizer", "offload", Class::A),
            ("checkpoint", "every", Class::A),
        ];
        for (section, knob, class) in table {
            let changes = compare_presets(&json!({section: {knob: 1}}), &json!({section: {knob: 2}}));
            assert_eq!(changes.len(), 1);
            assert_eq!(changes[0].class, class, "{section}.{knob}");
        }
    }

    #[test]
    fn a_split_batch_changes_a_gradient_of_second_order() {
        let at = |order: &str, micro: u64, times: u64| {
            let training = json!({"micro_batch": micro, "accumulation": times});
            json!({"training": training, "model": {"search": {"order": order}}})
        };
        let class = |order: &str| worst_class(&compare_presets(&at(order, 16, 1), &at(order, 8, 2)));
        assert_eq!([class("first"), class("second")], [Class::A, Class::B]);
    }

    #[test]
    fn a_batch_that_only_the_script_knows_is_not_taken_for_the_same() {
        for knob in ["micro_batch", "accumulation"] {
            let changes = compare_presets(&json!({"training": {knob: 4}}), &json!({"training": {knob: 2}}));
            assert_eq!(worst_class(&changes), Class::B, "{knob}");
        }
    }

    #[test]
    fn variables_known_to_keep_the_numbers_are_a_and_everything_else_of_a_script_is_b() {
        for before in [json!({"environment": {}, "knobs": {}}), json!({})] {
            let class = |path: [&str; 2]| {
                let after = json!({path[0]: {path[1]: "1"}});
                let (up, down) = (compare_presets(&after, &before), compare_presets(&before, &after));
                assert_eq!(worst_class(&up), worst_class(&down));
                worst_class(&down)
            };
            assert_eq!(class(["environment", "PYTORCH_ALLOC_CONF"]), Class::A);
            assert_eq!(class(["environment", "ACCELERATE_MIXED_PRECISION"]), Class::B);
            assert_eq!(class(["knobs", "resolution"]), Class::B);
        }
    }

    #[test]
    fn the_sequence_length_is_part_of_the_shape_unless_the_model_is_pretrained() {
        let fresh = |sequence: u64| json!({"model": {"sequence": sequence}});
        let given = |sequence: u64| json!({"model": {"init_from": "there", "sequence": sequence}});
        assert_eq!(worst_class(&compare_presets(&fresh(8), &fresh(4))), Class::C);
        assert_eq!(worst_class(&compare_presets(&given(8), &given(4))), Class::B);
        assert_eq!(worst_class(&compare_presets(&fresh(8), &given(4))), Class::C);
    }

    #[test]
    fn nested_and_missing_knobs_are_named_by_their_path() {
        let changes = compare_presets(
            &json!({"optimizer": {"schedule": {"warmup": 0.1}}}),
            &json!({"optimizer": {"schedule": {"kind": "linear"}}}),
        );
        let paths: Vec<_> = changes.iter().map(|change| change.path.as_str()).collect();
        assert_eq!(paths, ["optimizer.schedule.warmup", "optimizer.schedule.kind"]);
    }
}
