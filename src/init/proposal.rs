//! From a script's arguments to a run file: which become knobs, and which rungs they make possible. Pure.

mod checkpoints;
mod copy;
mod note;
mod own;
mod rungs;

use super::attached::Attached;
use super::flag::{Flag, Takes};
use super::given::is_selected;
use super::kept::Kept;
use super::knobs::{Command, Words, knob_value};
use super::profile::Profile;
use super::python::Literal;
use super::roles::{Role, Table};
use super::saves::Saved;
use super::user_settings::{Ambiguous, UserSettings};
use crate::config::command::SaveRequest;
use crate::config::knobs::Relief;
pub use checkpoints::Checkpoints;
pub use copy::ProposedCopy;
pub use note::Note;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The roles of arguments that a kept loop does not need.
const BATCH: [Role; 2] = [Role::MicroBatch, Role::Accumulation];

/// The facts about a script and its command.
pub struct Facts<'a> {
    /// The command.
    pub words: Words,
    /// The arguments that the script accepts.
    pub flags: &'a [Flag],
    /// Whether the script mentions a name; `false` for all where the source was not read.
    pub mentions: &'a dyn Fn(&str) -> bool,
    /// The batches of its loop, if `downshift.attach` keeps it.
    pub attached: Option<Attached>,
    /// The code that the companion keeps.
    pub kept: Option<Kept>,
    /// The files that the script saves by itself.
    pub saved: Vec<Saved>,
    /// The profile of its trainer.
    pub profile: Option<&'a Profile>,
    /// The settings files whose keys are among `flags`.
    pub settings: Vec<UserSettings>,
    /// Arguments of the command that a settings file overrides.
    pub beaten: Vec<String>,
    /// Knobs in a settings file that another one names: the meaning and the file.
    pub nested: Vec<(String, PathBuf)>,
    /// Arguments of which several mean the same.
    pub ambiguous: Vec<Ambiguous>,
    /// Several settings files.
    pub several: Vec<String>,
}

/// A proposed run file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Proposal {
    /// The command with placeholders.
    pub command: Vec<String>,
    /// Arguments that are passed only where a rung changes the script's own default.
    pub defaults: Vec<(String, Value)>,
    /// The knobs on rung `full`: dotted path and value.
    pub knobs: Vec<(String, Value)>,
    /// The knobs that are constants of the script.
    pub constants: Vec<String>,
    /// The copies of settings files.
    pub copies: Vec<ProposedCopy>,
    /// Patterns for lines of output.
    pub patterns: Vec<String>,
    /// How the script is asked to save.
    pub save: Option<SaveRequest>,
    /// The companion gives the loop the batch of each rung.
    pub batch_by_companion: bool,
    /// The script's checkpoints, if their form is known.
    pub checkpoints: Option<Checkpoints>,
    /// The ladder below `full`.
    pub rungs: Vec<Rung>,
    /// A rung that changes the training: written as a comment.
    pub offered: Option<Rung>,
    /// The recognised arguments, in the order of the table.
    pub recognised: Vec<Recognised>,
    /// The roles that no argument has.
    pub missing: Vec<String>,
    /// Reasons why something is not proposed.
    pub notes: Vec<Note>,
}

impl Proposal {
    /// Returns the framework that the companion keeps.
    pub fn kept(&self) -> Option<Kept> {
        self.notes.iter().find_map(|note| match note {
            Note::Kept(kept) => Some(*kept),
            _ => None,
        })
    }
}

/// A proposed rung.
#[derive(Debug, Clone, PartialEq)]
pub struct Rung {
    /// Its name.
    pub name: String,
    /// Why it helps.
    pub why: String,
    /// The kinds of failure it helps against.
    pub relieves: Vec<Relief>,
    /// Whether it changes `full` instead of the rung above.
    pub from_full: bool,
    /// The knobs it sets.
    pub set: Vec<(String, Value)>,
    /// Whether it is one of the profile alone.
    pub is_own: bool,
}

/// A recognised argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recognised {
    /// Its purpose.
    pub title: String,
    /// Its spelling.
    pub spelling: String,
    /// Its value, if known.
    pub value: Option<String>,
    /// Whether the command gives it.
    pub given: bool,
}

/// Proposes a run file.
pub fn propose(facts: &Facts<'_>, table: &Table) -> Proposal {
    let arguments: Vec<String> = facts.words.fixed.iter().chain(&facts.words.arguments).cloned().collect();
    let mut roles = table.recognise(facts.flags, |flag| is_selected(flag, &arguments));
    let command = Command::new(&facts.words, facts.flags);
    for (role, names) in facts.profile.iter().flat_map(|profile| &profile.fixed_by) {
        let is_on = |name: &String| own::find_named(facts.flags, name).is_some_and(|flag| command.is_on(flag));
        if names.iter().any(is_on) {
            roles.remove(role);
        }
    }
    let mut draft = Draft {
        facts,
        table,
        roles,
        command,
        rungs: Vec::new(),
        offered: None,
        notes: Vec::new(),
        batch_by_companion: false,
    };
    if !facts.words.open {
        draft.notes.push(Note::Closed);
    }
    draft.notes.extend(facts.ambiguous.iter().cloned().map(Note::Ambiguous));
    draft.notes.extend(facts.beaten.iter().cloned().map(Note::Beaten));
    draft.notes.extend(facts.nested.iter().map(|(title, file)| Note::Nested(title.clone(), file.clone())));
    if !facts.several.is_empty() {
        draft.notes.push(Note::SeveralSettings(facts.several.clone()));
    }
    draft.add_given_knobs();
    draft.add_rungs();
    let checkpoints = draft.find_checkpoints();
    let (recognised, missing) = draft.report();
    let copies = draft.copy_settings();
    let save = draft.find_save().filter(|_| checkpoints.is_some());
    Proposal {
        command: draft.command.words(),
        defaults: draft.command.defaults,
        knobs: draft.command.knobs,
        constants: draft.command.constants,
        copies,
        patterns: facts.profile.map(|profile| profile.metrics.patterns.clone()).unwrap_or_default(),
        save,
        batch_by_companion: draft.batch_by_companion,
        checkpoints,
        rungs: draft.rungs,
        offered: draft.offered,
        recognised,
        missing,
        notes: draft.notes,
    }
}

