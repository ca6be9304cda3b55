//! Damaged checkpoints of a real run: every damage is detected, the next older intact checkpoint is
//! used, and if none is intact the run stops instead of starting over.

use crate::damage::{self, Checkpoint, Damage};
use crate::kills::{run_file, train_unbroken};
use crate::place::{Place, Role, kill, list_processes, wait_for};
use crate::report::{Row, Table};
use crate::strace::copy_folder;
use crate::verdict::{self, Trace};
use crate::{Failing, Orders};
use downshift::protocol::worker::FailureClass;
use downshift::recipe::seed::Stream;
use downshift::store::checkpoint::{self, FOLDER};
use downshift::store::run_dir::RunDir;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// Flipped bits in single files; all rows together exceed ten thousand.
const FLIPS: u64 = 10_000;
const FLIPS_QUICK: u64 = 2000;

/// Runs this part of the campaign.
pub fn run(orders: &Orders, table: &mut Table) -> Failing<()> {
    let place = Place::new(&orders.dir)?;
    let (mut client, run) = place.start(&run_file(8, 200))?;
    if client.wait()? != Some(0) {
        return Err(format!("the run to be damaged did not finish; see {}", place.keep().display()).into());
    }
    let mut victims = Checkpoint::read_all(run.path())?;
    victims.truncate(3);
    if victims.len() < 3 {
        return Err(format!("the run kept {} checkpoints; three are needed", victims.len()).into());
    }
    damage_files(orders, &run, &victims, table)?;
    damage_several(orders, &run, table)?;
    damage_directories(&run, &victims, table)?;
    resume_over_damage(orders, table)
}

/// Damages one file of the newest checkpoint, or one in each of the newest two.
fn damage_files(orders: &Orders, run: &RunDir, victims: &[Checkpoint], table: &mut Table) -> Failing<()> {
    let mut stream = Stream::new(orders.seed);
    let [newest, second, _] = victims else { return Err("three checkpoints are needed".into()) };
    let flips = if orders.quick { FLIPS_QUICK } else { FLIPS };
    let regions = newest.regions()?.len();
    let mut row = Row::new(format!("one bit flipped, in each of {regions} regions"));
    for index in 0..flips {
        row.add_outcome(damage_and_check(run, victims, &damage::flip_bit(newest, index, &mut stream)?, 1));
    }
    table.add(row);
    let each = if orders.quick { 40 } else { 400 };
    let kinds: [(&str, Vec<Damage>, usize); 6] = [
        ("a file cut short, or longer", damage::truncations(newest, each, &mut stream), 1),
        ("a block of zeros", damage::zeroed(newest), 1),
        ("a file missing", damage::missing(newest), 1),
        ("a file of another checkpoint, two files exchanged", damage::foreign_content(newest, second), 1),
        ("a file exchanged between two checkpoints", damage::swapped(newest, second), 2),
        ("another step in the manifest", damage::wrong_step(newest)?, 1),
    ];
    for (fault, damages, used) in kinds {
        let mut row = Row::new(fault);
        for damage in &damages {
            row.add_outcome(damage_and_check(run, victims, damage, used));
        }
        table.add(row);
    }
    Ok(())
}

/// Damages the newest two checkpoints, and all of them.
fn damage_several(orders: &Orders, run: &RunDir, table: &mut Table) -> Failing<()> {
    let mut stream = Stream::new(orders.seed + 1);
    let rounds = if orders.quick { 100 } else { 1000 };
    // Includes the best one, kept beside the newest three.
    let all = Checkpoint::read_all(run.path())?;
    for (fault, count) in [("the newest two damaged", 2), ("all damaged", all.len())] {
        let mut row = Row::new(format!("{fault}: one bit flipped in each"));
        for round in 0..rounds {
            let mut hurt = damage::flip_bit(&all[0], round, &mut stream)?;
            for victim in &all[1..count] {
                hurt = hurt.and(damage::flip_bit(victim, stream.below(1000), &mut stream)?);
            }
            row.add_outcome(damage_and_check(run, &all, &hurt, count));
        }
        table.add(row);
    }
    Ok(())
}

/// Damages, checks, undoes: checkpoint number `used` must be the one found.
fn damage_and_check(run: &RunDir, victims: &[Checkpoint], damage: &Damage, used: usize) -> Result<(), String> {
    let undo = damage.apply().map_err(|error| format!("{}: {error}", damage.what))?;
    let outcome = check_newest_valid(run.path(), victims, used).map_err(|loss| format!("{}: {loss}", damage.what));
    undo.apply().map_err(|error| format!("{} cannot be undone: {error}", damage.what))?;
    outcome
}

fn check_newest_valid(run: &Path, victims: &[Checkpoint], used: usize) -> Result<(), String> {
    let (found, rejected) = checkpoint::newest_valid(run);
    if rejected.len() != used {
        return Err(format!("{} checkpoints were refused instead of {used}", rejected.len()));
    }
    let (step, wanted) = (found.as_ref().map(|found| found.manifest.step), victims.get(used));
    if step != wanted.map(|wanted| wanted.step) {
        return Err(format!("step {step:?} was used instead of {:?}", wanted.map(|wanted| wanted.step)));
    }
    let same = found
        .zip(wanted)
        .is_none_or(|(found, wanted)| found.files.iter().all(|(name, bytes)| wanted.files[name] == *bytes));
    if same { Ok(()) } else { Err("what was used is not what was saved".to_owned()) }
}

/// A change to the folder, the number of checkpoints it costs, and how to make it.
type Change<'a> = (&'a str, usize, Box<dyn Fn(&Path) -> std::io::Result<()> + 'a>);

