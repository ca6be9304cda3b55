//! The rungs that a profile adds to those that follow from the knobs.

use super::{Draft, Rung};
use crate::config::knobs::Relief;
use crate::config::settings_file::is_same;
use crate::init::flag::{Flag, Takes};
use crate::init::knobs::knob_value;
use crate::init::profile::{OwnRung, TIMES};
use crate::init::python::Literal;
use serde_json::Value;

impl Draft<'_> {
    /// Adds a rung of the profile, if the command has each argument that it sets and each value that it needs.
    pub(super) fn add_own(&mut self, rung: &OwnRung) {
        let allows = |(name, values): (&String, &Vec<Value>)| {
            let now = self.named(name).and_then(|flag| self.command.value(flag)).and_then(plain_value);
            now.is_some_and(|now| values.iter().any(|value| is_same(&now, value)))
        };
        let is_there = |name: &String| name.starts_with("environment.") || self.named(name).is_some();
        if !rung.when.iter().all(allows) || !rung.set.keys().all(is_there) {
            return;
        }
        let set: Vec<(String, Value)> = rung.set.iter().filter_map(|(name, value)| self.setting(name, value)).collect();
        if !set.is_empty() {
            let (name, why, relieves) = (rung.name.clone(), rung.why.clone(), rung.relieves.clone());
            self.rungs.push(Rung { name, why, from_full: relieves != [Relief::Memory], relieves, set, is_own: true });
        }
    }

    /// Finds an argument or a key by its spelling.
    pub(super) fn named(&self, name: &str) -> Option<usize> {
        find_named(self.facts.flags, name)
    }

    /// Makes a knob of an argument, and returns the setting that gives it a value; none if it has that value, or if its
    /// present value has to be known and is not.
    fn setting(&mut self, name: &str, value: &Value) -> Option<(String, Value)> {
        if name.starts_with("environment.") {
            return Some((name.to_owned(), value.clone()));
        }
        let flag = self.named(name)?;
        if let Value::Bool(on) = value {
            return self.turn(flag, *on);
        }
        let now = self.command.value(flag).and_then(knob_value);
        let then = match value.get(TIMES) {
            Some(times) => self.multiple(flag, times.as_f64()?)?,
            None => value.clone(),
        };
        if now.as_ref().is_some_and(|now| is_same(now, &then)) {
            return None;
        }
        // A value of a settings file keeps its type.
        let is_of_type = |now: &Value| now.is_number() == then.is_number() && now.is_string() == then.is_string();
        let is_setting = matches!(self.facts.flags[flag].takes, Takes::Setting { .. });
        if is_setting && !now.as_ref().is_some_and(is_of_type) {
            return None;
        }
        let path = self.own_path(flag);
        self.command.add_knob(flag, &path, now.unwrap_or(Value::Null)).then_some((path, then))
    }

    /// Returns a multiple of an argument's present value; a whole number stays one, of at least 1.
    fn multiple(&self, flag: usize, times: f64) -> Option<Value> {
        match (self.command.value(flag)?, &self.facts.flags[flag].takes) {
            (Literal::Int(number), _) => {
                let then = *number as f64 * times;
                (then.fract() == 0.0 && then >= 1.0).then(|| (then as i64).into())
            }
            (_, Takes::Presence(_)) => None,
            _ => self.number(flag).map(|number| (number * times).into()),
        }
    }
}

/// Finds an argument or a key by its spelling, or by the key of a settings file that stands for it.
pub(super) fn find_named(flags: &[Flag], name: &str) -> Option<usize> {
    let plain = |name: &str| name.trim_start_matches('-').replace('-', "_");
    let exact = flags.iter().position(|flag| flag.names.iter().any(|other| other == name));
    exact.or_else(|| flags.iter().position(|flag| flag.names.iter().any(|other| plain(other) == plain(name))))
}

fn plain_value(literal: &Literal) -> Option<Value> {
    match literal {
        Literal::Bool(value) => Some((*value).into()),
        other => knob_value(other),
    }
}
