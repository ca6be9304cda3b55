//! Whether a command is one of a trainer, and by which signs.

use super::Profile;
use crate::config::command::invocation::{Invocation, Target};
use crate::init::program::Program;
use serde::Deserialize;
use std::fmt;

/// Signs of a trainer's command. Each that is written has to be there; of a list, one entry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Signs {
    /// Names of the program that is started.
    pub programs: Vec<String>,
    /// Words among its arguments.
    pub words: Vec<String>,
    /// Endings of a word among its arguments, such as `.yaml`.
    pub endings: Vec<String>,
    /// Modules, as after `-m`.
    pub modules: Vec<String>,
    /// Names of the script.
    pub scripts: Vec<String>,
    /// Packages that its source imports.
    pub imports: Vec<String>,
    /// Names that its source mentions.
    pub mentions: Vec<String>,
    /// Arguments that its source declares, without dashes.
    pub declares: Vec<String>,
}

/// A kind of sign: its description, the entries of which one has to be there, and whether one is.
type Sign<'a, 'b> = (&'static str, &'a [String], &'b dyn Fn(&str) -> bool);

/// A command as a profile sees it.
pub struct Evidence<'a> {
    /// The program, the module or the script.
    pub invocation: &'a Invocation,
    /// The arguments of the script.
    pub arguments: &'a [String],
    /// The source, if it was read.
    pub program: Option<&'a Program>,
    /// The keys of the arguments that the source declares.
    pub declared: &'a [&'a str],
}

/// The profile of a command, and the signs by which it was recognised.
#[derive(Debug, Clone)]
pub struct Recognised<'a> {
    /// The profile.
    pub profile: &'a Profile,
    signs: Vec<(&'static str, &'a str)>,
}

impl<'a> Recognised<'a> {
    /// Finds the profile of a command: the first that fits.
    pub fn find(profiles: &'a [Profile], evidence: &Evidence<'_>) -> Option<Self> {
        profiles.iter().find_map(|profile| {
            let signs = profile.recognise.iter().find_map(|signs| signs.find_in(evidence))?;
            Some(Self { profile, signs })
        })
    }
}

impl fmt::Display for Recognised<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let signs: Vec<String> = self.signs.iter().map(|(what, word)| format!("{what} {word}")).collect();
        write!(formatter, "profile {}: {}", self.profile.name, signs.join(", "))
    }
}

impl Signs {
    /// Returns the sign of each kind that is there; none if one is missing.
    fn find_in(&self, evidence: &Evidence<'_>) -> Option<Vec<(&'static str, &str)>> {
        let Evidence { invocation, arguments, program, declared } = evidence;
        let is_module = matches!(invocation.target, Target::Module(_));
        let starts = |name: &str| !is_module && invocation.started() == name;
        let imports = |name: &str| program.is_some_and(|it| it.imports().any(|import| import.root() == name));
        let wanted: [Sign<'_, '_>; 8] = [
            ("the command starts", &self.programs, &starts),
            ("with", &self.words, &|word| arguments.iter().any(|argument| argument == word)),
            ("with a file", &self.endings, &|end| arguments.iter().any(|argument| argument.ends_with(end))),
            ("the command starts the module", &self.modules, &|name| is_module && invocation.started() == name),
            ("the script is", &self.scripts, &starts),
            ("its source imports", &self.imports, &imports),
            ("its source mentions", &self.mentions, &|name| program.is_some_and(|program| program.mentions(name))),
            ("its source declares", &self.declares, &|name| declared.contains(&name)),
        ];
        let written = wanted.into_iter().filter(|(_, words, _)| !words.is_empty());
        written
            .map(|(what, words, is_there)| Some((what, words.iter().find(|word| is_there(word))?.as_str())))
            .collect()
    }
}
