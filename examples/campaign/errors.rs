//! ENOSPC and EIO at every call of a save: the save fails with a message, existing checkpoints stay
//! intact, the next save works, nothing accumulates.

use crate::report::{Row, Table};
use crate::strace::{Ended, Stage};
use crate::syscalls::{self, SCENARIOS, Scenario, leftovers, path_of};
use crate::{Failing, Orders};
use std::fs;
use std::path::Path;

/// Calls that fail on a full or broken disk.
const CALLS: [&str; 9] =
    ["openat", "write", "fsync", "fdatasync", "rename", "renameat2", "mkdir", "unlinkat", "ftruncate"];

/// The save after the failed one.
const NEXT: &str = "save:30:0";

/// Runs this part of the campaign.
pub fn run(orders: &Orders, table: &mut Table) -> Failing<()> {
    for error in ["ENOSPC", "EIO"] {
        for scenario in SCENARIOS.iter().filter(|scenario| scenario.action.starts_with("save")) {
            let mut row = Row::new(format!("{error} at each call: {}", scenario.name));
            fail_each_call(orders, scenario, error, &mut row)?;
            if row.tried == 0 {
                row.add_loss("no call was hit; strace behaves unexpectedly here");
            }
            table.add(row);
        }
    }
    Ok(())
}

fn fail_each_call(orders: &Orders, scenario: &Scenario, error: &str, row: &mut Row) -> Failing<()> {
    let mut stage = Stage::new(&orders.dir, scenario.prepared)?;
    for (name, (first, last)) in path_of(&mut stage, scenario)? {
        let always = scenario.always.iter().any(|always| always.starts_with(&format!("{name}:")));
        if always || !CALLS.contains(&name.as_str()) {
            continue;
        }
        // The last write is the saver's report of success.
        let last = if name == "write" { last - 1 } else { last };
        for when in first..=last {
            let dir = stage.fresh()?;
            let mut injections: Vec<String> = scenario.always.iter().map(|&always| always.to_owned()).collect();
            injections.push(format!("{name}:error={error}:when={when}"));
            let ended = stage.inject(&dir, &[scenario.action, NEXT], &injections)?;
            if ended.was_hit {
                let outcome = check_outcome(&dir, scenario, &ended);
                row.add_outcome(outcome.map_err(|loss| format!("at {name} number {when}: {loss}")));
            }
            fs::remove_dir_all(&dir)?;
        }
    }
    Ok(())
}

fn check_outcome(dir: &Path, scenario: &Scenario, ended: &Ended) -> Result<(), String> {
    let said = &ended.said;
    if ended.code != Some(0) {
        return Err(format!("the saver ended with {:?}, after printing {said:?}", ended.code));
    }
    if let Some(refusal) = said.iter().find(|line| line.starts_with("refused")) {
        let sentence = refusal.split_once(": ").map_or("", |(_, sentence)| sentence);
        if !sentence.starts_with("cannot ") || !sentence.contains(&dir.display().to_string()) {
            return Err(format!("not a sentence: {refusal}"));
        }
    }
    if !said.iter().any(|line| line == "saved 30 0") {
        return Err(format!("the next save does not work: {said:?}"));
    }
    let left = leftovers(dir);
    if left.len() > 1 {
        return Err(format!("leftovers accumulate: {left:?}"));
    }
    syscalls::check(dir, scenario.prepared, said)
}