/// Puts directories and links in the wrong places, in copies of the run's folder.
fn damage_directories(run: &RunDir, victims: &[Checkpoint], table: &mut Table) -> Failing<()> {
    let mut row = Row::new("renamed, foreign and linked directories and files");
    let name = |checkpoint: &Checkpoint| checkpoint.path.file_name().map(ToOwned::to_owned).unwrap_or_default();
    let (newest, second) = (name(&victims[0]), name(&victims[1]));
    let changes: Vec<Change<'_>> = vec![
        ("renamed to a later step", 1, Box::new(|dir| fs::rename(dir.join(&newest), dir.join("step-000999999")))),
        (
            "copied under a later step",
            1,
            Box::new(|dir| {
                copy_folder(&dir.join(&second), &dir.join("step-000999999"))
                    .map_err(|error| std::io::Error::other(error.to_string()))
            }),
        ),
        ("an empty directory of a later step", 1, Box::new(|dir| fs::create_dir(dir.join("step-000999999")))),
        ("a file of a later step's name", 0, Box::new(|dir| fs::write(dir.join("step-000999999"), "x"))),
        ("a link of a later step's name", 0, Box::new(|dir| symlink(dir.join(&second), dir.join("step-000999999")))),
        (
            "directories of other names",
            0,
            Box::new(|dir| {
                ["step-1", "step-abc", ".new-step-000999999", ".old-step-000999999", "notes"]
                    .iter()
                    .try_for_each(|name| fs::create_dir(dir.join(name)))
            }),
        ),
        ("a link to nowhere for the weights", 1, Box::new(|dir| relink(&dir.join(&newest), Path::new("/nowhere")))),
        (
            "a link to the weights of another step",
            1,
            Box::new(|dir| relink(&dir.join(&newest), &dir.join(&second).join(checkpoint::MODEL))),
        ),
        (
            "a folder for the weights",
            1,
            Box::new(|dir| {
                let file = dir.join(&newest).join(checkpoint::MODEL);
                fs::remove_file(&file).and_then(|()| fs::create_dir(file))
            }),
        ),
    ];
    for (what, refused, change) in changes {
        let copy = tempfile::tempdir_in(run.path())?;
        copy_folder(&run.file(FOLDER), &copy.path().join(FOLDER))?;
        change(&copy.path().join(FOLDER))?;
        let renamed = what.starts_with("renamed");
        // Added entries are rejected or ignored; the newest intact checkpoint is used.
        let (found, rejected) = checkpoint::newest_valid(copy.path());
        let hurt = renamed || what.ends_with("weights") || what.contains("weights of");
        let wanted = &victims[usize::from(hurt)];
        let step = found.map(|found| found.manifest.step);
        row.add_outcome(if step == Some(wanted.step) && rejected.len() == refused {
            Ok(())
        } else {
            Err(format!("{what}: step {step:?} was used, {} refused", rejected.len()))
        });
    }
    table.add(row);
    Ok(())
}

fn relink(directory: &Path, to: &Path) -> std::io::Result<()> {
    let file = directory.join(checkpoint::MODEL);
    fs::remove_file(&file)?;
    symlink(to, file)
}

/// Tests the real program: kills everything, damages checkpoints, resumes as a user would.
fn resume_over_damage(orders: &Orders, table: &mut Table) -> Failing<()> {
    let text = run_file(if orders.quick { 20 } else { 60 }, 250);
    let unbroken = train_unbroken(orders, &text)?;
    let rounds = if orders.quick { 1 } else { 10 };
    for (fault, count) in
        [("newest damaged, resume", 1), ("newest two damaged, resume", 2), ("all damaged, resume", 99)]
    {
        let mut row = Row::new(fault);
        for round in 0..rounds {
            let place = Place::new(&orders.dir)?;
            let stream = Stream::new(orders.seed + round);
            let outcome = resume_once(&place, &text, count, stream, &unbroken, &mut row.redone);
            let outcome = outcome.map_err(|loss| format!("round {round}: {loss}; see {}", place.keep().display()));
            row.identical = if count == 99 { None } else { Some(row.identical.unwrap_or(true) && outcome.is_ok()) };
            row.add_outcome(outcome);
        }
        table.add(row);
    }
    Ok(())
}

fn resume_once(
    place: &Place,
    text: &str,
    count: usize,
    mut stream: Stream,
    unbroken: &Trace,
    redone: &mut Vec<u64>,
) -> Failing<()> {
    let (client, run) = place.start(text)?;
    wait_for("three checkpoints", || (checkpoint::list(run.path()).len() >= 3).then_some(()))?;
    for role in [Role::Parent, Role::Keeper, Role::Worker] {
        for (pid, _) in list_processes(run.path()).into_iter().filter(|(_, its)| *its == Some(role)) {
            kill(pid);
        }
    }
    drop(client);
    wait_for("the end of all processes", || {
        list_processes(run.path()).iter().all(|(_, role)| role.is_none()).then_some(())
    })?;
    let victims = Checkpoint::read_all(run.path())?;
    for victim in victims.iter().take(count) {
        damage::flip_bit(victim, stream.below(1000), &mut stream)?.apply()?;
    }
    let mut client = place.resume(&run)?;
    let code = client.wait()?;
    if count >= victims.len() {
        let rows = verdict::attempts(&run)?.len();
        let refused = code == Some(i32::from(FailureClass::Checkpoint.exit_code())) && rows == 0;
        return if refused {
            Ok(())
        } else {
            Err(format!("the run ended with {code:?} after {rows} more starts").into())
        };
    }
    if code != Some(0) {
        return Err(format!("the run ended with {code:?}").into());
    }
    redone.extend(verdict::attempts(&run)?.iter().map(|attempt| attempt.before.saturating_sub(attempt.from)));
    verdict::check(&run)?;
    verdict::read_trace(place, &run)?.check(unbroken)
}
