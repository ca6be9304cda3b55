//! Rungs that swap the whole settings file of a command: what differs between the files, key by key.

use crate::cli::check::align;
use crate::config::command::first_launch;
use crate::config::knobs::Relief;
use crate::config::run::Run;
use crate::config::settings_file::{SettingsFile, is_same};
use crate::init::roles::{Role, Table};
use crate::recipe::class::{Class, compare_presets};
use crate::untrusted::text;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Differences that are listed for one rung.
const LISTED: usize = 60;

/// A key that differs between two settings files.
pub struct Difference {
    key: String,
    from: Value,
    to: Value,
    role: Option<Role>,
    class: Option<Class>,
}

/// Compares two settings files.
pub fn compare(from: &SettingsFile, to: &SettingsFile, table: &Table) -> Vec<Difference> {
    let (before, after) = (from.leaves(), to.leaves());
    let value =
        |of: &[(String, Value)], key: &str| of.iter().find(|(path, _)| path == key).map(|(_, value)| value.clone());
    let added = after.iter().filter(|(key, _)| value(&before, key).is_none());
    let keys = before.iter().chain(added).map(|(key, _)| key);
    let mut differences: Vec<Difference> = keys
        .filter_map(|key| {
            let (from, to) = (value(&before, key).unwrap_or_default(), value(&after, key).unwrap_or_default());
            let role = table.role_of_key(key).map(|entry| entry.role);
            (!is_same(&from, &to)).then(|| Difference { key: key.clone(), from, to, role, class: None })
        })
        .collect();
    let batch = |leaves: &[(String, Value)]| {
        Some(only(leaves, Role::MicroBatch, table)? * only(leaves, Role::Accumulation, table)?)
    };
    let keeps_batch = batch(&before).is_some() && batch(&before) == batch(&after);
    for it in &mut differences {
        it.class = it.role.and_then(|role| class_of(role, it, keeps_batch));
    }
    differences
}

/// Returns the number of the only key of a role.
fn only(leaves: &[(String, Value)], role: Role, table: &Table) -> Option<u64> {
    let mut of_role = leaves.iter().filter(|(key, _)| table.role_of_key(key).is_some_and(|entry| entry.role == role));
    let (_, value) = of_role.next()?;
    value.as_u64().filter(|_| of_role.next().is_none())
}

/// Returns the class of a change of the built-in knob that does the same.
fn class_of(role: Role, Difference { from, to, .. }: &Difference, keeps_batch: bool) -> Option<Class> {
    let (section, knob) = match role {
        Role::MicroBatch | Role::Accumulation => return Some(if keeps_batch { Class::A } else { Class::B }),
        Role::LearningRate => ("optimizer", "lr"),
        Role::Clipping => ("optimizer", "max_norm"),
        Role::Precision | Role::Fp16 | Role::Bf16 => ("training", "precision"),
        Role::GradientCheckpointing => ("training", "gradient_checkpointing"),
        Role::Attention | Role::FusedKernels | Role::Compile => ("training", "fused_kernels"),
        Role::Workers => ("training", "loader"),
        Role::SaveInterval => ("checkpoint", "every"),
        Role::Seed => ("training", "seed"),
        Role::Epochs | Role::Steps => ("training", "epochs"),
        Role::Resume | Role::OutputDirectory => return None,
    };
    let changes = compare_presets(&json!({section: {knob: from}}), &json!({section: {knob: to}}));
    changes.first().map(|change| change.class)
}

/// Returns the kinds of failure that a change of settings may relieve; all that a rung can relieve if no key tells.
pub fn relieved(differences: &[Difference]) -> Vec<Relief> {
    let kind = |role| match role {
        Role::MicroBatch | Role::Accumulation | Role::GradientCheckpointing => Some(Relief::Memory),
        Role::Attention | Role::FusedKernels | Role::Compile => Some(Relief::Kernels),
        Role::LearningRate | Role::Clipping | Role::Precision | Role::Fp16 | Role::Bf16 => Some(Relief::Numerics),
        _ => None,
    };
    let all = [Relief::Memory, Relief::Kernels, Relief::Numerics];
    let is_relieved = |relief: &Relief| differences.iter().any(|it| it.role.and_then(kind) == Some(*relief));
    let found: Vec<Relief> = all.into_iter().filter(is_relieved).collect();
    if found.is_empty() { all.to_vec() } else { found }
}

/// Formats what differs between the settings files of each rung and those of `full`.
pub fn describe(run: &Run) -> Vec<String> {
    let (Some(full), Ok(table)) = (first_launch(run, 0, 1), Table::load()) else { return Vec::new() };
    let mut lines = Vec::new();
    for rung in 1..run.rungs.len() {
        let Some(launch) = first_launch(run, rung, 1) else { continue };
        let swapped = full.argv.iter().zip(&launch.argv).filter(|(before, now)| before != now);
        for (before, now) in swapped {
            let [Some((_, old)), Some((path, new))] = [before, now].map(|word| read(word, &launch.directory)) else {
                continue;
            };
            let mut rows: Vec<Vec<String>> = compare(&old, &new, &table).iter().map(describe_difference).collect();
            let more = rows.len().saturating_sub(LISTED);
            rows.truncate(LISTED);
            lines.push(format!("\nrung {}: {} against that of `full`", run.rungs[rung].name, text::path(&path)));
            if rows.is_empty() {
                lines.push("  no value differs".to_owned());
            }
            lines.extend(align(&rows).into_iter().map(|row| format!("  {row}")));
            lines.extend((more > 0).then(|| format!("  and {more} more")));
        }
    }
    lines
}

fn describe_difference(Difference { key, from, to, class, .. }: &Difference) -> Vec<String> {
    let shown = |value: &Value| {
        if value.is_null() { "–".to_owned() } else { text::escape_line(&value.to_string()).into_owned() }
    };
    let class = class.map_or_else(String::new, |class| format!("{class} {}", class.meaning()));
    vec![text::escape_line(key).into_owned(), format!("{} → {}", shown(from), shown(to)), class]
}

/// Reads the settings file that an argument names.
fn read(word: &str, folder: &Path) -> Option<(PathBuf, SettingsFile)> {
    let name = word.split_once('=').map_or(word, |(_, value)| value);
    Some((PathBuf::from(name), SettingsFile::read(&folder.join(name)).ok()?))
}
