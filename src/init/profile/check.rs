//! Mistakes in a profile that its types do not show.

use super::{LadderStep, OwnRung, Profile, Signs};
use crate::config::command::check::check_line_patterns;
use crate::config::problem::Problem;
use serde_json::Value;

/// The key of a multiple of the present value.
pub const TIMES: &str = "times";

impl Profile {
    /// Returns every mistake.
    pub(super) fn check(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.name.trim().is_empty() {
            problems.push(Problem::at("name", "the profile has no name", "write the name of the trainer"));
        }
        if self.recognise.is_empty() {
            let fix = "write one way, such as `recognise: [{ scripts: [train.py], mentions: [MyTrainer] }]`";
            problems.push(Problem::at("recognise", "no command would have this profile", fix));
        }
        let empty = self.recognise.iter().enumerate().filter(|(_, signs)| **signs == Signs::default());
        problems.extend(empty.map(|(index, _)| {
            let fix = "write a sign, such as `scripts: [train.py]`";
            Problem::at(format!("recognise[{index}]"), "every command would have this profile", fix)
        }));
        problems.extend(check_line_patterns(&self.metrics.patterns));
        for (index, step) in self.ladder.iter().enumerate() {
            if let LadderStep::Own(rung) = step {
                problems.extend(check_rung(rung, &format!("ladder[{index}]")));
            }
        }
        problems
    }
}

fn check_rung(rung: &OwnRung, path: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    if rung.set.is_empty() {
        let fix = "write an argument or a key with its value";
        problems.push(Problem::at(format!("{path}.set"), "the rung changes nothing", fix));
    }
    let is_value = |value: &Value| match value {
        Value::Object(fields) => fields.len() == 1 && fields.get(TIMES).is_some_and(Value::is_number),
        Value::Array(_) | Value::Null => false,
        _ => true,
    };
    let wrong = rung.set.iter().filter(|(_, value)| !is_value(value));
    problems.extend(wrong.map(|(name, _)| {
        let fix = "write a number, a text, true, false, or { times: 0.5 } for half of the present value";
        Problem::at(format!("{path}.set.{name}"), "this is not a value to set", fix)
    }));
    problems
}
