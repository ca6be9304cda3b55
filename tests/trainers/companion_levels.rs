//! The level that a companion gives a command, as the user sees it: from the keeper to the store, `status`, the journal
//! and `checkpoints`. The script is Rust and speaks the lines that the Python package speaks.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

use crate::helper::{Place, example, journal, journal_says, kill, stop_run, wait_for, wait_state, wait_status};
use downshift::protocol::control::{RunState, Status};
use downshift::protocol::resume::Resume;
use downshift::store::run_dir::RunDir;
use std::fs;
use std::process::{Child, Output};

/// Writes a run file whose script has a companion; its ladder halves the micro-batch, and halves it again.
fn place(arguments: &str) -> Place {
    let place = Place::real();
    let script = example("awkward_script");
    let marker = place.dir.path().display();
    let text = format!(
        "name: kept\ntask: command\ncommand: [{}, train, --companion, loop, --marker, '{marker}', --every, '20', {arguments} \
         '--batch={{training.micro_batch}}']\ntraining: {{ micro_batch: 8 }}\nladder:\n\
         \x20 - {{ name: half, relieves: [memory], set: {{ training.micro_batch: 4 }} }}\n\
         \x20 - {{ name: quarter, relieves: [memory], set: {{ training.micro_batch: 2 }} }}\n",
        script.display()
    );
    fs::write(place.dir.path().join("run.yaml"), text).unwrap();
    place
}

fn start(place: &Place, more: &[&str]) -> (Child, RunDir) {
    place.start(&[&["--trust", "--device", "cpu"], more].concat())
}

fn shown(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// Waits for a checkpoint and a few steps beyond it.
fn trained(run: &RunDir) -> Status {
    wait_status(run, "a checkpoint", |status| status.durable_step.is_some_and(|durable| status.step > durable + 3))
}

#[test]
fn a_command_with_a_companion_is_at_level_2_and_a_shift_loses_no_step() {
    let place = place("--step-ms, '10', --steps, '100000',");
    let (mut child, run) = start(&place, &[]);
    let status = trained(&run);
    assert_eq!((status.level, status.resume.as_ref().and_then(Resume::word)), (Some(2), Some("exact")));
    let line = place.succeed(&["status"]);
    assert!(line.contains("  resume exact  "), "{line}");

    // Neither `checkpoints` nor `resume` is in the run file.
    let shift = place.output(&["shift", "down"]);
    assert!(shift.status.success(), "{}", shown(&shift));
    let status = wait_status(&run, "the rung below", |status| status.rung == 1 && status.state == RunState::Training);
    assert_eq!((status.shifts, status.restarts), (1, 0));
    let status = wait_status(&run, "its steps", |now| now.step > status.step + 5);
    let in_force = &status.companion.as_ref().unwrap().knobs["training.micro_batch"];
    assert_eq!((in_force.as_u64(), status.companion.unwrap().ignored.len()), (Some(4), 0));
    let steps: Vec<u64> = place.rows().iter().filter_map(|row| row["step"].as_u64()).collect();
    assert_eq!(steps, (1..=steps.len() as u64).collect::<Vec<_>>(), "no step was lost, and none was repeated");

    // The next keeper knows it without asking.
    let keeper = status.pid_keeper.unwrap();
    kill(keeper);
    let status = wait_status(&run, "another keeper", |now| now.pid_keeper.is_some_and(|pid| pid != keeper));
    assert_eq!((status.level, status.resume.as_ref().and_then(Resume::word)), (Some(2), Some("exact")));
    let pause = place.output(&["pause"]);
    assert!(pause.status.success(), "{}", shown(&pause));
    wait_state(&run, RunState::Paused);
    stop_run(&place, &mut child);
}

#[test]
fn a_script_that_ignores_its_argument_is_named_and_not_looped() {
    let place = place("--step-ms, '10', --steps, '100000', --mischief, ignore-knobs,");
    let (mut child, run) = start(&place, &["--inject", "oom@30*"]);
    let code = child.wait().unwrap().code();
    assert_eq!(code, Some(4), "{}", place.printed());
    let status = place.status_json();
    let why = status["why"].as_str().unwrap();
    assert!(why.contains("the script ignores training.micro_batch: the rung says"), "{why}");
    assert!(why.contains("in force is 99") && why.contains("no rung helps against lack of memory"), "{why}");
    assert_eq!(status["attempts"], 1, "{}", place.printed());
    assert!(journal_says(&run, "the script ignores training.micro_batch: the rung says 8, in force is 99"));
    let listed = place.succeed(&["status"]);
    assert!(
        listed.contains("\n  the script ignores training.micro_batch: the rung says 8, in force is 99\n"),
        "{listed}"
    );
}

#[test]
fn a_shift_by_hand_that_the_script_ignores_does_not_count() {
    let place = place("--step-ms, '10', --steps, '100000', --mischief, ignore-knobs,");
    let (mut child, run) = start(&place, &[]);
    trained(&run);
    place.output(&["shift", "down"]);
    let named = "The shift full → half changed nothing else, so it does not count";
    wait_for("the journal", || journal_says(&run, named).then_some(()));
    let status = wait_status(&run, "its steps", |status| status.rung == 1 && status.step > 30);
    assert_eq!(status.shifts, 0);
    let lines = journal(&run).iter().filter(|row| row.text.contains("ignores")).count();
    assert_eq!(lines, 2, "once for each attempt");
    stop_run(&place, &mut child);
}

#[test]
fn a_hung_script_is_ended_after_its_stacks_are_in_the_journal_and_in_the_bundle() {
    let place = place("--step-ms, '10', --steps, '100000', --mischief, hang,");
    let file = place.dir.path().join("run.yaml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{text}watch: {{ hang_min: 2 s, hang: {{ first_steps: 2 s }} }}\n")).unwrap();
    let (mut child, run) = start(&place, &[]);
    wait_status(&run, "another attempt", |status| status.attempts >= 2);
    let rows = journal(&run);
    let at = |words: &str| rows.iter().position(|row| row.text.contains(words)).unwrap_or_else(|| panic!("{rows:#?}"));
    let (hang, stacks) = (at("hang: no progress"), at("data.py:33 in __getitem__ ← train.py:12 in <module>"));
    assert!(hang < stacks && stacks < at("worker ended at step 30"), "{rows:#?}");
    assert!(rows[stacks].text.contains("the stacks of its 2 threads are in attempts/1/stacks-"), "{rows:#?}");
    let status = wait_status(&run, "its steps again", |status| status.step > 20 && status.attempts >= 2);
    assert!(status.durable_step >= Some(20) && status.rung == 0, "{status:?}");
    wait_for("the newest checkpoint", || journal_says(&run, "resumed at step 20").then_some(()));
    stop_run(&place, &mut child);
    let bundle = place.succeed(&["bundle", "--out", "b.tar.gz"]);
    assert!(bundle.contains("attempts/1/stacks-"), "{bundle}");
}

