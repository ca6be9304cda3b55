//! The ladder: the body of a run file is rung 0, `full`. Every entry below it is a rung, written as
//! overrides of the rung above or of the one named by `from`.

use super::command;
use super::knobs::{Preset, Relief, Section};
use super::problem::Problem;
use super::typed;
use crate::recipe::class;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The name of rung 0.
pub const FULL: &str = "full";

/// Maximum number of rungs below `full`. Each is resolved, counted and offered on a screen.
pub const MAX_RUNGS: usize = 64;
/// Maximum number of pinned knobs; there are fewer knobs than that.
const MAX_PINS: usize = 256;

/// Truncates lists over their limits before any work is done per entry.
#[must_use]
pub fn truncate_lists(tree: &mut Value) -> Vec<Problem> {
    let limits = [
        ("ladder", "rungs", MAX_RUNGS, "keep rungs that relieve different failures"),
        ("pinned", "knobs", MAX_PINS, "name each knob once"),
    ];
    let mut problems = Vec::new();
    for (key, things, most, fix) in limits {
        let Some(list) = tree.get_mut(key).and_then(Value::as_array_mut) else { continue };
        let given = list.len();
        if given > most {
            list.truncate(most);
            problems.push(Problem::at(key, format!("{given} {things}, at most {most} are allowed"), fix));
        }
    }
    problems
}

/// A rung as written in a run file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RungSpec {
    /// Its name.
    pub name: String,
    /// The failures it helps against.
    #[serde(default)]
    pub relieves: Vec<Relief>,
    /// The rung it modifies; defaults to the one above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// If the model's shape differs on this rung, load the weights that fit and reinitialize the rest.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warm_start: bool,
    /// Overrides: dotted knob paths and their values.
    #[serde(default)]
    pub set: Section,
}

/// A rung with every knob resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct Rung {
    /// Its name.
    pub name: String,
    /// The failures it helps against.
    pub relieves: Vec<Relief>,
    /// Whether it can be entered from a rung with a different model shape.
    pub warm_start: bool,
    /// Its knobs.
    pub preset: Preset,
}

/// A rung during resolution: typed, and as the tree that the next rung modifies.
pub struct Resolved {
    /// The rung.
    pub rung: Rung,
    /// Its preset as a tree, with every default filled in.
    pub tree: Value,
    /// Where to report its problems: at its `set`, or in the body of the file for `full`.
    pub place: Option<String>,
    /// The knobs it sets itself.
    pub sets: Vec<String>,
}

impl Resolved {
    /// Reports whether this rung sets a knob itself rather than inheriting it.
    #[must_use]
    pub fn sets_itself(&self, knob: &str) -> bool {
        self.sets.iter().any(|path| is_at_or_below(knob, path) || is_at_or_below(path, knob))
    }

    /// Builds a problem with one of this rung's knobs, located at the line that set it.
    #[must_use]
    pub fn blame(&self, problem: Problem) -> Problem {
        let Some(place) = &self.place else { return problem };
        let mine =
            self.sets.iter().filter(|path| is_at_or_below(&problem.path, path) || is_at_or_below(path, &problem.path));
        match mine.max_by_key(|path| path.len()) {
            Some(path) => Problem { path: format!("{place}.{path}"), ..problem },
            None => Problem { wrong: format!("{} (on rung `{}`)", problem.wrong, self.rung.name), ..problem },
        }
    }
}

/// Resolves every rung, `full` first, and returns the errors in their overrides.
#[must_use]
pub fn resolve_ladder(full: Preset, specs: &[RungSpec], pinned: &[String]) -> (Vec<Resolved>, Vec<Problem>) {
    let tree = full.tree();
    let rung = Rung { name: FULL.to_owned(), relieves: Vec::new(), warm_start: false, preset: full };
    let mut rungs = vec![Resolved { rung, tree, place: None, sets: Vec::new() }];
    let mut problems = Vec::new();
    for (index, spec) in specs.iter().enumerate() {
        let place = format!("ladder[{index}]");
        if rungs.iter().any(|above| above.rung.name == spec.name) {
            let why = if spec.name == FULL { "`full` is the body of the file" } else { "two rungs have this name" };
            problems.push(Problem::at(format!("{place}.name"), why, "choose another name"));
        }
        let wanted = spec.from.as_deref();
        let base = rungs.iter().rev().find(|above| wanted.is_none_or(|name| above.rung.name == name));
        let Some(base) = base else {
            let mut known: Vec<&str> = rungs.iter().map(|above| above.rung.name.as_str()).collect();
            known.dedup();
            let wrong = format!("no rung above this one is called `{}`", wanted.unwrap_or_default());
            problems.push(Problem::at(
                format!("{place}.from"),
                wrong,
                typed::suggest(wanted.unwrap_or_default(), &known),
            ));
            continue;
        };
        let (resolved, wrong) = apply_overrides(base, spec, &format!("{place}.set"));
        problems.extend(wrong);
        if let Some(resolved) = resolved {
            problems.extend(check_pins(&rungs[0].tree, &resolved, pinned));
            rungs.push(resolved);
        }
    }
    (rungs, problems)
}

