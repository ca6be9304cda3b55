//! Settings files that a command names: `--config my.yaml`, or a word of its own. Their keys become arguments of a kind that is
//! set in a copy of the file, and what they may override has no known default any more.

use super::flag::{Flag, Takes, ValueKind};
use super::given::match_arguments;
use super::profile::SettingsOption;
use super::python::Literal;
use super::roles::{Role, Table};
use crate::config::settings_file::{Format, SettingsFile};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Names of options that take the settings of the whole script.
const OPTIONS: [&str; 14] = [
    "c",
    "config",
    "config_file",
    "config_path",
    "config_yaml",
    "configs",
    "cfg",
    "cfg_file",
    "cfg_path",
    "conf",
    "opt",
    "params",
    "settings",
    "yaml",
];
/// Endings of settings files that are not read: what they override is unknown.
const UNREAD: [&str; 6] = ["py", "cfg", "ini", "conf", "gin", "libsonnet"];

/// A settings file that a command names.
#[derive(Debug, Clone, PartialEq)]
pub struct UserSettings {
    /// The index of its word among the script's arguments.
    pub word: usize,
    /// The file, as the command names it.
    pub path: PathBuf,
    /// Its content.
    pub file: SettingsFile,
    /// It names files relative to its own folder.
    pub is_relative: bool,
    /// Whether its values count more than arguments of the same meaning; none if that is not known.
    pub wins: Option<bool>,
}

/// The settings of a command, and what is known about it with them.
#[derive(Debug, Default)]
pub struct Found {
    /// The settings files that were read.
    pub settings: Vec<UserSettings>,
    /// The command names settings that may override the defaults of its script.
    pub hides_defaults: bool,
    /// Several settings files, of which none is changed.
    pub several: Vec<String>,
    /// Settings files that another one names, and whose values count: no rung reaches them.
    pub nested: Vec<(PathBuf, SettingsFile)>,
}

/// Arguments of which several mean the same, so that none of them becomes a knob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ambiguous {
    /// Their meaning.
    pub title: String,
    /// Their names.
    pub names: Vec<String>,
}

/// Finds the settings files among a script's arguments, the first `fixed` of which cannot be edited. `options`: those that
/// name such files, if its profile says. `known`: the arguments that are files whose values are known already.
pub fn find(
    arguments: &[String],
    fixed: usize,
    folder: &Path,
    options: &[SettingsOption],
    known: &BTreeSet<usize>,
) -> Found {
    let mut found = Found::default();
    let mut read = Vec::new();
    for (word, argument) in arguments.iter().enumerate() {
        let Some((value, wins)) = settings_value(arguments, word, argument, options) else { continue };
        let path = Path::new(value);
        if known.contains(&word) || !folder.join(path).is_file() {
            continue;
        }
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        // A file of a known option is read as a whole, and what it leaves out keeps its default.
        found.hides_defaults |= wins.is_none() && (Format::of(path).is_some() || UNREAD.contains(&ending));
        if let Ok(file) = SettingsFile::read(&folder.join(path)) {
            let is_relative = names_files_beside(&file, folder, path);
            read.push(UserSettings { word, path: path.to_owned(), file, is_relative, wins });
        }
    }
    if read.len() > 1 && read.iter().any(|settings| settings.wins.is_none()) {
        found.several = read.iter().map(|settings| settings.path.display().to_string()).collect();
        return found;
    }
    found.nested = read.iter().flat_map(|settings| nested_files(&settings.file, folder, options)).collect();
    found.settings = read;
    found.settings.retain(|settings| settings.word >= fixed);
    found
}

/// Returns the first settings file that an option names and that is not there, with the option.
pub fn find_missing(arguments: &[String], folder: &Path) -> Option<(String, PathBuf)> {
    arguments.iter().enumerate().find_map(|(word, argument)| {
        let (value, _) = settings_value(arguments, word, argument, &[])?;
        let option = match argument.split_once('=') {
            Some((option, _)) => option,
            None => word.checked_sub(1).map(|before| arguments[before].as_str())?,
        };
        let path = Path::new(value);
        // A variable of a shell or a placeholder names a file that is not known here.
        let is_known = !value.contains(['$', '{', '*']) && Format::of(path).is_some();
        let is_missing = option.starts_with('-') && is_known && !folder.join(path).exists();
        is_missing.then(|| (option.to_owned(), path.to_owned()))
    })
}

/// Returns the settings files that a settings file names under an option of which the values count.
fn nested_files(file: &SettingsFile, folder: &Path, options: &[SettingsOption]) -> Vec<(PathBuf, SettingsFile)> {
    let is_named = |key: &str| {
        options
            .iter()
            .any(|it| it.wins && it.option.as_deref().is_some_and(|option| plain_name(option) == plain_name(key)))
    };
    let named = file.leaves().into_iter().filter(|(key, _)| is_named(key.rsplit('.').next().unwrap_or(key)));
    let path = |value: Value| value.as_str().map(PathBuf::from);
    let read = |path: PathBuf| Some((path.clone(), SettingsFile::read(&folder.join(path)).ok()?));
    named.filter_map(|(_, value)| path(value)).filter_map(read).collect()
}