#[test]
fn the_containers_of_a_companion_can_be_listed_verified_exported_and_pruned() {
    let place = place("--step-ms, '1', --steps, '200',");
    let (mut child, run) = start(&place, &[]);
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", place.printed());
    crate::helper::wait_parent_end(&run);
    let said = |words: &[&str]| {
        let out = place.output(&[&["checkpoints"], words].concat());
        (out.status.code(), shown(&out))
    };
    let kept = downshift::store::checkpoint::list(run.path()).len();
    assert!(kept > 0 && kept < 10, "retention deleted the older ones of 11: {kept}");
    let (code, listed) = said(&["list"]);
    assert_eq!((code, listed.lines().count()), (Some(0), kept), "{listed}");
    let (code, verified) = said(&["verify"]);
    assert_eq!((code, verified.matches("whole").count()), (Some(0), kept), "{verified}");
    let (code, ranked) = said(&["compare"]);
    assert!(code == Some(14) && ranked.contains("reported no loss of an evaluation"), "{ranked}");
    let (code, refused) = said(&["export", "--format", "hf", "--out", "folder"]);
    assert!(code == Some(13) && refused.contains("without --format"), "{refused}");
    let (code, exported) = said(&["export", "--out", "weights.safetensors"]);
    assert!(code == Some(0) && exported.contains("the weights of step 200"), "{exported}");
    let newest = run.file("checkpoints/step-000000200/model.safetensors");
    assert_eq!(fs::read(place.dir.path().join("weights.safetensors")).unwrap(), fs::read(&newest).unwrap());
    let (code, pruned) = said(&["prune"]);
    assert!(code == Some(0) && pruned.contains("nothing to delete"), "{pruned}");

    fs::write(&newest, b"damaged!").unwrap();
    let (code, verified) = said(&["verify"]);
    assert!(code == Some(14) && verified.contains("step       200  BROKEN"), "{verified}");
}
