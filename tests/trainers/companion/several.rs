//! Several trainings in one command: one after the other, again after a death, at once.

use super::{STEPS, Scene, finished, notes, saved, steps, unbroken};
use crate::helper::example;
use crate::helper::zoo::{Harness, left_behind, write_run};
use downshift::protocol::worker::{CommandNews, DoneReason, Event, Order};
use downshift::store::checkpoint;
use downshift::store::checkpoint::state::Row;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[test]
fn of_two_trainings_in_one_command_only_the_first_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let script = example("awkward_script");
    let train = |steps: u64| {
        let script = script.display();
        format!("{script} train --marker chained --companion loop --every 20 --step-ms 1 --steps {steps}")
    };
    let both = format!("{} && {}", train(STEPS), train(2 * STEPS));
    write_run(dir.path(), Path::new("sh"), &["-c", &both], "knobs: { seed: 7 }\n");
    for number in [1, 2] {
        let mut harness = Harness::start(dir.path(), number);
        let events = harness.read_all();
        harness.wait();
        let kept: Vec<u64> = checkpoint::list(dir.path()).iter().rev().map(|entry| entry.step).collect();
        assert_eq!(kept, [20, 40, 60], "attempt {number}: {events:#?}");
        let setup = fs::read_to_string(dir.path().join(format!("attempts/{number}/companion.json"))).unwrap();
        assert!(setup.contains("\"resume\": null"), "the second training starts from its beginning: {setup}");
    }
}

/// Writes the run of a command that starts its training again until it succeeds.
fn write_loop(scene: &Scene, more: &[&str]) {
    let script = example("awkward_script").display().to_string();
    let steps = STEPS.to_string();
    let words =
        [&script, "train", "--marker", &scene.marker, "--companion", "loop", "--every", "20", "--steps", &steps];
    let text = format!("until {} {}; do :; done", words.join(" "), more.join(" "));
    write_run(scene.path(), Path::new("sh"), &["-c", &text], "knobs: { seed: 7 }\n");
}

#[test]
fn a_process_that_the_command_starts_again_resumes_from_the_newest_checkpoint() {
    let scene = Scene::new("loop", &[], "");
    write_loop(&scene, &["--step-ms", "1"]);
    let (events, code) = scene.attempt(1, &["--inject", "kill@33,kill@52"]);
    assert_eq!((code, finished(&events)), (Some(0), true), "{events:#?}");
    assert_eq!(scene.weights().unwrap(), unbroken("loop"));
    let back: Vec<u64> = events
        .iter()
        .filter_map(|event| match event {
            Event::Command { news: CommandNews::WentBack { step, samples } } if *samples == step * 4 => Some(*step),
            _ => None,
        })
        .collect();
    // A process that starts at once may find its fault in the file yet.
    assert!(back.starts_with(&[20]) && back.ends_with(&[40]) && back.is_sorted(), "{back:?}");
    let taken = steps(&events);
    assert_eq!(taken.iter().filter(|step| **step == 33).count(), 1, "{taken:?}");
    assert!(taken.iter().filter(|step| **step == 30).count() > 1, "steps after the checkpoint are taken again");
    let loaded = checkpoint::load(&scene.path().join("checkpoints/step-000000040")).unwrap();
    let rows = Row::read_all(&loaded.files["steps.jsonl"]);
    let numbers: Vec<u64> = rows.iter().map(|row| if let Row::Step(row) = row { row.step } else { 0 }).collect();
    assert_eq!(numbers, (21..=40).collect::<Vec<_>>(), "each step once");
    assert!(!notes(&events).iter().any(|text| text.contains("instead of resuming")), "{:?}", notes(&events));
}

#[test]
fn a_command_that_starts_its_training_again_still_ends_when_it_is_stopped() {
    let scene = Scene::new("loop", &[], "");
    write_loop(&scene, &["--step-ms", "10"]);
    let mut harness = Harness::start(scene.path(), 1);
    harness.wait_for("steps", |event| matches!(event, Event::Step(step) if step.step >= 5));
    harness.order(&Order::Stop { checkpoint: true });
    let done = harness.wait_for("the end", |event| matches!(event, Event::Done { .. }));
    let Event::Done { reason: DoneReason::Stopped, step } = done else { panic!("{done:?}") };
    assert_eq!((harness.wait().code(), scene.containers()), (Some(3), BTreeSet::from([step])));
    assert!(left_behind(&scene.marker).is_empty());
}

/// Plays two ranks to their end, the second one with an argument more. Returns their run and its events.
fn two_ranks(more: &str) -> (Scene, Vec<Event>) {
    let scene = Scene::new("loop", &[], "");
    let script = example("awkward_script").display().to_string();
    let train =
        format!("{script} train --marker {} --companion loop --every 20 --step-ms 1 --steps {STEPS}", scene.marker);
    let both = format!("export WORLD_SIZE=2; RANK=1 {train} {more} & RANK=0 {train} && wait");
    write_run(scene.path(), Path::new("sh"), &["-c", &both], "knobs: { seed: 7 }\n");
    let (events, code) = scene.attempt(1, &[]);
    assert_eq!((code, finished(&events)), (Some(0), true), "{events:#?}");
    let names = fs::read_dir(scene.path().join("checkpoints")).unwrap().flatten();
    assert_eq!(names.filter(|entry| entry.file_name().to_string_lossy().starts_with('.')).count(), 0);
    (scene, events)
}

#[test]
fn two_ranks_write_one_checkpoint_of_two_parts() {
    let (scene, events) = two_ranks("");
    assert_eq!((saved(&events), scene.containers()), (vec![20, 40, 60, 60], BTreeSet::from([20, 40, 60])));
    let folder = scene.path().join("checkpoints/step-000000040");
    assert!(folder.join("rank-1.model.safetensors").exists() && folder.join("model.safetensors").exists());
}

#[test]
fn once_the_companion_of_a_rank_is_gone_every_save_fails_and_names_it() {
    let (scene, events) = two_ranks("--mischief dead");
    assert!(saved(&events).is_empty() && scene.containers().is_empty());
    let failed = events.iter().filter_map(|event| match event {
        Event::SaveFailed { step, message, .. } => Some((*step, message.as_str())),
        _ => None,
    });
    let message = "rank 1 of 2: its helper of downshift is gone";
    assert_eq!(failed.collect::<Vec<_>>(), [20, 40, 60, 60].map(|step| (step, message)));
}

#[test]
fn of_two_processes_that_train_at_once_the_first_is_kept_and_the_other_leaves_nothing() {
    let scene = Scene::new("loop", &[], "");
    let script = example("awkward_script").display().to_string();
    let train =
        format!("{script} train --marker {} --companion loop --every 5 --step-ms 2 --steps {STEPS}", scene.marker);
    write_run(scene.path(), Path::new("sh"), &["-c", &format!("{train} & {train}; wait")], "knobs: { seed: 7 }\n");
    let (events, code) = scene.attempt(1, &[]);
    assert_eq!(code, Some(0), "{events:#?}");
    assert_eq!(steps(&events), (1..=STEPS).collect::<Vec<_>>());
    let expected: BTreeSet<u64> = (1..=STEPS / 5).map(|number| number * 5).collect();
    assert_eq!((scene.containers(), saved(&events).len() as u64), (expected, STEPS / 5 + 1), "{:?}", saved(&events));
    assert!(!events.iter().any(|event| matches!(event, Event::SaveFailed { .. })), "{events:#?}");
    let names = fs::read_dir(scene.path().join("checkpoints")).unwrap().flatten();
    assert_eq!(names.filter(|entry| entry.file_name().to_string_lossy().starts_with('.')).count(), 0);
}
