//! Turns arguments of a command into placeholders, and their values into knobs.

use super::argparse::written;
use super::constants::is_settable;
use super::flag::{Flag, Takes, ValueKind};
use super::given::{Given, Place, match_arguments};
use super::python::Literal;
use crate::config::command::template::escape;
use serde_json::Value;
use std::collections::HashMap;

/// A command as words, with its script's arguments apart.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Words {
    /// Everything before the script's arguments.
    pub before: Vec<String>,
    /// Arguments that a shell script passes, which cannot be edited from outside.
    pub fixed: Vec<String>,
    /// The script's arguments.
    pub arguments: Vec<String>,
    /// Whether further arguments reach the script.
    pub open: bool,
}

/// A command whose arguments become placeholders.
pub struct Command<'a> {
    flags: &'a [Flag],
    given: HashMap<usize, Given>,
    fixed: usize,
    open: bool,
    before: Vec<String>,
    arguments: Vec<String>,
    /// Arguments of the script's defaults that rungs change: text with a placeholder and default, null if it is unknown.
    pub defaults: Vec<(String, Value)>,
    /// The knobs in force on rung `full`, in the order they were made: dotted path and value.
    pub knobs: Vec<(String, Value)>,
    /// The knobs that are constants of the script.
    pub constants: Vec<String>,
    /// The keys of settings files that knobs set: index of the file, path and text with placeholders.
    pub settings: Vec<(usize, String, String)>,
}

impl<'a> Command<'a> {
    /// Reads a command.
    pub fn new(words: &Words, flags: &'a [Flag]) -> Self {
        let all: Vec<String> = words.fixed.iter().chain(&words.arguments).cloned().collect();
        let escaped = |words: &[String]| words.iter().map(|word| escape(word)).collect();
        Self {
            flags,
            given: match_arguments(&all, flags),
            fixed: words.fixed.len(),
            open: words.open,
            before: escaped(&words.before),
            arguments: escaped(&words.arguments),
            defaults: Vec::new(),
            knobs: Vec::new(),
            constants: Vec::new(),
            settings: Vec::new(),
        }
    }

    /// Returns the command with its placeholders.
    pub fn words(&self) -> Vec<String> {
        self.before.iter().chain(&self.arguments).cloned().collect()
    }

    /// Reports whether a number can stand where the argument has its own: a whole one stays whole in a settings file.
    pub fn fits(&self, flag: usize, number: f64) -> bool {
        use Takes::{Constant, Setting};
        let (Setting { kind, .. } | Constant { kind, .. }) = self.flags[flag].takes else { return true };
        kind != ValueKind::Integer || number.fract() == 0.0
    }

    /// Returns the value in force: the given one, or the script's default.
    pub fn value(&self, flag: usize) -> Option<&Literal> {
        self.given.get(&flag).map(|given| &given.value).or(self.flags[flag].default.as_ref())
    }

    /// Reports whether the command gives the argument.
    pub fn is_given(&self, flag: usize) -> bool {
        self.given.contains_key(&flag) || matches!(self.flags[flag].takes, Takes::Constant { written: true, .. })
    }

    /// Reports whether a switch is on.
    pub fn is_on(&self, flag: usize) -> bool {
        self.value(flag) == Some(&Literal::Bool(true))
    }

    /// Puts the placeholder of a knob in the place of an argument's value, or adds the argument for rungs that change it.
    /// Returns whether it could.
    pub fn add_knob(&mut self, flag: usize, path: &str, value: Value) -> bool {
        if self.knobs.iter().any(|(known, _)| known == path) {
            return true;
        }
        if let Takes::Constant { .. } = self.flags[flag].takes {
            if !is_settable(path) {
                return false;
            }
            self.constants.push(path.to_owned());
            self.knobs.push((path.to_owned(), value));
            return true;
        }
        let is_placed = self.place_value(flag, format!("{{{path}}}"), &value);
        if is_placed {
            self.knobs.push((path.to_owned(), value));
        }
        is_placed
    }

