//! Power cuts: records a saver's calls, builds every state the disk may be in after a cut, and checks
//! that each still holds every checkpoint acknowledged by then.

use crate::disk::{self, Disk, Op};
use crate::report::{Row, Table};
use crate::saver::Claims;
use crate::strace::Stage;
use crate::{Failing, Orders};
use downshift::recipe::seed::Stream;
use downshift::store::checkpoint;
use std::collections::HashSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;

/// A checkpoint folder's life: saves, a redone step, retention.
const LIFE: [&str; 9] = [
    "save:10:0",
    "save:20:0",
    "save:30:0",
    "save:20:1",
    "remove:10",
    "save:40:0",
    "save:40:1",
    "remove:20",
    "save:50:0",
];

/// The recorded lives: with atomic name exchange, and on a file system without it.
const LIVES: [(&str, &[&str]); 2] = [("", &[]), (", names not exchanged", &["renameat2:error=EINVAL"])];

/// Largest number of states tried per cut; all of them if there are fewer.
const MOST: u64 = 3000;
const MOST_QUICK: u64 = 20;
/// Smallest number of states a control needs to prove that it can fail.
const CONTROL: u64 = 1000;

/// Runs this part of the campaign.
pub fn run(orders: &Orders, table: &mut Table) -> Failing<()> {
    let most = if orders.quick { MOST_QUICK } else { MOST };
    for (words, injections) in LIVES {
        let mut stage = Stage::new(&orders.dir, &[])?;
        let root = stage.fresh()?;
        let ops = disk::parse_calls(&stage.record(&root, &LIFE, injections)?, &root)?;
        let mut row = Row::new(format!("power cut: states of the disk along {} calls{words}", ops.len()));
        check_states(orders, &ops, most, |outcome| {
            row.add_outcome(outcome);
            true
        })?;
        table.add(row);
        if injections.is_empty() {
            run_controls(orders, &ops, table)?;
        }
    }
    Ok(())
}

/// Repeats the test without the protections: a campaign that finds nothing here is blind.
fn run_controls(orders: &Orders, ops: &[Op], table: &mut Table) -> Failing<()> {
    let folder = |op: &Op| if let Op::Create { node, folder: true, .. } = op { Some(*node) } else { None };
    let folders: HashSet<usize> = ops.iter().filter_map(folder).chain([0]).collect();
    for (what, of_folders) in [("files", false), ("folders", true)] {
        let keeps = |op: &&Op| !matches!(op, Op::Sync { node } if folders.contains(node) == of_folders);
        let blind: Vec<Op> = ops.iter().filter(keeps).cloned().collect();
        let (mut lost, mut tried) = (0, 0);
        check_states(orders, &blind, 8, |outcome| {
            lost += u64::from(outcome.is_err());
            tried += 1;
            tried < CONTROL
        })?;
        let mut row = Row::new(format!("control: without syncs of {what}, {lost} of {tried} states lose"));
        row.add_outcome(if lost > 0 { Ok(()) } else { Err("the control lost nothing".to_owned()) });
        table.add(row);
    }
    Ok(())
}

/// Counts the outcome of every distinct state until `count` returns false.
fn check_states(
    orders: &Orders,
    ops: &[Op],
    most: u64,
    mut count: impl FnMut(Result<(), String>) -> bool,
) -> Failing<()> {
    // The disk is a model here, so its states can be checked in memory.
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { memory } else { &orders.dir };
    let folder = tempfile::Builder::new().prefix("campaign-").tempdir_in(place)?;
    let (mut stream, mut seen, mut claims) = (Stream::new(orders.seed), HashSet::new(), Claims::default());
    let (mut failed, mut more) = (Ok(()), true);
    for cut in 0..=ops.len() {
        if let Some(Op::Said(line)) = cut.checked_sub(1).map(|before| &ops[before]) {
            claims.record_message(line);
        }
        disk::visit_states(ops, cut, most, &mut stream, |disk| {
            let mut hasher = DefaultHasher::new();
            (disk.fingerprint(), &claims).hash(&mut hasher);
            if seen.insert(hasher.finish()) && failed.is_ok() && more {
                match check_state(&disk, &claims, &folder.path().join("state")) {
                    Ok(outcome) => more = count(outcome.map_err(|loss| format!("cut before call {cut}: {loss}"))),
                    Err(error) => failed = Err(error),
                }
            }
        });
    }
    failed
}

/// Builds the state and cleans up first, as every process does.
fn check_state(disk: &Disk, claims: &Claims, folder: &Path) -> Failing<Result<(), String>> {
    disk.write_to(folder)?;
    checkpoint::clean(folder);
    let outcome = claims.check(folder);
    fs::remove_dir_all(folder)?;
    Ok(outcome)
}
