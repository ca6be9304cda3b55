//! The introduction of a companion as news for the keeper, with the knobs that the script does not follow. Pure.

use crate::config::command::launch::{find_knob, format_knob};
use crate::protocol::companion::{CompanionNews, IgnoredKnob, Introduction, SeenKnob};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

/// Two numbers closer than this, relative to their size, are the same setting: 0.1 may come back as a 32-bit number.
const SAME: f64 = 1e-6;

/// Knobs that a script may follow without having their value in force: it scales a rate by the batch, or sets it at every
/// step. Such a knob is ignored only if its value stayed while the rung's changed.
const RELATIVE: [&str; 1] = ["optimizer.lr"];

/// Returns the news about an introduction; `knobs` are those of the rung. `before` are the last ones of the run.
pub(super) fn news_of(introduction: &Introduction, knobs: &Value, before: Option<&CompanionNews>) -> CompanionNews {
    let Introduction { framework, grade, saves, guards, parameters, epoch_units, world, sharded, .. } = *introduction;
    let mut seen = before.map_or_else(BTreeMap::new, |before| before.seen.clone());
    let differs = |(name, in_force): (&String, &Value)| {
        let rung = find_knob(knobs, name)?;
        let is_stuck = note_seen(&mut seen, name, rung, in_force);
        let is_relative = RELATIVE.contains(&name.as_str()) || introduction.measured.contains(name);
        let is_ignored = !is_same(rung, in_force) && (is_stuck || !is_relative);
        is_ignored.then(|| IgnoredKnob { name: name.clone(), rung: rung.clone(), in_force: in_force.clone() })
    };
    let ignored = introduction.knobs.iter().filter_map(differs).collect();
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
        counts_skips: introduction.counts_skips || framework.sees_losses(),
        ignored,
        seen,
        knobs: introduction.knobs.clone(),
        imports_ahead: false,
    }
}

/// Notes a knob's value in force. Reports whether it is the same as on a rung with another value.
fn note_seen(seen: &mut BTreeMap<String, SeenKnob>, name: &str, rung: &Value, in_force: &Value) -> bool {
    if in_force.is_null() {
        return false;
    }
    let stays = |known: &&SeenKnob| is_same(&known.in_force, in_force);
    let known = seen.get(name).filter(stays);
    let is_stuck = known.is_some_and(|known| known.is_stuck || !is_same(&known.rung, rung));
    seen.insert(name.to_owned(), SeenKnob { rung: rung.clone(), in_force: in_force.clone(), is_stuck });
    is_stuck
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
    use serde_json::{Value, json};

    #[test]
    fn knobs_that_the_script_does_not_follow_are_named() {
        let introduction: Introduction = serde_json::from_value(json!({
            "protocol": 1, "pid": 1, "framework": "transformers", "grade": "exact",
            "knobs": {"training.micro_batch": 4, "optimizer.lr": 0.001, "training.accumulation": 8, "knobs.unknown": 1},
        }))
        .unwrap();
        let knobs = json!({"training": {"micro_batch": 2}, "optimizer": {"lr": 1e-3}});
        let news = news_of(&introduction, &knobs, None);
        let ignored: Vec<_> =
            news.ignored.iter().map(|knob| (knob.name.as_str(), &knob.rung, &knob.in_force)).collect();
        assert_eq!(ignored, [("training.micro_batch", &json!(2), &json!(4))], "the file writes no accumulation");
        assert_eq!(news.knobs.len(), 4);
    }

    #[test]
    fn a_batch_that_was_measured_is_ignored_once_it_stays_while_the_rung_changes() {
        let mut news = None;
        for (rung, in_force, ignored) in [(8, json!(null), 0), (2, json!(4), 0), (1, json!(4), 1), (4, json!(4), 0)] {
            let introduction: Introduction = serde_json::from_value(json!({
                "protocol": 1, "pid": 1, "framework": "accelerate_loop", "grade": "exact",
                "knobs": {"training.micro_batch": in_force}, "measured": ["training.micro_batch"],
            }))
            .unwrap();
            let found = news_of(&introduction, &json!({"training": {"micro_batch": rung}}), news.as_ref());
            assert_eq!(found.ignored.len(), ignored, "{rung}");
            news = Some(found);
        }
    }

    #[test]
    fn a_rate_is_ignored_once_it_stays_while_the_rung_changes() {
        let introduces = |in_force: Value| -> Introduction {
            let knobs = json!({"optimizer.lr": in_force});
            serde_json::from_value(
                json!({"protocol": 1, "pid": 1, "framework": "torch", "grade": "none", "knobs": knobs}),
            )
            .unwrap()
        };
        // The rung's rate and the one in force, attempt by attempt; the last ones decide.
        for (attempts, wanted) in [
            (vec![(0.1, json!(0.1)), (0.05, json!(null)), (0.05, json!(0.1))], true),
            (vec![(0.1, json!(0.1)), (0.05, json!(0.1)), (0.05, json!(null)), (0.05, json!(0.1))], true),
            (vec![(0.1, json!(0.01))], false),
            (vec![(0.1, json!(0.01)), (0.1, json!(0.01))], false),
            (vec![(0.1, json!(0.01)), (0.05, json!(0.005))], false),
            (vec![(0.1, json!(0.01)), (0.05, json!(0.01))], true),
            (vec![(0.1, json!(0.1)), (0.05, json!(0.1)), (0.05, json!(0.05))], false),
            (vec![(0.1, json!(null)), (0.05, json!(null))], false),
        ] {
            let mut news = None;
            for (rung, in_force) in &attempts {
                let knobs = json!({"optimizer": {"lr": rung}});
                news = Some(news_of(&introduces(in_force.clone()), &knobs, news.as_ref()));
            }
            assert_eq!(!news.unwrap().ignored.is_empty(), wanted, "{attempts:?}");
        }
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
