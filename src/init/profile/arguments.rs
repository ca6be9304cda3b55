//! The arguments of a profile, in the form of those that a source declares.

use super::{Argument, Kind, LadderStep, Profile};
use crate::init::flag::{Declared, Flag, Library, Takes, ValueKind};
use crate::init::hugging_face::literal;
use std::collections::BTreeSet;

impl Profile {
    /// Returns the arguments and keys that its rungs set or need, and those that name its checkpoints.
    pub fn own_names(&self) -> impl Iterator<Item = &str> {
        let own = self.ladder.iter().filter_map(|step| match step {
            LadderStep::Own(rung) => Some(rung),
            LadderStep::BuiltIn(_) => None,
        });
        let of_rungs = own.flat_map(|rung| rung.set.keys().chain(rung.when.keys())).map(String::as_str);
        let patterns = self.checkpoints.iter().map(|form| form.pattern.as_str());
        of_rungs.chain(patterns.flat_map(|text| text.split('<').skip(1).filter_map(|part| part.split('>').next())))
    }

    /// Adds the arguments of the profile that the source of the script does not declare.
    pub fn add_arguments(&self, script: &str, declared: &mut Declared) {
        let known: BTreeSet<String> =
            declared.flags.iter().flat_map(|flag| &flag.names).map(|name| same_spelling(name)).collect();
        let has = |argument: &Argument| argument.scripts.is_empty() || argument.scripts.iter().any(|it| it == script);
        for (name, argument) in self.arguments.iter().filter(|(_, argument)| has(argument)) {
            if !known.contains(&same_spelling(name)) {
                declared.add(Library::Profile, argument.flag(name));
            }
        }
    }
}

fn same_spelling(name: &str) -> String {
    name.replace('-', "_")
}

impl Argument {
    fn flag(&self, name: &str) -> Flag {
        let kind = match self.is {
            Kind::Integer => ValueKind::Integer,
            Kind::Number => ValueKind::Number,
            Kind::Boolean | Kind::Switch => ValueKind::Boolean,
            Kind::Text => ValueKind::Text,
        };
        let takes = match self.is {
            Kind::Switch => Takes::Presence(true),
            _ if name.starts_with('-') => Takes::Value(kind),
            _ => Takes::KeyValue { kind, lowercase: true },
        };
        Flag {
            names: vec![name.to_owned()],
            key: name.trim_start_matches('-').replace('-', "_"),
            takes,
            default: self.default.as_ref().and_then(literal),
            choices: self.choices.clone(),
            subcommand: None,
        }
    }
}
