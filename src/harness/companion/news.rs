//! The introduction of a companion as news for the keeper, with the knobs that the script does not follow. Pure.

use crate::config::command::launch::{find_knob, format_knob};
use crate::protocol::companion::{CompanionNews, IgnoredKnob, Introduction};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::Path;

/// Two numbers closer than this, relative to their size, are the same setting: 0.1 may come back as a 32-bit number.
const SAME: f64 = 1e-6;

/// Returns the news about an introduction; `knobs` are those of the rung.
pub(super) fn news_of(introduction: &Introduction, knobs: &Value) -> CompanionNews {
    let Introduction { framework, grade, saves, guards, parameters, epoch_units, world, sharded, .. } = *introduction;
    let differs = |(name, in_force): (&String, &Value)| {
        let rung = find_knob(knobs, name)?;
        (!is_same(rung, in_force)).then(|| IgnoredKnob {
            name: name.clone(),
            rung: rung.clone(),
            in_force: in_force.clone(),
        })
    };
    CompanionNews {
        framework,
        version: introduction.version.clone(),
        python: introduction.python.clone(),
        torch: introduction.torch.clone(),
        grade,
        reason: introduction.reason.clone(),
        saves,
        guards,
        parameters,
        epoch_units,
        // A companion that sees optimizer steps only knows no samples.
        unit: introduction.unit.clone().filter(|_| framework.sees_losses()),
        world,
        sharded,
        ignored: introduction.knobs.iter().filter_map(differs).collect(),
        knobs: introduction.knobs.clone(),
        imports_ahead: false,
    }
}

/// Reports whether a standby can start a command ahead whose training runs in its own first process: that is a Python
/// interpreter. A shell script or a launcher would run its own lines before the companion holds it.
pub(super) fn can_import_ahead(introduction: &Introduction, program: &str) -> bool {
    let name = Path::new(program).file_name().and_then(OsStr::to_str).unwrap_or_default();
    let version = name.strip_prefix("python");
    let is_python =
        version.is_some_and(|version| version.chars().all(|letter| letter.is_ascii_digit() || letter == '.'));
    is_python && introduction.world == 1
}

/// Reports whether the value in force is that of the rung. A value that the companion cannot see is null.
fn is_same(rung: &Value, in_force: &Value) -> bool {
    let number = |value: &Value| value.as_f64().or_else(|| value.as_str()?.trim().parse().ok());
    match (number(rung), number(in_force)) {
        _ if in_force.is_null() => true,
        (Some(a), Some(b)) => (a - b).abs() <= SAME * a.abs().max(b.abs()),
        _ => format_knob(rung).eq_ignore_ascii_case(&format_knob(in_force)),
    }
}

#[cfg(test)]
mod tests {
    use super::{can_import_ahead, is_same, news_of};
    use crate::protocol::companion::Introduction;
    use serde_json::json;

    #[test]
    fn knobs_that_the_script_does_not_follow_are_named() {
        let introduction: Introduction = serde_json::from_value(json!({
            "protocol": 1, "pid": 1, "framework": "transformers", "grade": "exact",
            "knobs": {"training.micro_batch": 4, "optimizer.lr": 0.001, "training.accumulation": 8, "knobs.unknown": 1},
        }))
        .unwrap();
        let knobs = json!({"training": {"micro_batch": 2}, "optimizer": {"lr": 1e-3}});
        let news = news_of(&introduction, &knobs);
        let ignored: Vec<_> =
            news.ignored.iter().map(|knob| (knob.name.as_str(), &knob.rung, &knob.in_force)).collect();
        assert_eq!(ignored, [("training.micro_batch", &json!(2), &json!(4))], "the file writes no accumulation");
        assert_eq!(news.knobs.len(), 4);
    }

    #[test]
    fn only_a_python_process_of_the_command_itself_imports_ahead() {
        let introduction = |world: u32| -> Introduction {
            let fields = json!({"protocol": 1, "pid": 7, "framework": "loop", "grade": "exact", "world": world});
            serde_json::from_value(fields).unwrap()
        };
        for program in ["python", "/usr/bin/python3", ".venv/bin/python3.12"] {
            assert!(can_import_ahead(&introduction(1), program), "{program}");
        }
        for program in ["bash", "./train.py", "python-launcher", "torchrun", "env", ""] {
            assert!(!can_import_ahead(&introduction(1), program), "{program}");
        }
        assert!(!can_import_ahead(&introduction(2), "python"), "several ranks");
    }

    #[test]
    fn the_same_setting_may_be_written_in_several_ways() {
        for (rung, in_force, same) in [
            (json!(4), json!(4.0), true),
            (json!("4"), json!(4), true),
            (json!(0.1), json!(0.1_f32), true),
            (json!(5e-5), json!(1e-5), false),
            (json!(true), json!("True"), true),
            (json!("bf16"), json!("no"), false),
            (json!(4), json!(null), true),
            (json!(0), json!(0), true),
        ] {
            assert_eq!(is_same(&rung, &in_force), same, "{rung} {in_force}");
        }
    }
}