    fn place_value(&mut self, flag: usize, holder: String, value: &Value) -> bool {
        if let Takes::Setting { file, .. } = self.flags[flag].takes {
            self.settings.push((file, self.flags[flag].names[0].clone(), holder));
            return true;
        }
        let place = self.given.get(&flag).map(|given| given.place).and_then(|place| self.editable(place));
        let (spelling, takes) = (self.flags[flag].spelling().to_owned(), &self.flags[flag].takes);
        let is_switch = matches!(takes, Takes::Presence(_) | Takes::Pair { .. });
        match place {
            Some(Place::Joined(at)) => {
                let name = self.arguments[at].split('=').next().unwrap_or_default().to_owned();
                self.arguments[at] = format!("{name}={holder}");
            }
            Some(Place::After(at)) => self.arguments[at] = holder,
            Some(Place::Alone(at)) if is_switch => self.arguments[at] = holder,
            Some(Place::Alone(at)) => self.arguments[at] = format!("{}={holder}", self.arguments[at]),
            None if !self.open || *takes == Takes::Values => return false,
            None if is_switch => self.arguments.push(holder),
            None => {
                // After a short option of one letter, the value needs no sign between them.
                let joint = if spelling.len() == 2 && spelling.starts_with('-') { "" } else { "=" };
                self.defaults.push((format!("{spelling}{joint}{holder}"), value.clone()));
            }
        }
        true
    }

    /// Replaces a text at the end of one of the script's arguments.
    pub fn replace_word(&mut self, word: usize, text: &str, by: &str) {
        let Some(argument) = word.checked_sub(self.fixed).and_then(|at| self.arguments.get_mut(at)) else { return };
        if let Some(before) = argument.strip_suffix(&escape(text)) {
            *argument = format!("{before}{by}");
        }
    }

    /// Returns the place among the script's own arguments; `None` for one inside a shell script.
    fn editable(&self, place: Place) -> Option<Place> {
        let own = |at: usize| at.checked_sub(self.fixed);
        match place {
            Place::Joined(at) => own(at).map(Place::Joined),
            Place::After(at) => own(at).map(Place::After),
            Place::Alone(at) => own(at).map(Place::Alone),
        }
    }

    /// Returns a knob's value that turns a switch on or off. A switch that has no value is the argument itself, which is
    /// left out where it is empty.
    pub fn switched(&self, index: usize, on: bool) -> Option<Value> {
        let flag = &self.flags[index];
        let text = match &flag.takes {
            Takes::Setting { kind: ValueKind::Boolean, .. } | Takes::Constant { kind: ValueKind::Boolean, .. } => {
                return Some(on.into());
            }
            Takes::KeyValue { kind: ValueKind::Boolean, lowercase: true } => return Some(on.to_string().into()),
            Takes::Presence(sets) if *sets == on => flag.spelling(),
            // One inside a shell script cannot be left out.
            Takes::Presence(_) if self.given.get(&index).is_some_and(|given| self.editable(given.place).is_none()) => {
                return None;
            }
            Takes::Presence(_) => "",
            Takes::Pair { .. } if on => flag.spelling(),
            Takes::Pair { off } => off,
            Takes::OptionalBoolean
            | Takes::Value(ValueKind::Boolean)
            | Takes::Assignment(ValueKind::Boolean)
            | Takes::KeyValue { kind: ValueKind::Boolean, .. } => {
                if on {
                    "True"
                } else {
                    "False"
                }
            }
            Takes::Value(_)
            | Takes::Assignment(_)
            | Takes::Values
            | Takes::KeyValue { .. }
            | Takes::Setting { .. }
            | Takes::Constant { .. } => {
                return None;
            }
        };
        Some(text.into())
    }

    /// Returns the knob's value for a switch as the command has it.
    pub fn switch_now(&self, flag: usize) -> Option<Value> {
        let stands_alone = matches!(self.flags[flag].takes, Takes::Presence(_) | Takes::Pair { .. });
        if !stands_alone && !self.is_given(flag) && !matches!(self.value(flag), Some(Literal::Bool(_))) {
            // The argument is left out until a rung sets it.
            return Some(Value::Null);
        }
        if stands_alone && !self.is_given(flag) { Some("".into()) } else { self.switched(flag, self.is_on(flag)) }
    }
}

/// Returns a value as a knob has it.
pub fn knob_value(literal: &Literal) -> Option<Value> {
    match literal {
        Literal::Int(number) => Some((*number).into()),
        Literal::Float(number) => Some((*number).into()),
        Literal::Text(text) => Some(text.as_str().into()),
        Literal::Bool(_) => written(literal).map(Value::from),
        Literal::None => None,
    }
}
