//! Runs that want the same card: claims, the queue, and what outlives a killed keeper. The real program with the
//! scripted worker and a fake NVML library with two cards.

#![expect(clippy::unwrap_used, reason = "a test: what is missing fails it")]

use crate::helper::{Place, example, journal_says, kill, parent_of, wait_for, wait_state, wait_status};
use downshift::protocol::control::{RunState, Status};
use downshift::store::reader::live_status;
use downshift::store::run_dir::RunDir;
use std::fs;
use std::process::{Child, Output, Stdio};

/// Long enough not to finish during any test.
const LONG: &str = "training.steps=1000000";

pub fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// Creates a place with two cards.
pub fn two_cards() -> Place {
    let mut place = Place::scripted();
    place.script("{ step_ms: 10 }", "");
    let library = place.dir.path().join("libfake_nvml.so");
    fs::copy(example("libfake_nvml.so"), &library).unwrap();
    fs::write(library.with_extension("json"), r#"{"nvmlDeviceGetCount_v2": [{"value": 2}]}"#).unwrap();
    place.variables.push(("DOWNSHIFT_NVML_PATH", library));
    place
}

/// Starts a run of this name; returns as soon as its keeper has told its first state.
fn launch(place: &Place, name: &str, words: &[&str]) -> (Child, RunDir) {
    let name_it = format!("name={name}");
    let words = [&["run", "run.yaml", "--headless", "--set", &name_it, "--set", LONG][..], words].concat();
    let child = place.command(&words).stdout(Stdio::null()).spawn().unwrap();
    let run = wait_for("a run directory", || {
        ["runs", "other"].iter().find_map(|runs| RunDir::find(&place.dir.path().join(runs), Some(name)).ok())
    });
    wait_status(&run, "a state", |status| status.state != RunState::Starting);
    (child, run)
}

/// Starts a run and waits until it trains.
pub fn begin(place: &Place, name: &str, words: &[&str]) -> RunDir {
    let (_, run) = launch(place, name, words);
    trains(&run);
    run
}

pub fn trains(run: &RunDir) -> Status {
    wait_status(run, "steps", |status| status.state == RunState::Training && status.step > 2)
}

/// Starts a run that has to wait; `why` is a part of what it says.
fn wait_behind(place: &Place, name: &str, words: &[&str], why: &str) -> RunDir {
    let (_, run) = launch(place, name, words);
    waits(&run, why);
    run
}

pub fn waits(run: &RunDir, why: &str) {
    wait_status(run, why, |status| {
        assert_eq!(status.pid_worker, None, "{} started", run.name());
        status.state == RunState::AwaitingCard && status.why.as_ref().is_some_and(|told| told.contains(why))
    });
}

pub fn stop(place: &Place, run: &RunDir) {
    let out = place.output(&["stop", run.path().to_str().unwrap()]);
    assert!(out.status.success(), "{}", text(&out));
    wait_status(run, "the end", |status| status.state == RunState::Stopped && status.pid_keeper.is_none());
}

#[test]
fn a_second_run_on_a_card_is_refused_or_waits_or_starts_anyway_whatever_its_folder() {
    let place = two_cards();
    let first = begin(&place, "first", &["--device", "cuda:0"]);
    let refused =
        place.output(&["run", "run.yaml", "--headless", "--runs-dir", "other", "--device", "cuda:GPU-fake-0"]);
    let said = text(&refused);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    for part in ["cuda:0 is in use by", &first.name(), "downshift attach", "--wait-for-card", "--another"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!place.dir.path().join("other").exists(), "a directory was made");
    fs::write(place.dir.path().join("command.yaml"), "name: tried\ntask: command\ncommand: [sh, -c, 'true']\n")
        .unwrap();
    let trial = |more: &[&str]| {
        let words = ["trial", "command.yaml", "--trust", "--in-place", "--device", "cuda:0"];
        let refused = place.output(&[&words[..], more].concat());
        assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
        text(&refused)
    };
    let said = trial(&[]);
    assert!(
        said.contains("--another") && !said.contains("--wait-for-card"),
        "a trial of a command cannot wait: {said}"
    );
    assert!(trial(&["--wait-for-card"]).contains("cannot wait for a device"));

    let second = wait_behind(
        &place,
        "second",
        &["--runs-dir", "other", "--device", "cuda:GPU-fake-0", "--wait-for-card"],
        &format!("{} holds cuda:0; next in the queue", first.name()),
    );
    begin(&place, "elsewhere", &["--device", "cuda:1"]);
    begin(&place, "anyway", &["--device", "cuda:0", "--another"]);
    let status = text(&place.output(&["status", second.path().to_str().unwrap()]));
    assert!(status.contains("waiting for its turn") && status.contains(&first.name()), "{status}");

    // The terminal that started it is gone meanwhile; the keeper waits.
    stop(&place, &first);
    waits(&second, "anyway-");
    stop(&place, &RunDir::find(&place.dir.path().join("runs"), Some("anyway")).unwrap());
    trains(&second);
    assert!(journal_says(&second, "waiting for its turn: ") && journal_says(&second, "this run's turn"));
}

#[test]
fn of_runs_that_start_in_the_same_moment_one_trains_and_the_others_say_why_not() {
    let place = two_cards();
    let start = |name: String| {
        let words = ["run", "run.yaml", "--headless", "--device", "cuda:0", "--set", LONG, "--set"];
        let mut command = place.command(&[&words[..], &[&format!("name={name}")]].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut children: Vec<Child> = (0..6).map(|number| start(format!("racer{number}"))).collect();
    let mut refused = Vec::new();
    wait_for("all but one to end", || {
        while let Some(at) = children.iter_mut().position(|child| child.try_wait().unwrap().is_some()) {
            refused.push(children.remove(at).wait_with_output().unwrap());
        }
        (children.len() == 1).then_some(())
    });
    for out in &refused {
        let said = text(out);
        assert_eq!(out.status.code(), Some(2), "{said}");
        assert!(said.contains("cuda:0 is in use by racer") && said.contains("--wait-for-card"), "{said}");
    }
    let runs = RunDir::all(&place.dir.path().join("runs"));
    let alive: Vec<&RunDir> = runs.iter().filter(|run| live_status(run).unwrap().pid_keeper.is_some()).collect();
    let [winner] = alive[..] else { panic!("{alive:?}") };
    trains(winner);
    stop(&place, winner);
    children.remove(0).wait().unwrap();
}

#[test]
fn a_keeper_refuses_a_run_that_does_not_wait_and_its_resume_waits() {
    let place = two_cards();
    let first = begin(&place, "first", &["--device", "cuda:0"]);
    // A run that found the card free a moment before: only its keeper sees the other one.
    let second = begin(&place, "second", &["--device", "cuda:1"]);
    stop(&place, &second);
    let claim = r#"{"devices":{"cards":[{"index":0,"uuid":"GPU-fake-0"}]},"at_once":true}"#;
    let path = second.path().to_str().unwrap();
    let keeper = ["keeper", "--run-dir", path, "--device", "cuda:0", "--by-person=a test", "--claim", claim];
    let out = place.output(&keeper);
    assert_eq!(out.status.code(), Some(2), "{}", text(&out));
    let why = live_status(&second).unwrap().why.unwrap();
    assert!(why.starts_with(&format!("cuda:0 is in use by {}; `", first.name())) && why.contains("--another"), "{why}");
    assert!(journal_says(&second, "not started: cuda:0 is in use by first-"));
    let resume = ["resume", "second", "--headless", "--device", "cuda:0", "--wait-for-card"];
    let mut resumed = place.command(&resume).stdout(Stdio::null()).spawn().unwrap();
    waits(&second, &first.name());
    stop(&place, &first);
    trains(&second);
    stop(&place, &second);
    resumed.wait().unwrap();
}

#[test]
fn a_list_of_cards_is_one_claim_and_auto_means_every_visible_card() {
    let place = two_cards();
    let one = begin(&place, "one", &["--device", "cuda:1"]);
    let both = wait_behind(&place, "both", &["--device", "cuda:0,1", "--wait-for-card"], "holds cuda:1; next");
    let auto = wait_behind(&place, "auto", &["--wait-for-card"], "number 2 in the queue, after both-");
    stop(&place, &one);
    trains(&both);
    waits(&auto, "holds cuda:0, cuda:1; next in the queue");
    stop(&place, &both);
    trains(&auto);
    // A run on the CPU blocks no other run.
    begin(&place, "cpu", &["--device", "cpu"]);
    for (device, part) in [("cuda:0,0", "unknown device"), ("cuda:0,GPU-fake-1", "unknown device"), ("gpu", "cuda:0")] {
        let out = place.output(&["run", "run.yaml", "--headless", "--device", device]);
        assert!(out.status.code() == Some(2) && text(&out).contains(part), "{device}: {}", text(&out));
    }
}

#[test]
fn the_queue_is_first_come_first_served_and_a_waiting_run_can_be_stopped() {
    let place = two_cards();
    let device = ["--device", "cuda:0", "--wait-for-card"];
    let first = begin(&place, "first", &device);
    let second = wait_behind(&place, "second", &device, "next in the queue");
    let third = wait_behind(&place, "third", &device, "number 2 in the queue, after second-");
    let fourth =
        wait_behind(&place, "fourth", &[&device[..], &["--runs-dir", "other"]].concat(), "number 3 in the queue");
    let listed = text(&place.output(&["runs", "--all"]));
    let names = |text: &str| text.lines().map(|line| line.split('-').next().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(names(&listed), ["first", "second", "third", "fourth"], "{listed}");
    let other = place.dir.path().join("other").canonicalize().unwrap();
    assert!(listed.lines().last().unwrap().ends_with(&format!("  in {}", other.display())), "{listed}");
    let here = text(&place.output(&["runs"]));
    assert!(here.contains("number 2 in the queue") && !here.contains("fourth-20"), "{here}");

    stop(&place, &second);
    waits(&third, "next in the queue");
    stop(&place, &first);
    trains(&third);
    waits(&fourth, "third-");
    let begun = live_status(&second).unwrap();
    assert_eq!((begun.attempts, begun.state), (0, RunState::Stopped));
}

#[test]
fn a_claim_survives_its_keeper_and_dies_with_its_run() {
    let place = two_cards();
    let device = ["--device", "cuda:0", "--wait-for-card"];
    let first = begin(&place, "first", &device);
    let second = wait_behind(&place, "second", &device, "next in the queue");
    let third = wait_behind(&place, "third", &device, "number 2 in the queue");
    let keeper = |run: &RunDir| live_status(run).unwrap().pid_keeper.unwrap();
    for run in [&second, &first] {
        let killed = keeper(run);
        kill(killed);
        wait_status(run, "another keeper", |status| status.pid_keeper.is_some_and(|pid| pid != killed));
    }
    // Both still have what they had.
    wait_status(&first, "steps", |status| status.state == RunState::Training && status.attempts == 2);
    waits(&second, &first.name());
    waits(&third, "after second-");
    // A power cut: nothing of the run is left to release anything.
    let status = live_status(&first).unwrap();
    for pid in [parent_of(keeper(&first)), status.pid_keeper, status.pid_worker] {
        kill(pid.unwrap());
    }
    trains(&second);
    waits(&third, &second.name());
}

#[test]
fn a_run_starts_after_another_is_over() {
    let place = two_cards();
    let first = begin(&place, "first", &["--device", "cuda:0"]);
    let after = ["--after", "first", "--device"];
    let second = wait_behind(&place, "second", &[&after[..], &["cuda:1"]].concat(), "starts after first-");
    let third = wait_behind(&place, "third", &[&after[..], &["cuda:0"]].concat(), "starts after first-");
    // Their turn has not come, so they block no other run.
    let between = begin(&place, "between", &["--device", "cuda:1"]);
    stop(&place, &first);
    trains(&third);
    waits(&second, "between-");
    stop(&place, &between);
    trains(&second);
    // Over already: it starts at once.
    begin(&place, "fourth", &["--after", "first", "--device", "cpu"]);
    let unknown = place.output(&["run", "run.yaml", "--headless", "--after", "nothing"]);
    assert_eq!(unknown.status.code(), Some(1), "{}", text(&unknown));
}

#[test]
fn a_paused_run_gives_its_card_up_and_waits_for_it_again() {
    let place = two_cards();
    let first = begin(&place, "first", &["--device", "cuda:0"]);
    place.output(&["pause", "first"]);
    wait_state(&first, RunState::Paused);
    let second = begin(&place, "second", &["--device", "cuda:0", "--wait-for-card"]);
    let listed = text(&place.output(&["runs", "--all"]));
    assert!(listed.contains("first-"), "a paused run is alive: {listed}");
    let mut resumed = place.command(&["resume", "first", "--headless"]).stdout(Stdio::null()).spawn().unwrap();
    waits(&first, "second-");
    stop(&place, &second);
    assert_eq!(trains(&first).attempts, 2);
    resumed.kill().unwrap();
    resumed.wait().unwrap();

    // A run without a keeper asks like a new one.
    stop(&place, &first);
    begin(&place, "third", &["--device", "cuda:0"]);
    let refused = place.output(&["resume", "first", "--headless"]);
    assert!(refused.status.code() == Some(2) && text(&refused).contains("third-"), "{}", text(&refused));
    let resume = ["resume", "first", "--headless", "--wait-for-card"];
    let mut resumed = place.command(&resume).stdout(Stdio::null()).spawn().unwrap();
    waits(&first, "third-");
    let stopped = place.output(&["stop", "first"]);
    assert!(stopped.status.success(), "{}", text(&stopped));
    assert_eq!(resumed.wait().unwrap().code(), Some(3));
}

#[test]
fn a_run_that_cannot_register_says_so_and_trains() {
    let mut place = two_cards();
    fs::write(place.dir.path().join("file"), "").unwrap();
    place.variables.push(("XDG_STATE_HOME", place.dir.path().join("file")));
    let run = begin(&place, "run", &["--device", "cuda:0"]);
    assert!(journal_says(&run, "the claim on cuda:0 cannot be stored"));
}
