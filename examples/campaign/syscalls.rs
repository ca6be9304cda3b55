//! SIGKILL at every system call of a save, and of the deletion of a checkpoint: afterwards either the
//! old state or the new one is intact, and the next save works.

use crate::report::{Row, Table};
use crate::saver::{self, Claims};
use crate::strace::{Stage, spans};
use crate::{Failing, Orders};
use downshift::store::checkpoint::{self, FOLDER};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A saver's starting point, and its action when the kill comes.
pub struct Scenario {
    /// The name in the report.
    pub name: &'static str,
    /// Steps and versions saved before.
    pub prepared: &'static [(u64, u64)],
    /// The action, in the saver's syntax.
    pub action: &'static str,
    /// Faults that always apply, in strace's syntax.
    pub always: &'static [&'static str],
}

/// Every operation the store performs on a run's checkpoints.
pub const SCENARIOS: [Scenario; 5] = [
    Scenario { name: "first save", prepared: &[], action: "save:10:0", always: &[] },
    Scenario { name: "next save", prepared: &[(10, 0)], action: "save:20:0", always: &[] },
    Scenario { name: "save of a redone step", prepared: &[(10, 0), (20, 0)], action: "save:20:1", always: &[] },
    Scenario {
        name: "the same where names cannot be exchanged",
        prepared: &[(10, 0), (20, 0)],
        action: "save:20:1",
        always: &["renameat2:error=EINVAL"],
    },
    Scenario { name: "deletion", prepared: &[(10, 0), (20, 0), (30, 0)], action: "remove:10", always: &[] },
];

/// Runs this part of the campaign.
pub fn run(orders: &Orders, table: &mut Table) -> Failing<()> {
    for scenario in &SCENARIOS {
        let mut row = Row::new(format!("kill -9 at each system call: {}", scenario.name));
        let mut stage = Stage::new(&orders.dir, scenario.prepared)?;
        for (name, (first, last)) in path_of(&mut stage, scenario)? {
            for when in first..=last {
                if scenario.always.iter().any(|always| always.starts_with(&format!("{name}:"))) {
                    continue;
                }
                let dir = stage.fresh()?;
                let mut injections: Vec<String> = scenario.always.iter().map(|&always| always.to_owned()).collect();
                injections.push(format!("{name}:signal=KILL:when={when}"));
                let ended = stage.inject(&dir, &[scenario.action], &injections)?;
                if ended.killed {
                    let outcome = check(&dir, scenario.prepared, &ended.said);
                    row.add_outcome(outcome.map_err(|loss| format!("at {name} number {when}: {loss}")));
                }
                fs::remove_dir_all(&dir)?;
            }
        }
        if row.tried == 0 {
            row.add_loss("no call was hit; strace behaves unexpectedly here");
        }
        table.add(row);
    }
    Ok(())
}

/// Returns every call of the scenario by name: the first and last index of that name.
pub fn path_of(stage: &mut Stage, scenario: &Scenario) -> Failing<BTreeMap<String, (usize, usize)>> {
    let dir = stage.fresh()?;
    let calls = stage.record(&dir, &[scenario.action], scenario.always)?;
    let verb = if scenario.action.starts_with("save") { ("saving", "saved") } else { ("removing", "removed") };
    Ok(spans(&calls, verb.0, verb.1))
}

/// Checks a directory after its saver is gone.
pub fn check(dir: &Path, prepared: &[(u64, u64)], said: &[String]) -> Result<(), String> {
    let mut claims = Claims::default();
    for (step, version) in prepared {
        claims.record_message(&format!("saved {step} {version}"));
    }
    for line in said {
        claims.record_message(line);
    }
    // Every keeper and worker starts by cleaning up; then it saves.
    checkpoint::clean(dir);
    claims.check(dir)?;
    if let Some(left) = leftovers(dir).first() {
        return Err(format!("{left} is left over after cleaning up"));
    }
    saver::save(dir, 90, 0).map_err(|error| format!("the next save fails: {error}"))?;
    claims.record_message("saved 90 0");
    claims.check(dir).map_err(|loss| format!("after the next save: {loss}"))
}

/// Returns entries of the checkpoint folder that are not checkpoints.
pub fn leftovers(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir.join(FOLDER)).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| !name.starts_with("step-")).collect()
}
