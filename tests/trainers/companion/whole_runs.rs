//! Runs with a keeper whose command has a companion.

use super::{STEPS, unbroken};
use crate::helper::zoo::write_run;
use crate::helper::{Place, example, journal, journal_says, wait_state};
use downshift::protocol::control::RunState;
use downshift::store::{checkpoint, samples};
use std::fs;

/// Writes a run of the plain loop in a place.
fn write(place: &Place, words: &[&str], more: &str) {
    let marker = format!("zoo-{}", place.dir.path().file_name().unwrap().to_string_lossy());
    let steps = STEPS.to_string();
    let all = ["train", "--marker", &marker, "--companion", "loop", "--step-ms", "20", "--steps", &steps];
    write_run(place.dir.path(), &example("awkward_script"), &[&all[..], words].concat(), more);
}

#[test]
fn a_run_shifts_and_restarts_from_containers_and_ends_as_if_nothing_had_happened() {
    let place = Place::real();
    let more = "name: kept\nknobs: { seed: 7 }\ntraining: { micro_batch: 4 }\ncheckpoint: { every: 7 steps }\nladder:\n\
                \x20 - { name: small, relieves: [memory], set: { training.micro_batch: 2 } }\n";
    write(&place, &["--batch={training.micro_batch}"], more);
    // Neither `checkpoints` nor `resume` nor `restart`: only the companion makes this run restartable.
    let (mut child, run) = place.start(&["--trust", "--inject", "oom@20,kill@35"]);
    // Files of the script, although they are named like sets of samples, which retention deletes.
    let own = |step: u64| run.path().join(samples::FOLDER).join(format!("step-{step:09}.json"));
    fs::create_dir_all(run.path().join(samples::FOLDER)).unwrap();
    (11..50).for_each(|step| fs::write(own(step), "{}").unwrap());
    assert_eq!(child.wait().unwrap().code(), Some(0), "{:#?}", journal(&run));
    let status = wait_state(&run, RunState::Finished);
    assert_eq!((status.attempts, status.rung_name.as_str(), status.restarts), (3, "small", 2), "{:#?}", journal(&run));
    assert_eq!((status.level, status.parameters, status.total_steps), (Some(2), Some(1234), Some(STEPS)));
    assert!((11..50).all(|step| own(step).exists()));
    assert!(
        journal_says(&run, "resumed at step 14") && journal_says(&run, "resumed at step 28"),
        "{:#?}",
        journal(&run)
    );
    // The companion tells where the start of the process ends.
    for kind in ["shifted full → small", "restarted small"] {
        let told = journal(&run).into_iter().find(|row| row.text.starts_with(kind)).unwrap().text;
        assert!(told.contains("start ") && told.contains(", first step "), "{told}");
        assert!(!told.contains("start and"), "{told}");
    }
    assert_eq!(place.curve(STEPS, 4).len() as u64, STEPS);
    let log = fs::read_to_string(run.path().join("worker.log")).unwrap();
    let weights = log.lines().find_map(|line| line.strip_prefix("weights ")).unwrap();
    assert_eq!(weights.trim(), unbroken("loop"));
}

#[test]
fn containers_of_a_command_are_kept_by_the_rules_of_its_run_file() {
    let place = Place::real();
    write(
        &place,
        &[],
        "name: kept\nknobs: { seed: 7 }\ncheckpoint: { every: 7 steps, keep_last: 1, proven_after: 10 }\n",
    );
    let (mut child, run) = place.start(&["--trust"]);
    assert_eq!(child.wait().unwrap().code(), Some(0), "{:#?}", journal(&run));
    wait_state(&run, RunState::Finished);
    let kept: Vec<u64> = checkpoint::list(run.path()).iter().map(|entry| entry.step).collect();
    assert_eq!(kept, [60, 56, 49], "the newest, the next to be proven, the newest proven: {:#?}", journal(&run));
}