struct Draft<'a> {
    facts: &'a Facts<'a>,
    table: &'a Table,
    roles: BTreeMap<Role, Vec<usize>>,
    command: Command<'a>,
    rungs: Vec<Rung>,
    offered: Option<Rung>,
    notes: Vec<Note>,
    batch_by_companion: bool,
}

impl Draft<'_> {
    /// Returns the argument of a role.
    fn flag(&self, role: Role) -> Option<usize> {
        self.roles.get(&role).and_then(|flags| flags.first()).copied()
    }

    /// Returns the path of the knob for an argument of a role.
    fn path(&self, role: Role, flag: usize) -> String {
        let entry = self.table.roles.iter().find(|entry| entry.role == role);
        entry.and_then(|entry| entry.knob.clone()).unwrap_or_else(|| self.own_path(flag))
    }

    /// Returns the path of a knob of the argument's own name.
    fn own_path(&self, flag: usize) -> String {
        let plain = |letter: char| if letter.is_alphanumeric() { letter } else { '_' };
        format!("knobs.{}", self.facts.flags[flag].key.chars().map(plain).collect::<String>())
    }

    fn whole(&self, flag: usize) -> Option<i64> {
        match self.command.value(flag)? {
            Literal::Int(number) => Some(*number),
            Literal::Float(number) if number.fract() == 0.0 && number.abs() < 1e15 => Some(*number as i64),
            Literal::Text(text) => text.parse().ok(),
            _ => None,
        }
    }

    fn number(&self, flag: usize) -> Option<f64> {
        match self.command.value(flag)? {
            Literal::Int(number) => Some(*number as f64),
            Literal::Float(number) => Some(*number),
            Literal::Text(text) => text.parse().ok().filter(|number: &f64| number.is_finite()),
            _ => None,
        }
    }

    /// Turns the given arguments that training is about into knobs, so that rungs and `--set` reach them.
    fn add_given_knobs(&mut self) {
        for role in [Role::MicroBatch, Role::Accumulation, Role::Steps, Role::Epochs, Role::Seed] {
            let Some(flag) = self.flag(role).filter(|flag| self.command.is_given(*flag)) else { continue };
            let least = i64::from(role != Role::Seed);
            // A run has a length in steps or in epochs.
            let is_second = role == Role::Epochs && self.command.knobs.iter().any(|(path, _)| path == "training.steps");
            if let Some(number) = self.whole(flag).filter(|number| *number >= least && !is_second) {
                let path = self.path(role, flag);
                self.command.add_knob(flag, &path, number.into());
            }
        }
        for role in [Role::LearningRate, Role::Clipping] {
            let Some(flag) = self.flag(role).filter(|flag| self.command.is_given(*flag)) else { continue };
            if let Some(number) = self.number(flag).filter(|number| *number > 0.0) {
                let path = self.path(role, flag);
                self.command.add_knob(flag, &path, number.into());
            }
        }
        if let Some(flag) = self.flag(Role::Workers).filter(|flag| self.command.is_given(*flag))
            && let Some(value) = self.command.value(flag).and_then(knob_value)
        {
            let path = self.own_path(flag);
            self.command.add_knob(flag, &path, value);
        }
    }

    /// Reports whether another argument does the same.
    fn is_covered(&self, role: Role) -> bool {
        let same: &[Role] = match role {
            Role::Precision | Role::Fp16 | Role::Bf16 => &[Role::Precision, Role::Fp16, Role::Bf16],
            Role::Steps | Role::Epochs => &[Role::Steps, Role::Epochs],
            Role::Attention | Role::FusedKernels => &[Role::Attention, Role::FusedKernels],
            _ => &[],
        };
        same.iter().any(|role| self.flag(*role).is_some())
    }

    /// Reports whether the profile says that nothing holds a knob.
    fn is_left_out(&self, role: Role) -> bool {
        self.facts.profile.and_then(|profile| profile.knobs.get(&role)).is_some_and(Vec::is_empty)
    }

    /// Returns the recognised arguments, and the titles of roles without one.
    fn report(&self) -> (Vec<Recognised>, Vec<String>) {
        let (mut recognised, mut missing) = (Vec::new(), Vec::new());
        for entry in &self.table.roles {
            match self.flag(entry.role) {
                Some(flag) => recognised.push(Recognised {
                    title: entry.title.clone(),
                    spelling: self.facts.flags[flag].spelling().to_owned(),
                    value: self.command.value(flag).and_then(super::argparse::written),
                    given: self.command.is_given(flag) || matches!(self.facts.flags[flag].takes, Takes::Setting { .. }),
                }),
                None if self.is_covered(entry.role) || self.is_left_out(entry.role) => {}
                None if self.batch_by_companion && BATCH.contains(&entry.role) => {}
                None => missing.push(entry.title.clone()),
            }
        }
        (recognised, missing)
    }
}
