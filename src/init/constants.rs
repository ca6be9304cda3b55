//! Settings that a script has as constants: what it writes into `TrainingArguments(…)`, an `Accelerator(…)` or Lightning's `Trainer(…)`.
//! Its companion can set others in the process, so they become arguments of a kind that is written nowhere.

use super::dataclasses::class_defaults;
use super::flag::{Declared, Flag, Takes, ValueKind};
use super::hugging_face::Classes;
use super::program::Program;
use super::python::{Call, Expr, Literal};
use crate::config::command::constants::SETTABLE;

/// The settings of accelerate and of Lightning that a rung may change, with their defaults.
const OTHERS: [(&str, &[(&str, Literal)]); 2] = [
    ("Accelerator", &[("gradient_accumulation_steps", Literal::Int(1)), ("mixed_precision", Literal::None)]),
    (
        "Trainer",
        &[
            ("accumulate_grad_batches", Literal::Int(1)),
            ("precision", Literal::None),
            ("gradient_clip_val", Literal::None),
            ("max_epochs", Literal::None),
        ],
    ),
];

/// Reports whether a call may build settings of a framework.
pub fn builds_settings(function: &str) -> bool {
    function.ends_with("TrainingArguments")
        || function.ends_with("Config")
        || OTHERS.iter().any(|(name, _)| *name == function)
}

/// Returns the settings of the one call that has them. A value that is computed, or comes from an argument of the script, is left
/// to the script.
#[must_use]
pub fn find(program: &Program, classes: &Classes, declared: &mut Declared) -> Vec<Flag> {
    let is_lightning = program.imports().any(|import| ["lightning", "pytorch_lightning"].contains(&import.root()));
    let mut found = Vec::new();
    for (place, call) in program.all_calls() {
        let mut fields = class_defaults(program, classes, &call.function, declared);
        if !fields.iter().any(|(name, ..)| name == "gradient_accumulation_steps") {
            let other = OTHERS.iter().find(|(name, _)| *name == call.function);
            let Some((_, names)) = other.filter(|(name, _)| *name == "Accelerator" || is_lightning) else { continue };
            let kind = |default: &Literal| ValueKind::of_default(Some(default).filter(|it| **it != Literal::None));
            fields = names
                .iter()
                .map(|(name, default)| ((*name).to_owned(), kind(default), Some(default.clone())))
                .collect();
        }
        // A plug-in holds the accumulation.
        if is_spread(call) || call.keyword("gradient_accumulation_plugin").is_some() {
            continue;
        }
        let flags = fields.into_iter().filter_map(|(name, kind, default)| {
            let written = call.keyword(&name);
            let value = match written {
                Some(expr) => Some(program.value(place, expr)?),
                None => default,
            };
            let takes = Takes::Constant { kind: number_kind(kind, value.as_ref()), written: written.is_some() };
            let (names, default) = (vec![name.clone()], value);
            Some(Flag { names, key: name, takes, default, choices: Vec::new(), subcommand: None })
        });
        found.push(flags.collect());
    }
    // Of several, nobody knows which one trains.
    if found.len() == 1 { found.remove(0) } else { Vec::new() }
}

/// Returns the kind of a value: one that is unset may be a number.
fn number_kind(kind: ValueKind, value: Option<&Literal>) -> ValueKind {
    match value {
        Some(Literal::Float(_)) if kind != ValueKind::Text => ValueKind::Number,
        _ => kind,
    }
}

/// Reports whether a call takes arguments that are not written in it: `**settings`.
fn is_spread(call: &Call) -> bool {
    call.positional.iter().any(|expr| matches!(expr, Expr::Unknown))
}

/// Reports whether a companion can set the knob of this path.
pub fn is_settable(path: &str) -> bool {
    SETTABLE.contains(&path) || path.starts_with("knobs.")
}

#[cfg(test)]
mod tests {
    use super::find;
    use crate::init::flag::{Declared, Takes};
    use crate::init::hugging_face::Classes;
    use crate::init::program::Program;
    use crate::init::python::Literal;

    fn constants(text: &str) -> Vec<(String, Option<Literal>, bool)> {
        let found = find(&Program::of(text), &Classes::load().unwrap(), &mut Declared::default());
        let written = |takes: &Takes| matches!(takes, Takes::Constant { written: true, .. });
        found.into_iter().map(|flag| (flag.key, flag.default, written(&flag.takes))).collect()
    }

    #[test]
    fn what_a_script_writes_and_what_it_leaves_out_are_known() {
        let text = "from trl import SFTConfig, SFTTrainer\nRATE = 2e-4\n\
                    trainer = SFTTrainer(model, args=SFTConfig(per_device_train_batch_size=4, learning_rate=RATE,\n\
                    warmup_steps=args.warmup, bf16=True))\ntrainer.train()\n";
        let found = constants(text);
        let of = |name: &str| {
            found.iter().find(|(key, ..)| key == name).map(|(_, value, written)| (value.clone(), *written))
        };
        assert_eq!(of("per_device_train_batch_size"), Some((Some(Literal::Int(4)), true)));
        assert_eq!(of("learning_rate"), Some((Some(Literal::Float(2e-4)), true)));
        assert_eq!(of("gradient_accumulation_steps"), Some((Some(Literal::Int(1)), false)), "the default");
        assert_eq!(of("bf16"), Some((Some(Literal::Bool(true)), true)));
        assert_eq!(of("warmup_steps"), None, "the script has it from elsewhere");
    }

    #[test]
    fn settings_that_are_not_certain_are_left_to_the_script() {
        let one = "from transformers import TrainingArguments\na = TrainingArguments('out', learning_rate=1e-4)\n";
        assert!(!constants(one).is_empty());
        assert!(constants(&format!("{one}b = TrainingArguments('out2')\n")).is_empty(), "two of them");
        assert!(
            constants("from transformers import TrainingArguments\na = TrainingArguments(**settings)\n").is_empty()
        );
        assert!(constants("from x import Trainer\nTrainer(precision='16')\n").is_empty());
        assert!(constants("from x import ModelConfig\nModelConfig(gradient_accumulation_steps=2)\n").is_empty());
        let lightning = "import lightning as L\nL.Trainer(max_epochs=3, accumulate_grad_batches=2).fit(model)\n";
        assert_eq!(constants(lightning)[0], ("accumulate_grad_batches".to_owned(), Some(Literal::Int(2)), true));
        let accelerate = "from accelerate import Accelerator\na = Accelerator(gradient_accumulation_steps=4)\n";
        assert_eq!(constants(accelerate)[0], ("gradient_accumulation_steps".to_owned(), Some(Literal::Int(4)), true));
    }
}