fn plain_name(name: &str) -> String {
    name.trim_start_matches('-').to_ascii_lowercase().replace('-', "_")
}

/// Returns the file name in an argument that may hold the settings of the script, and whether its values count more than
/// arguments, if the profile says.
fn settings_value<'a>(
    arguments: &[String],
    word: usize,
    argument: &'a str,
    options: &[SettingsOption],
) -> Option<(&'a str, Option<bool>)> {
    let named = |it: &SettingsOption| it.option.as_deref().map(plain_name);
    let listed = |name: Option<&str>| options.iter().find(|it| named(it) == name.map(plain_name)).map(|it| it.wins);
    let is_option = |name: &str| listed(Some(name)).is_some() || OPTIONS.contains(&plain_name(name).as_str());
    match argument.split_once('=') {
        Some((name, value)) if argument.starts_with('-') || is_option(name) => {
            is_option(name).then(|| (value, listed(Some(name))))
        }
        None if argument.starts_with('-') => None,
        _ => {
            let before = word.checked_sub(1).map(|before| arguments[before].as_str());
            let option = before.filter(|before| before.starts_with('-') && !before.contains('='));
            option.is_none_or(is_option).then(|| (argument, listed(option)))
        }
    }
}

/// Reports whether a file names another one that is there seen from its own folder, and not seen from the command's.
fn names_files_beside(file: &SettingsFile, folder: &Path, path: &Path) -> bool {
    let own = folder.join(path.parent().unwrap_or(Path::new("")));
    let is_beside = |value: &Value| {
        let text =
            value.as_str().filter(|text| text.contains(['.', '/']) && !text.starts_with('/') && text.len() < 1000);
        text.is_some_and(|text| own.join(text).exists() && !folder.join(text).exists())
    };
    file.leaves().iter().any(|(_, value)| match value {
        Value::Array(items) => items.iter().any(is_beside),
        value => is_beside(value),
    })
}

/// The arguments that a proposal may change, and those that it may not.
#[derive(Debug, Default)]
pub struct Merged {
    /// Those of the script, `key=value` words, and the keys of settings files.
    pub flags: Vec<Flag>,
    /// Those of which several mean the same.
    pub ambiguous: Vec<Ambiguous>,
    /// Arguments of the command that a settings file overrides.
    pub beaten: Vec<String>,
    /// Those that are in a file which no rung reaches: the meaning and the file.
    pub nested: Vec<(String, PathBuf)>,
}

/// Joins the arguments of a script with the keys of its settings files.
pub fn merge(declared: &[Flag], arguments: &[String], found: &Found, table: &Table) -> Merged {
    let mut merged = Merged::default();
    let mut flags = declared.to_vec();
    let given = |flags: &[Flag]| -> BTreeSet<usize> { match_arguments(arguments, flags).into_keys().collect() };
    let known = given(&flags);
    let own: BTreeSet<String> = known.iter().map(|index| flags[*index].names[0].clone()).collect();
    flags.extend(pairs(arguments).into_iter().filter(|pair| !own.contains(&pair.names[0])));
    let given = given(&flags);
    let mut keys = role_keys(declared, found, table);
    let mut dropped: BTreeSet<Role> = BTreeSet::new();
    for (path, file) in &found.nested {
        for flag in setting_flags(file, 0) {
            if let Some(role) = table.role_of(&flag).filter(|role| dropped.insert(*role)) {
                merged.nested.push((table.title(role).to_owned(), path.clone()));
            }
        }
    }
    merged.beaten = settle_precedence(&mut keys, &mut flags, &given, found, table);
    let given: BTreeSet<usize> = match_arguments(arguments, &flags).into_keys().collect();
    for entry in table.roles.iter().filter(|entry| !dropped.contains(&entry.role)).collect::<Vec<_>>() {
        let of_role = |flag: &&Flag| table.role_of(flag) == Some(entry.role);
        let in_file: Vec<&Flag> = keys.iter().filter(of_role).collect();
        let in_words = flags.iter().enumerate().filter(|(index, flag)| given.contains(index) && of_role(flag));
        let all: Vec<String> =
            in_file.iter().copied().chain(in_words.map(|(_, flag)| flag)).map(|flag| flag.names[0].clone()).collect();
        if !in_file.is_empty() && all.len() > 1 {
            dropped.insert(entry.role);
            merged.ambiguous.push(Ambiguous { title: entry.title.clone(), names: all });
        }
    }
    let names = |flag: &Flag| table.normalised(flag);
    let taken: BTreeSet<String> = keys.iter().flat_map(names).collect();
    let roles: BTreeSet<Role> = keys.iter().filter_map(|key| table.role_of(key)).collect();
    let kept = flags.into_iter().enumerate().filter(|(index, flag)| {
        let role = table.role_of(flag);
        let is_in_file =
            names(flag).iter().any(|name| taken.contains(name)) || role.is_some_and(|role| roles.contains(&role));
        !role.is_some_and(|role| dropped.contains(&role)) && (given.contains(index) || !is_in_file)
    });
    merged.flags = kept
        .map(|(index, flag)| {
            let is_known = given.contains(&index) || !found.hides_defaults;
            Flag { default: flag.default.filter(|_| is_known), ..flag }
        })
        .collect();
    let is_clear = |key: &Flag| !table.role_of(key).is_some_and(|role| dropped.contains(&role));
    merged.flags.extend(keys.into_iter().filter(is_clear));
    merged
}

