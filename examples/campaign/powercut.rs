//! Power cuts: a saver's life is recorded call by call, every state that the disk may be in after a
//! cut is built, and each must still hold every checkpoint that was acknowledged by then.

use crate::disk::{self, Disk, Op};
use crate::report::{Row, Table};
use crate::saver::Claims;
use crate::strace::Stage;
use crate::{Failing, Orders};
use downshift::recipe::seed::Stream;
use std::collections::HashSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Saves, a redone step, retention: what happens to a folder of checkpoints in its life.
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

/// States that are tried at one cut, at most; all of them where there are fewer.
const MOST: u64 = 1500;
const MOST_QUICK: u64 = 40;

/// The part.
pub fn run(orders: &Orders, table: &mut Table) -> Failing<()> {
    let mut stage = Stage::new(&orders.dir, &[])?;
    let root = stage.fresh()?;
    let calls = stage.record_in(&root, &LIFE)?;
    let ops = disk::read(&calls, &root)?;
    let most = if orders.quick { MOST_QUICK } else { MOST };
    let mut row = Row::new(format!("power cut: states of the disk along {} calls", ops.len()));
    try_all(orders, &ops, most, |outcome| row.count(outcome))?;
    table.add(row);

    // The same without what makes it hold: a campaign that finds nothing here is blind.
    let folders = |op: &Op| matches!(op, Op::Create { folder: true, .. });
    let folders: HashSet<usize> = ops
        .iter()
        .filter(|op| folders(op))
        .filter_map(|op| if let Op::Create { node, .. } = op { Some(*node) } else { None })
        .chain([0])
        .collect();
    for (what, of_folders) in [("files", false), ("folders", true)] {
        let keeps = |op: &&Op| !matches!(op, Op::Sync { node } if folders.contains(node) == of_folders);
        let blind: Vec<Op> = ops.iter().filter(keeps).cloned().collect();
        let (mut lost, mut tried) = (0, 0);
        try_all(orders, &blind, MOST_QUICK, |outcome| {
            lost += u64::from(outcome.is_err());
            tried += 1;
        })?;
        let mut row = Row::new(format!("control: without syncs of {what}, {lost} of {tried} states must lose"));
        row.count(if lost > 0 { Ok(()) } else { Err("the control lost nothing".to_owned()) });
        table.add(row);
    }
    Ok(())
}

fn try_all(orders: &Orders, ops: &[Op], most: u64, mut count: impl FnMut(Result<(), String>)) -> Failing<()> {
    let folder = tempfile::Builder::new().prefix("campaign-").tempdir_in(&orders.dir)?;
    let (mut stream, mut seen, mut claims) = (Stream::new(orders.seed), HashSet::new(), Claims::default());
    let mut failed = Ok(());
    for cut in 0..=ops.len() {
        if let Some(Op::Said(line)) = cut.checked_sub(1).map(|before| &ops[before]) {
            claims.hear(line);
        }
        disk::states(ops, cut, most, &mut stream, |disk| {
            let mut hasher = DefaultHasher::new();
            (disk.fingerprint(), &claims).hash(&mut hasher);
            if seen.insert(hasher.finish()) && failed.is_ok() {
                match try_one(&disk, &claims, &folder.path().join("state")) {
                    Ok(outcome) => count(outcome.map_err(|loss| format!("cut before call {cut}: {loss}"))),
                    Err(error) => failed = Err(error),
                }
            }
        });
    }
    failed
}

fn try_one(disk: &Disk, claims: &Claims, folder: &std::path::Path) -> Failing<Result<(), String>> {
    disk.write_to(folder)?;
    let outcome = claims.check(folder);
    fs::remove_dir_all(folder)?;
    Ok(outcome)
}
