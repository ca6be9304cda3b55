//! The companion of a command under the real harness: its steps, its checkpoints, and what happens when either side
//! dies or lies. The script is Rust and speaks the lines that the Python package speaks.

#![expect(clippy::unwrap_used, reason = "the helpers of a test fail by panicking, as the test does")]

mod several;
mod sources;
mod whole_runs;

use crate::helper::zoo::{Harness, left_behind, write_run};
use crate::helper::{example, kill};
use downshift::protocol::companion::{CompanionNews, Framework, Grade};
use downshift::protocol::worker::{CommandNews, DoneReason, Event, Hello, Order};
use downshift::store::adopted;
use downshift::store::checkpoint;
use downshift::store::checkpoint::state::{Row, TrainState};
use downshift::store::companion::KnownCompanion;
use downshift::store::run_dir::RunDir;
use downshift::store::samples;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Steps of a short training.
const STEPS: u64 = 60;

struct Scene {
    dir: tempfile::TempDir,
    marker: String,
}

impl Scene {
    /// Creates a run whose script has a companion.
    fn new(framework: &str, arguments: &[&str], more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let marker = format!("zoo-{}", dir.path().file_name().unwrap().to_string_lossy());
        let steps = STEPS.to_string();
        let words = ["train", "--marker", &marker, "--companion", framework, "--every", "20"];
        let words: Vec<&str> = words.iter().chain(arguments).copied().chain(["--steps", &steps]).collect();
        write_run(dir.path(), &example("awkward_script"), &words, &format!("knobs: {{ seed: 7 }}\n{more}"));
        Self { dir, marker }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the final weights of a training that ended.
    fn weights(&self) -> Option<String> {
        let log = fs::read_to_string(self.path().join("worker.log")).unwrap();
        log.lines().find_map(|line| Some(line.strip_prefix("weights ")?.trim().to_owned()))
    }

    /// Returns the steps of the containers, each of which verifies.
    fn containers(&self) -> BTreeSet<u64> {
        checkpoint::list(self.path()).iter().map(|entry| checkpoint::verify(&entry.path).unwrap().step).collect()
    }

    /// Plays one attempt to its end. Returns its events and its exit code.
    fn attempt(&self, number: u64, options: &[&str]) -> (Vec<Event>, Option<i32>) {
        let mut harness = Harness::start_with(self.path(), number, options);
        let events = harness.read_all();
        (events, harness.wait().code())
    }
}

/// Returns the weights of a training that nothing disturbs.
fn unbroken(framework: &str) -> String {
    let scene = Scene::new(framework, &["--step-ms", "1"], "");
    assert_eq!(scene.attempt(1, &[]).1, Some(0));
    scene.weights().unwrap()
}

fn steps(events: &[Event]) -> Vec<u64> {
    let number = |event: &Event| match event {
        Event::Step(step) => Some(step.step),
        Event::Skipped(skipped) => Some(skipped.step),
        _ => None,
    };
    events.iter().filter_map(number).collect()
}

fn saved(events: &[Event]) -> Vec<u64> {
    let step = |event: &Event| match event {
        Event::Saved(saved) => Some(saved.step),
        _ => None,
    };
    events.iter().filter_map(step).collect()
}

fn notes(events: &[Event]) -> Vec<&str> {
    let texts = events.iter().filter_map(|event| match event {
        Event::Note { text, .. } => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

fn hello(events: &[Event]) -> &Hello {
    let hello = events.iter().find_map(|event| match event {
        Event::Hello(hello) => Some(hello),
        _ => None,
    });
    hello.unwrap()
}

fn companion(events: &[Event]) -> &CompanionNews {
    let news = events.iter().find_map(|event| match event {
        Event::Command { news: CommandNews::Companion(news) } => Some(&**news),
        _ => None,
    });
    news.unwrap()
}

fn finished(events: &[Event]) -> bool {
    events.iter().any(|event| matches!(event, Event::Done { reason: DoneReason::Finished, .. }))
}

#[test]
fn a_training_with_a_companion_is_reported_step_by_step_and_saved() {
    let scene = Scene::new("loop", &["--step-ms", "1"], "training: { micro_batch: 4 }\n");
    let (events, code) = scene.attempt(1, &[]);
    assert_eq!((code, finished(&events)), (Some(0), true));
    assert_eq!(steps(&events), (1..=STEPS).collect::<Vec<_>>(), "those in the output have other numbers");
    let Some(Event::Step(first)) = events.iter().find(|event| matches!(event, Event::Step(_))) else { panic!() };
    assert_eq!((first.samples, first.loss, first.grad_norm, first.data_wait_ms), (4, Some(1.0), Some(0.5), 0.25));
    assert!(events.contains(&Event::Samples { step: 10 }), "what the script keeps is announced");
    let kept = samples::read(scene.path(), 10, samples::WHOLE_TEXT).unwrap();
    assert_eq!(kept.samples[0].sample.text.as_deref(), Some("Once upon a time"));
    let news = companion(&events);
    assert_eq!((news.framework, news.grade, news.saves, news.guards), (Framework::Loop, Grade::Exact, true, true));
    assert_eq!((news.parameters, news.epoch_units, news.ignored.len()), (Some(1234), Some(200), 0));
    let length = events.iter().find_map(|event| match event {
        Event::Command { news: CommandNews::Length { steps, units } } => Some((*steps, *units)),
        _ => None,
    });
    assert_eq!(length, Some((STEPS, STEPS * 4)));
    assert_eq!((saved(&events), scene.containers()), (vec![20, 40, 60, 60], BTreeSet::from([20, 40, 60])));
    let run = RunDir::open(scene.path()).unwrap();
    assert_eq!(KnownCompanion::of_run(&run).unwrap().news, *news);
    let loaded = checkpoint::load(&scene.path().join("checkpoints/step-000000040")).unwrap();
    let state: TrainState = serde_json::from_slice(&loaded.files["state.json"]).unwrap();
    assert_eq!((state.step, state.position.samples, state.seed, state.attempt), (40, 160, 7, 1));
    let rows = Row::read_all(&loaded.files["steps.jsonl"]);
    let numbers: Vec<u64> = rows.iter().map(|row| if let Row::Step(row) = row { row.step } else { 0 }).collect();
    assert_eq!(numbers, (21..=40).collect::<Vec<_>>(), "since the container before");
}

#[test]
fn a_training_that_is_killed_again_and_again_ends_with_the_weights_of_an_unbroken_one() {
    for framework in ["loop", "transformers"] {
        let wanted = unbroken(framework);
        let scene = Scene::new(framework, &["--step-ms", "1"], "checkpoint: { every: 7 steps }\n");
        let (_, code) = scene.attempt(1, &["--inject", "kill@12"]);
        assert_eq!(code, Some(1));
        // The fault that it reports first names the class.
        let (events, _) = scene.attempt(2, &["--inject", "oom@33"]);
        assert_eq!((hello(&events).resumed_from, steps(&events)[0]), (Some(7), 8), "{framework}");
        assert!(events.iter().any(|event| matches!(event, Event::Failed(failed) if failed.injected)));
        let (events, code) = scene.attempt(3, &["--inject", "exit0@40"]);
        assert_eq!((hello(&events).resumed_from, code, finished(&events)), (Some(28), Some(1), false), "an early exit");
        let (events, code) = scene.attempt(4, &[]);
        assert_eq!((hello(&events).resumed_from, hello(&events).position.samples), (Some(35), 140));
        assert_eq!((code, finished(&events)), (Some(0), true), "{framework}");
        assert_eq!(scene.weights().unwrap(), wanted, "{framework}");
        let is_adopted = adopted::list(scene.path()).len() > 1;
        assert_eq!((is_adopted, scene.containers().is_empty()), (framework != "loop", framework != "loop"));
    }
}

#[test]
fn without_the_checkpoint_the_weights_differ() {
    let scene = Scene::new("loop", &["--step-ms", "1"], "");
    scene.attempt(1, &["--inject", "kill@33"]);
    let model = scene.path().join("checkpoints/step-000000020/model.safetensors");
    let good = fs::read(&model).unwrap();
    // A container with other weights that verifies: only its content is wrong.
    fs::create_dir(scene.path().join("checkpoints/.new-step-000000020")).unwrap();
    fs::write(scene.path().join("checkpoints/.new-step-000000020/model.safetensors"), vec![7; good.len()]).unwrap();
    let contents = checkpoint::staged::StagedContents {
        step: 20,
        samples: 80,
        build: "test",
        parts: &[],
        folder: ".new-step-000000020",
        state: b"{}",
        steps: b"",
    };
    checkpoint::staged::publish_staged(scene.path(), &contents).unwrap();
    assert_eq!(scene.attempt(2, &[]).1, Some(0));
    assert_ne!(scene.weights().unwrap(), unbroken("loop"));
}

#[test]
fn a_stop_saves_at_the_next_step_and_ends_the_command() {
    for framework in ["loop", "transformers"] {
        let scene = Scene::new(framework, &["--step-ms", "5"], "checkpoint: { every: 1000000 steps }\n");
        let mut harness = Harness::start(scene.path(), 1);
        harness.wait_for("steps", |event| matches!(event, Event::Step(step) if step.step >= 5));
        harness.order(&Order::Checkpoint);
        let first = harness.wait_for("a save", |event| matches!(event, Event::Saved(_)));
        harness.order(&Order::Stop { checkpoint: true });
        let second = harness.wait_for("the last save", |event| matches!(event, Event::Saved(_)));
        let (Event::Saved(first), Event::Saved(second)) = (first, second) else { panic!() };
        assert!(first.step < second.step && second.step < STEPS, "{first:?} {second:?}");
        let ended =
            harness.wait_for("the end", |event| matches!(event, Event::Command { news: CommandNews::Ended { .. } }));
        assert!(matches!(ended, Event::Command { news: CommandNews::Ended { code: Some(75), .. } }), "{ended:?}");
        let done = harness.wait_for("the end", |event| matches!(event, Event::Done { .. }));
        assert_eq!(done, Event::Done { reason: DoneReason::Stopped, step: second.step });
        assert_eq!(harness.wait().code(), Some(3));
        let (events, _) = scene.attempt(2, &[]);
        assert_eq!(hello(&events).resumed_from, Some(second.step));
        assert_eq!(scene.weights().unwrap(), unbroken(framework));
    }
}

#[test]
fn a_staged_folder_that_is_not_one_is_refused_and_training_goes_on() {
    for mischief in ["link", "name", "empty", "manifest"] {
        let scene = Scene::new("loop", &["--step-ms", "1", "--mischief", mischief], "");
        let (events, code) = scene.attempt(1, &[]);
        assert_eq!((code, finished(&events)), (Some(0), true), "{mischief}");
        assert_eq!((saved(&events), scene.containers().len()), (vec![], 0), "{mischief}");
        let failed = events.iter().filter(|event| matches!(event, Event::SaveFailed { of_disk: false, .. })).count();
        assert_eq!(failed, 4, "{mischief}");
    }
}

#[test]
fn malformed_lines_are_ignored_and_named_once() {
    let scene = Scene::new("loop", &["--step-ms", "1", "--mischief", "malformed"], "");
    let (events, code) = scene.attempt(1, &[]);
    assert_eq!((code, steps(&events).len() as u64), (Some(0), STEPS));
    assert_eq!(saved(&events), [20, 40, 60, 60], "a companion cannot say that something was saved");
    assert_eq!(notes(&events).iter().filter(|text| text.contains("not understood")).count(), 1);
}

#[test]
fn a_stop_that_takes_too_long_is_withdrawn() {
    let more =
        "checkpoints: { match: 'none/*' }\nsave: { signal: USR1, within: 1s }\ncheckpoint: { every: 1000 steps }\n";
    for (mischief, last) in [("deaf", STEPS), ("late", 50)] {
        let scene = Scene::new("loop", &["--step-ms", "120", "--mischief", mischief], more);
        let mut harness = Harness::start(scene.path(), 1);
        harness.wait_for("steps", |event| matches!(event, Event::Step(step) if step.step >= 5));
        harness.order(&Order::Stop { checkpoint: true });
        harness.wait_for("the refusal", |event| matches!(event, Event::StopRefused { .. }));
        let ended = harness.wait_for("the end", |event| matches!(event, Event::Done { .. }));
        // One that did not hear of it in time has saved before it ends.
        let reason = if mischief == "deaf" { DoneReason::Finished } else { DoneReason::Stopped };
        assert_eq!(ended, Event::Done { reason, step: last }, "{mischief}");
        harness.wait();
        assert_eq!(scene.containers().last(), Some(&last), "{mischief}");
    }
}

#[test]
fn a_checkpoint_that_was_complete_but_not_adopted_when_the_harness_died_is_resumed_from() {
    let scene = Scene::new("transformers", &["--step-ms", "1"], "");
    scene.attempt(1, &["--inject", "kill@33"]);
    // The state that a harness leaves behind which is killed while it reads the checkpoint.
    let lose = |change: &str| {
        let [adopted] = &adopted::list(scene.path())[..] else { panic!("one checkpoint") };
        let written = adopted::WrittenCheckpoint::now(20, 80, &adopted.path).unwrap();
        adopted::record_written(scene.path(), &[written]).unwrap();
        fs::remove_file(scene.path().join(adopted::relative_path(20))).unwrap();
        if !change.is_empty() {
            fs::write(adopted.path.join("weights"), change).unwrap();
        }
    };
    lose("");
    let (events, _) = scene.attempt(2, &["--inject", "kill@33"]);
    assert_eq!((hello(&events).resumed_from, steps(&events)[0]), (Some(20), 21));
    assert!(adopted::list_written(scene.path()).is_empty());
    // An earlier checkpoint of this step was in the same place.
    let mut stale = adopted::find(scene.path(), 20).unwrap();
    let written = adopted::WrittenCheckpoint::now(20, 80, &stale.path).unwrap();
    adopted::record_written(scene.path(), &[written]).unwrap();
    stale.files[0].stamp.bytes += 1;
    fs::write(scene.path().join(adopted::relative_path(20)), serde_json::to_vec(&stale).unwrap()).unwrap();
    let (events, _) = scene.attempt(3, &["--inject", "kill@33"]);
    assert_eq!((hello(&events).resumed_from, steps(&events)[0]), (Some(20), 21));
    lose("half a fi");
    let (events, _) = scene.attempt(4, &[]);
    assert_eq!(hello(&events).resumed_from, None, "it changed after it was reported");
    assert_eq!(scene.weights().unwrap(), unbroken("transformers"));
}

#[test]
fn whatever_dies_the_next_attempt_resumes_from_a_whole_checkpoint() {
    let wanted = unbroken("loop");
    let scene = Scene::new("loop", &["--step-ms", "3"], "checkpoint: { every: 1 step }\n");
    let mut attempt = 0;
    // The harness is killed at any point of a publication, since every step is one.
    for steps in [3, 1, 2, 5, 1, 4] {
        attempt += 1;
        let mut harness = Harness::start(scene.path(), attempt);
        let mut seen = 0;
        harness.wait_for("steps", |event| {
            seen += u64::from(matches!(event, Event::Step(_)));
            seen >= steps
        });
        harness.kill();
        left_behind(&scene.marker).into_iter().for_each(kill);
        assert!(!scene.containers().is_empty());
    }
    let (events, code) = scene.attempt(attempt + 1, &[]);
    assert!(hello(&events).resumed_from.is_some_and(|step| step >= 6), "{:?}", hello(&events).resumed_from);
    assert_eq!((code, scene.weights()), (Some(0), Some(wanted)));
    let names = fs::read_dir(scene.path().join("checkpoints")).unwrap();
    let leftovers = names.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with('.')).count();
    assert_eq!(leftovers, 0);
}

#[test]
fn a_start_finds_damage_in_a_container_that_an_earlier_start_verified() {
    let scene = Scene::new("loop", &["--step-ms", "1"], "");
    scene.attempt(1, &["--inject", "kill@53"]);
    let (events, _) = scene.attempt(2, &["--inject", "kill@53"]);
    assert_eq!(hello(&events).resumed_from, Some(40));
    let model = scene.path().join("checkpoints/step-000000040/model.safetensors");
    let length = fs::read(&model).unwrap().len();
    fs::write(&model, vec![7; length]).unwrap();
    let (events, _) = scene.attempt(3, &[]);
    assert_eq!(hello(&events).resumed_from, Some(20), "{:?}", notes(&events));
    assert_eq!(scene.weights().unwrap(), unbroken("loop"));
}

#[test]
fn damaged_containers_are_never_overwritten_by_a_start_from_the_beginning() {
    let scene = Scene::new("loop", &["--step-ms", "1"], "");
    scene.attempt(1, &["--inject", "kill@33"]);
    fs::write(scene.path().join("checkpoints/step-000000020/model.safetensors"), "damaged!").unwrap();
    let mut harness = Harness::start(scene.path(), 2);
    assert_eq!(harness.wait().code(), Some(14), "the exit code of an unusable checkpoint");
    let log = fs::read_to_string(scene.path().join("worker.log")).unwrap();
    assert!(log.contains("no checkpoint that downshift saved in the script is whole; the newest, of step 20"), "{log}");
}

#[test]
fn another_keeper_learns_what_the_companion_said() {
    let scene = Scene::new("loop", &["--step-ms", "20"], "training: { micro_batch: 4 }\n");
    let mut harness = Harness::start(scene.path(), 1);
    harness.wait_for("steps", |event| matches!(event, Event::Step(step) if step.step >= 5));
    harness.hang_up();
    let mut second = harness.connect_again();
    second.order(&Order::Adopt { after: 3 });
    let Event::Hello(hello) = second.next() else { panic!("a hello comes first") };
    assert_eq!((hello.parameters, hello.epoch_units, hello.total_steps), (1234, 200, STEPS));
    second.wait_for("the companion", |event| {
        matches!(event, Event::Command { news: CommandNews::Companion(news) } if news.framework == Framework::Loop)
    });
    second.order(&Order::Stop { checkpoint: true });
    second.wait_for("a save", |event| matches!(event, Event::Saved(_)));
    assert_eq!(harness.wait().code(), Some(3));
}

#[test]
fn knobs_that_the_script_ignores_are_named_and_dropped_steps_are_counted() {
    let more = "training: { micro_batch: 4 }\n";
    let scene = Scene::new("loop", &["--step-ms", "1", "--mischief", "ignore-knobs"], more);
    let (events, code) = scene.attempt(1, &["--inject", "nan@10"]);
    let [ignored] = &companion(&events).ignored[..] else { panic!("{:?}", companion(&events)) };
    assert_eq!((ignored.name.as_str(), &ignored.in_force), ("training.micro_batch", &99.into()));
    let skipped =
        events.iter().find_map(|event| if let Event::Skipped(skipped) = event { Some(skipped) } else { None });
    let skipped = skipped.unwrap();
    assert_eq!((skipped.step, skipped.applied, skipped.parameter.as_deref()), (10, false, Some("layer.0")));
    assert!(events.iter().any(|event| matches!(event, Event::Injected { fault, step: 10 } if fault == "nan@10")));
    assert_eq!((code, scene.containers().len()), (Some(0), 3), "the guard kept its weights clean");
}

#[test]
fn a_fault_that_nothing_can_inject_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["train", "--steps", "40", "--step-ms", "20"];
    write_run(dir.path(), &example("awkward_script"), &words, "");
    let mut harness = Harness::start_with(dir.path(), 1, &["--inject", "nan@5"]);
    let note = harness.wait_for("the note", |event| matches!(event, Event::Note { .. }));
    let Event::Note { text, .. } = note else { panic!("{note:?}") };
    assert_eq!(text, "nan@5 cannot be injected: downshift's helper in the script has not reported");
    assert_eq!(harness.wait().code(), Some(0));
}
