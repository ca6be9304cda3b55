//! The arguments a script accepts, whatever library declares them.

use super::python::Literal;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::fmt;

/// One argument of a script.
#[derive(Debug, Clone, PartialEq)]
pub struct Flag {
    /// Its spellings with dashes, such as `--batch-size` and `-b`; never empty.
    pub names: Vec<String>,
    /// The name of its value in the script, such as `batch_size`.
    pub key: String,
    /// How it is written on a command line.
    pub takes: Takes,
    /// The value without it; `None` if only running the script would tell.
    pub default: Option<Literal>,
    /// The only values it accepts; empty if any.
    pub choices: Vec<String>,
    /// The subcommand it belongs to.
    pub subcommand: Option<String>,
}

/// How an argument is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Takes {
    /// `--lr 1e-3` or `--lr=1e-3`.
    Value(ValueKind),
    /// `--files a b c`.
    Values,
    /// `--fp16`, `--fp16 true` or `--fp16=false`.
    OptionalBoolean,
    /// `--fp16` alone, which sets this value.
    Presence(bool),
    /// `--compile` or the other spelling, such as `--no-compile`.
    Pair {
        /// The spelling that turns it off.
        off: String,
    },
    /// `--lr=1e-3` alone.
    Assignment(ValueKind),
    /// `lr=1e-3`, as Hydra and OmegaConf read it.
    KeyValue {
        /// The kind of its value.
        kind: ValueKind,
        /// `true` instead of `True`.
        lowercase: bool,
    },
    /// A constant of the script, which its companion can set in the process.
    Constant {
        /// The kind of its value.
        kind: ValueKind,
        /// The script writes it; else it has the default of its framework.
        written: bool,
    },
    /// A key of a settings file that the command names.
    Setting {
        /// The kind of its value.
        kind: ValueKind,
        /// The index of the file.
        file: usize,
    },
}

/// The kind of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// A whole number.
    Integer,
    /// Any number.
    Number,
    /// `true` or `false` as text.
    Boolean,
    /// Anything else.
    Text,
}

impl ValueKind {
    /// Guesses the kind from a default.
    pub fn of_default(default: Option<&Literal>) -> Self {
        match default {
            Some(Literal::Int(_)) => Self::Integer,
            Some(Literal::Float(_)) => Self::Number,
            Some(Literal::Bool(_)) => Self::Boolean,
            Some(Literal::Text(_) | Literal::None) | None => Self::Text,
        }
    }

    /// Reads the name of a type, as `type=` and annotations have it.
    pub fn of_type(name: &str) -> Option<Self> {
        match name.rsplit('.').next().unwrap_or(name) {
            "int" | "PositiveInt" | "NonNegativeInt" | "INT" => Some(Self::Integer),
            "float" | "PositiveFloat" | "FLOAT" => Some(Self::Number),
            "str" | "Path" | "STRING" => Some(Self::Text),
            name if name.to_ascii_lowercase().contains("bool") => Some(Self::Boolean),
            _ => None,
        }
    }
}

impl Flag {
    /// Returns the spelling to write: a long one, since short ones are cryptic in a run file.
    pub fn spelling(&self) -> &str {
        let long = self.names.iter().find(|name| name.starts_with("--"));
        long.or(self.names.first()).map_or("", String::as_str)
    }
}

/// A library that reads a command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Library {
    /// Python's own argparse.
    Argparse,
    /// click.
    Click,
    /// transformers' HfArgumentParser, or TRL's.
    HuggingFace,
    /// tyro.
    Tyro,
    /// nanoGPT's configurator.py.
    Configurator,
    /// The text that `--help` printed.
    Help,
    /// The profile of its trainer.
    Profile,
}

impl fmt::Display for Library {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Argparse => "argparse",
            Self::Click => "click",
            Self::HuggingFace => "HfArgumentParser",
            Self::Tyro => "tyro",
            Self::Configurator => "configurator.py",
            Self::Help => "--help",
            Self::Profile => "profile",
        })
    }
}

/// Every argument found, and what is known about the search.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Declared {
    /// The arguments, in the order of their declaration.
    pub flags: Vec<Flag>,
    /// The libraries that declare them.
    pub libraries: BTreeSet<Library>,
    /// Packages whose arguments come from a list inside downshift, with the version of that list.
    pub packages: BTreeSet<String>,
    /// Arguments whose names are computed while the script runs.
    pub computed: usize,
    /// Index of each argument by subcommand and first spelling.
    index: HashMap<(Option<String>, String), usize>,
}

/// Maximum number of arguments; real scripts have some hundreds.
const FLAGS: usize = 4_000;

impl Declared {
    /// Adds an argument. One of the same spelling replaces an earlier one: scripts override their parents.
    pub fn add(&mut self, library: Library, flag: Flag) {
        self.libraries.insert(library);
        let first = flag.names.first().cloned().unwrap_or_default();
        match self.index.entry((flag.subcommand.clone(), first)) {
            Entry::Occupied(earlier) => self.flags[*earlier.get()] = flag,
            Entry::Vacant(place) if self.flags.len() < FLAGS => {
                place.insert(self.flags.len());
                self.flags.push(flag);
            }
            Entry::Vacant(_) => {}
        }
    }
}