/// Returns the keys of the settings files that have a role or stand for an argument; those that a profile names alone, where
/// it names one of the role.
fn role_keys(declared: &[Flag], found: &Found, table: &Table) -> Vec<Flag> {
    let files = found.settings.iter().enumerate();
    let mut keys: Vec<Flag> = files.flat_map(|(index, settings)| setting_flags(&settings.file, index)).collect();
    // A key with the name of an argument stands for it.
    let names = |flag: &Flag| table.normalised(flag);
    let known: BTreeSet<String> = declared.iter().flat_map(names).collect();
    let preferred: BTreeSet<Role> =
        keys.iter().filter(|key| table.is_preferred(key)).filter_map(|key| table.role_of(key)).collect();
    keys.retain(|key| match table.role_of(key) {
        Some(role) => table.is_preferred(key) || !preferred.contains(&role),
        None => table.is_preferred(key) || names(key).iter().any(|name| known.contains(name)),
    });
    keys
}

/// Drops arguments that a settings file overrides, and keys that the command overrides, as far as the profile says which
/// of the two counts. Returns the arguments of the command that are overridden.
fn settle_precedence(
    keys: &mut Vec<Flag>,
    flags: &mut Vec<Flag>,
    given: &BTreeSet<usize>,
    found: &Found,
    table: &Table,
) -> Vec<String> {
    let wins = |key: &Flag| match key.takes {
        Takes::Setting { file, .. } => found.settings[file].wins,
        _ => None,
    };
    let of = |flags: &mut dyn Iterator<Item = &Flag>| -> BTreeSet<Role> {
        flags.filter_map(|flag| table.role_of(flag)).collect()
    };
    let winning = of(&mut keys.iter().filter(|key| wins(key) == Some(true)));
    let in_words = of(&mut flags.iter().enumerate().filter(|(index, _)| given.contains(index)).map(|(_, flag)| flag));
    keys.retain(|key| {
        let role = table.role_of(key);
        let is_overridden = role.is_some_and(|role| in_words.contains(&role) || winning.contains(&role));
        wins(key) != Some(false) || !is_overridden
    });
    let is_beaten = |flag: &Flag| table.role_of(flag).is_some_and(|role| winning.contains(&role));
    let given = flags.iter().enumerate().filter(|(index, flag)| given.contains(index) && is_beaten(flag));
    let beaten = given.map(|(_, flag)| flag.spelling().to_owned()).collect();
    flags.retain(|flag| !is_beaten(flag));
    beaten
}

/// Returns the words `key=value` as arguments.
fn pairs(arguments: &[String]) -> Vec<Flag> {
    let pair = |word: &String| {
        let (key, value) = word.trim_start_matches('+').split_once('=')?;
        let is_name = |part: &str| !part.is_empty() && part.chars().all(|it| it.is_ascii_alphanumeric() || it == '_');
        let is_key = key.split('.').all(is_name) && key.starts_with(|letter: char| letter.is_ascii_alphabetic());
        let kind = match value {
            "True" | "False" | "true" | "false" => ValueKind::Boolean,
            _ if value.parse::<i64>().is_ok() => ValueKind::Integer,
            _ if value.parse::<f64>().is_ok() => ValueKind::Number,
            _ => ValueKind::Text,
        };
        let lowercase = value.starts_with(|letter: char| letter.is_ascii_lowercase());
        is_key.then(|| Flag {
            names: vec![key.to_owned()],
            key: key.to_owned(),
            takes: Takes::KeyValue { kind, lowercase },
            default: None,
            choices: Vec::new(),
            subcommand: None,
        })
    };
    arguments.iter().filter_map(pair).collect()
}

/// Returns the values of the settings file of an index as arguments.
fn setting_flags(file: &SettingsFile, index: usize) -> Vec<Flag> {
    let flag = |(path, value): (String, Value)| {
        let (kind, default) = match value {
            Value::Bool(value) => (ValueKind::Boolean, Literal::Bool(value)),
            Value::Number(number) => match number.as_i64() {
                Some(number) => (ValueKind::Integer, Literal::Int(number)),
                None => (ValueKind::Number, Literal::Float(number.as_f64()?)),
            },
            Value::String(text) => (ValueKind::Text, Literal::Text(text)),
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
        };
        let key = path.rsplit('.').next().unwrap_or(&path).to_owned();
        // Of one letter, nobody can tell what it means.
        (key.len() > 1).then(|| Flag {
            names: vec![path],
            key,
            takes: Takes::Setting { kind, file: index },
            default: Some(default),
            choices: Vec::new(),
            subcommand: None,
        })
    };
    file.leaves().into_iter().filter_map(flag).collect()
}
