//! Recognises what a script's arguments do, by their names: `assets/script_flags.yaml`.

use super::flag::Flag;
use super::profile::Profile;
use crate::config::yaml;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

const TABLE: &str = include_str!("../../assets/script_flags.yaml");

/// The purpose of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Samples per forward and backward pass.
    MicroBatch,
    /// Micro-batches per optimizer step.
    Accumulation,
    /// The learning rate.
    LearningRate,
    /// The maximum gradient norm.
    Clipping,
    /// The number format, one of several.
    Precision,
    /// A switch for f16.
    Fp16,
    /// A switch for bf16.
    Bf16,
    /// Activations recomputed in the backward pass.
    GradientCheckpointing,
    /// The implementation of attention.
    Attention,
    /// A switch for kernels of their own.
    FusedKernels,
    /// torch.compile.
    Compile,
    /// Loader processes.
    Workers,
    /// The checkpoint to resume from.
    Resume,
    /// The folder that the script writes to.
    OutputDirectory,
    /// The interval of saves.
    SaveInterval,
    /// The seed.
    Seed,
    /// The number of epochs.
    Epochs,
    /// The number of steps.
    Steps,
}

/// The table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// The roles, in the order of the report.
    pub roles: Vec<RoleNames>,
    /// One word for each number format, in each style.
    pub precisions: Vec<Precisions>,
    /// Attention without kernels of its own, the fastest first.
    pub plain_attention: Vec<String>,
    /// Names that the profile of a trainer uses.
    #[serde(skip)]
    preferred: BTreeSet<String>,
}

/// A role and the names that scripts give it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoleNames {
    /// The role.
    pub role: Role,
    /// Its name in the report.
    pub title: String,
    /// The knob that holds its value; `knobs.NAME` if absent.
    #[serde(default)]
    pub knob: Option<String>,
    /// The names, those that say most first.
    names: Vec<String>,
}

/// Number formats in one style.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Precisions {
    /// 32-bit floats.
    pub f32: String,
    /// bfloat16.
    pub bf16: String,
    /// Half precision.
    pub f16: String,
}

impl Table {
    /// Reads the table.
    ///
    /// # Errors
    /// Returns an error when the table inside the program is damaged.
    pub fn load() -> Result<Self, yaml::ReadError> {
        yaml::read(TABLE)
    }

    /// Returns the table with the names of a profile: they replace those of their roles, and none of them has another role.
    #[must_use]
    pub fn of_profile(mut self, profile: &Profile) -> Self {
        self.preferred.extend(profile.own_names().map(normalise));
        for (role, names) in &profile.knobs {
            let names: Vec<String> = names.iter().map(|name| normalise(name)).collect();
            for entry in &mut self.roles {
                if entry.role == *role {
                    entry.names.clone_from(&names);
                } else {
                    entry.names.retain(|name| !names.contains(name));
                }
            }
            self.preferred.extend(names);
        }
        self
    }

    /// Reports whether the profile of a trainer names an argument, by its whole name.
    pub fn is_preferred(&self, flag: &Flag) -> bool {
        flag.names.iter().any(|name| self.preferred.contains(&normalise(name)))
    }

    /// Returns the flags of each role by their index, those with the better names first.
    pub fn recognise(&self, flags: &[Flag], is_candidate: impl Fn(&Flag) -> bool) -> BTreeMap<Role, Vec<usize>> {
        let mut by_name: BTreeMap<String, usize> = BTreeMap::new();
        let mut by_last: BTreeMap<String, usize> = BTreeMap::new();
        for (index, flag) in flags.iter().enumerate().filter(|(_, flag)| is_candidate(flag)) {
            for name in flag.names.iter().chain([&flag.key]) {
                let name = normalise(name);
                if let Some((_, last)) = name.rsplit_once('.') {
                    by_last.entry(last.to_owned()).or_insert(index);
                }
                by_name.entry(name).or_insert(index);
            }
        }
        let mut found: BTreeMap<Role, Vec<usize>> = BTreeMap::new();
        for entry in &self.roles {
            let named = |index: &BTreeMap<String, usize>| {
                entry.names.iter().filter_map(|name| index.get(name).copied()).collect()
            };
            let mut indexes: Vec<usize> = named(&by_name);
            if indexes.is_empty() {
                indexes = named(&by_last);
            }
            let mut seen = BTreeSet::new();
            indexes.retain(|index| seen.insert(*index));
            if !indexes.is_empty() {
                found.insert(entry.role, indexes);
            }
        }
        found
    }
}

impl Table {
    /// Returns the names of an argument as the table spells them; of a nested one also its last part.
    pub fn normalised(&self, flag: &Flag) -> Vec<String> {
        let names = flag.names.iter().chain([&flag.key]).map(|name| normalise(name));
        let with_last = |name: String| {
            let last = name.rsplit_once('.').map(|(_, last)| last.to_owned());
            [Some(name), last].into_iter().flatten()
        };
        names.flat_map(with_last).collect()
    }

    /// Returns the role of an argument, by any of its names.
    pub fn role_of(&self, flag: &Flag) -> Option<Role> {
        let names = self.normalised(flag);
        self.roles.iter().find(|entry| entry.names.iter().any(|name| names.contains(name))).map(|entry| entry.role)
    }

    /// Returns the role of this name, as profiles write it.
    pub fn role_named(&self, name: &str) -> Option<Role> {
        serde_json::from_value(name.into()).ok()
    }

    /// Returns the title of a role.
    pub fn title(&self, role: Role) -> &str {
        self.roles.iter().find(|entry| entry.role == role).map_or("", |entry| &entry.title)
    }

    /// Returns the role of a key in a settings file, with the knob that a run file has for it.
    pub fn role_of_key(&self, path: &str) -> Option<&RoleNames> {
        let last = normalise(path.rsplit('.').next().unwrap_or(path));
        self.roles.iter().find(|entry| last.len() > 1 && entry.names.contains(&last))
    }
}

fn normalise(name: &str) -> String {
    name.trim_start_matches('-').to_ascii_lowercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::Table;
    use std::collections::BTreeSet;

    #[test]
    fn the_table_is_sound_and_each_name_has_one_role() {
        let table = Table::load().unwrap();
        let names: Vec<&String> = table.roles.iter().flat_map(|role| &role.names).collect();
        let distinct: BTreeSet<&String> = names.iter().copied().collect();
        assert_eq!(names.len(), distinct.len());
        assert!(names.iter().all(|name| **name == super::normalise(name)));
        assert_eq!(table.roles.len(), table.roles.iter().map(|entry| entry.role).collect::<BTreeSet<_>>().len());
    }
}