fn apply_overrides(base: &Resolved, spec: &RungSpec, place: &str) -> (Option<Resolved>, Vec<Problem>) {
    let mut tree = base.tree.clone();
    let mut problems = Vec::new();
    let overrides = flatten_overrides(&spec.set);
    let is_command = base.rung.preset.written.is_some();
    for (path, value) in &overrides {
        if let Err(problem) =
            check_allowed(path, is_command).and_then(|()| typed::set_value(&mut tree, path, value.clone()))
        {
            problems.push(problem.under(place));
        }
    }
    let read = if is_command { command::knobs::read_preset } else { typed::read_tree };
    let (preset, wrong) = read(&tree);
    // A mistake in the body is told once, not for each rung that inherits it.
    let inherited = if wrong.is_empty() { Vec::new() } else { read(&base.tree).1 };
    let own = wrong.into_iter().filter(|problem| !inherited.contains(problem));
    problems.extend(own.map(|problem| problem.under(place)));
    let resolved = preset.map(|preset: Preset| Resolved {
        tree: preset.tree(),
        rung: Rung { name: spec.name.clone(), relieves: spec.relieves.clone(), warm_start: spec.warm_start, preset },
        place: Some(place.to_owned()),
        sets: overrides.into_iter().map(|(path, _)| path).collect(),
    });
    (resolved, problems)
}

/// Flattens both `{a.b: 1}` and `{a: {b: 1}}` to `("a.b", 1)`.
pub(super) fn flatten_overrides(set: &Map<String, Value>) -> Vec<(String, Value)> {
    let mut flat = Vec::new();
    for (path, value) in set {
        match value {
            Value::Object(inner) => {
                flat.extend(
                    flatten_overrides(inner).into_iter().map(|(below, value)| (format!("{path}.{below}"), value)),
                );
            }
            _ => flat.push((path.clone(), value.clone())),
        }
    }
    flat
}

/// Rejects overrides a rung may not make: it may change training knobs, not the task or its data.
fn check_allowed(path: &str, is_command: bool) -> Result<(), Problem> {
    const OF_TRAINER: [&str; 5] = ["training", "optimizer", "model", "evaluation", "checkpoint"];
    const OF_COMMAND: [&str; 4] = ["training", "optimizer", "environment", "knobs"];
    let sections = if is_command { OF_COMMAND.as_slice() } else { &OF_TRAINER };
    let section = path.split('.').next().unwrap_or_default();
    if path == "training.seed" || section == "data" {
        let wrong = "a rung cannot change this, since it would be a different run";
        return Err(Problem::of_key(path, wrong, "start a new run instead"));
    }
    if is_command && path == "ranks" || sections.contains(&section) && path.contains('.') {
        return Ok(());
    }
    let wrong = format!("a rung cannot set knobs of `{section}`");
    Err(Problem::of_key(path, wrong, format!("write a dotted path below {}", sections.join(", "))))
}

fn check_pins(full: &Value, rung: &Resolved, pinned: &[String]) -> Vec<Problem> {
    let mut changes = class::compare_presets(full, &rung.tree);
    // Only the rung that set the knob is reported, not the rungs that inherit it.
    changes.retain(|change| rung.sets.iter().any(|path| is_at_or_below(&change.path, path)));
    let hit = changes
        .iter()
        .filter_map(|change| Some((change, pinned.iter().find(|pin| is_at_or_below(&change.path, pin))?)));
    hit.map(|(change, pin)| {
        let wrong = format!(
            "`{pin}` is pinned, but rung `{}` changes it from {} to {}",
            rung.rung.name, change.from, change.to
        );
        rung.blame(Problem::at(&change.path, wrong, "remove it from the rung or from `pinned`"))
    })
    .collect()
}

/// Reports whether `path` equals `top` or lies below it.
pub(super) fn is_at_or_below(path: &str, top: &str) -> bool {
    path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}
